"""A policy that learned in the dream acts in the real game: pip install "dreamenvs[atari,sb3]".

The world model watches the real frames and gives the policy the same features as in the dream.
"""

from __future__ import annotations

import argparse

import dreamenvs
from dreamenvs.envs.sb3 import DreamVecEnv

ID = "dreamenvs/STEPVQ-Pong-v0"


def main() -> None:
    from stable_baselines3 import PPO

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dream-steps", type=int, default=20_000, help="imagined steps to learn from")
    parser.add_argument("--real-steps", type=int, default=1_000, help="real steps to act")
    args = parser.parse_args()

    dream = DreamVecEnv(ID, num_envs=16, obs_type="latent", horizon=128)
    policy = PPO("MlpPolicy", dream, n_steps=64, batch_size=256, n_epochs=4, learning_rate=5e-4, ent_coef=0.01, seed=0)
    policy.learn(args.dream_steps)

    real = dreamenvs.make_real(ID, obs_type="latent")
    observation, _ = real.reset(seed=0)
    total = 0.0
    for _ in range(args.real_steps):
        action, _ = policy.predict(observation)
        observation, reward, terminated, truncated, _ = real.step(action)
        total += float(reward)
        if terminated or truncated:
            observation, _ = real.reset()
    print(f"real reward over {args.real_steps} steps of a policy that learned in the dream: {total:+.0f}")


if __name__ == "__main__":
    main()
