"""Train PPO inside a dream of Pong: no simulator and no ROM, only a learned world.

python examples/train_in_a_dream.py
python examples/train_in_a_dream.py --steps 100000 --id dreamenvs/STEPVQ-Pong-v0
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor

from dreamenvs.envs.sb3 import DreamVecEnv
from dreamenvs.envs.vector import DreamVectorEnv
from dreamenvs.evaluation.pictures import mosaic, write_png


class Progress(BaseCallback):
    """One line that is kept up to date: steps, speed, time left."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total, self.begin, self.shown = total, time.monotonic(), 0.0

    def _on_step(self) -> bool:
        now = time.monotonic()
        if now - self.shown > 0.5:
            self.shown = now
            rate = self.num_timesteps / max(now - self.begin, 1e-9)
            left = max(self.total - self.num_timesteps, 0) / rate
            line = f"{self.num_timesteps:,} of {self.total:,} imagined steps, {rate:,.0f} a second, {left:.0f} s left"
            print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
        return True


def dream_return(env_id: str, policy: PPO | None, rows: int, horizon: int) -> float:
    """The mean return of imagined episodes; without a policy, of random actions."""
    env = DreamVecEnv(env_id, num_envs=rows, obs_type="latent", horizon=horizon)
    env.seed(1_000)
    env.action_space.seed(1_000)
    observations, totals, running = env.reset(), np.zeros(rows), np.ones(rows, dtype=bool)
    for _ in range(horizon):
        random_actions = np.array([env.action_space.sample() for _ in range(rows)])
        actions = random_actions if policy is None else policy.predict(observations)[0]
        observations, rewards, dones, _ = env.step(actions)
        totals += rewards * running
        running &= ~dones
    return float(totals.mean())


def picture(env_id: str, policy: PPO, path: str) -> None:
    """Every eighth frame of four imagined episodes, one a line."""
    envs = DreamVectorEnv(4, checkpoint=env_id, obs_type="latent", render_mode="rgb_array")
    observations, _ = envs.reset(seed=0)
    lines: list[list[np.ndarray]] = [[] for _ in range(4)]
    for step in range(80):
        if step % 8 == 0:
            for line, frame in zip(lines, envs.render() or (), strict=True):
                line.append(frame)
        observations, *_ = envs.step(policy.predict(observations)[0])
    print("a picture of what the policy dreams:", write_png(path, mosaic([np.stack(line) for line in lines])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", default="dreamenvs/STEPVQ-Pong-v0", help="which dream")
    parser.add_argument("--steps", type=int, default=100_000, help="imagined steps to learn from")
    parser.add_argument("--rows", type=int, default=32, help="dreams side by side")
    parser.add_argument("--horizon", type=int, default=128, help="imagined steps in an episode")
    parser.add_argument("--picture", default="dream.png", help="where to put the picture")
    args = parser.parse_args()

    env = VecMonitor(DreamVecEnv(args.id, num_envs=args.rows, obs_type="latent", horizon=args.horizon))
    model = PPO("MlpPolicy", env, n_steps=128, batch_size=512, n_epochs=4, gamma=0.98, ent_coef=0.01, seed=0)
    before = dream_return(args.id, None, args.rows, args.horizon)
    model.learn(args.steps, callback=Progress(args.steps))
    print(file=sys.stderr)
    after = dream_return(args.id, model, args.rows, args.horizon)
    episodes = f"{args.rows} imagined episodes of {args.horizon} steps"
    print(f"mean return of {episodes}: random {before:.2f}, trained {after:.2f}")
    picture(args.id, model, args.picture)


if __name__ == "__main__":
    main()
