"""A policy that learned in the dream acts in the real game: pip install "dreamenvs[atari,sb3]".

The world model watches the real frames and gives the policy the same features as in the dream.

    python examples/act_for_real.py --dream-steps 200000 --episodes 6
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO

import dreamenvs
from dreamenvs.envs.sb3 import DreamVecEnv

ID = "dreamenvs/STEPVQ-Pong-v0"


def real_returns(env: gym.Env, policy: PPO | None, episodes: int, limit: int) -> list[float]:
    """Returns of real episodes; without a policy, of random actions."""
    env.action_space.seed(0)
    returns = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total = 0.0
        for _ in range(limit):
            action = env.action_space.sample() if policy is None else policy.predict(observation)[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        returns.append(total)
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dream-steps", type=int, default=100_000, help="imagined steps to learn from")
    parser.add_argument("--episodes", type=int, default=3, help="real episodes to play")
    parser.add_argument("--limit", type=int, default=5_000, help="real steps after which an episode is cut")
    args = parser.parse_args()

    dream = DreamVecEnv(ID, num_envs=32, obs_type="latent", horizon=256)
    policy = PPO("MlpPolicy", dream, n_steps=128, batch_size=512, n_epochs=4, gamma=0.98, ent_coef=0.01, seed=0)
    policy.learn(args.dream_steps)

    real = dreamenvs.make_real(ID, obs_type="latent")
    for name, player in (("random", None), ("trained in the dream", policy)):
        returns = real_returns(real, player, args.episodes, args.limit)
        print(f"{name}: mean real return {np.mean(returns):+.2f} over {returns}")


if __name__ == "__main__":
    main()
