"""Your own environment as a dream: write a game, fit its dream, learn there with PPO, and play the real game.

It takes a few minutes. No real step is taken after `fit` has played the game at random.
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO

import dreamenvs

Info = dict[str, object]


class Catch(gym.Env[np.ndarray, np.int64]):
    """A ball falls and a paddle goes left, stays or goes right; a catch earns 1, a miss is the end."""

    observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self.paddle, self.row, self.column = 4, 0, int(self.np_random.integers(8))
        return self.draw(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        self.paddle = int(np.clip(self.paddle + action - 1, 1, 6))
        self.row += 1
        frame, landed, caught = self.draw(), self.row == 7, abs(self.column - self.paddle) <= 1
        if landed:
            self.row, self.column = 0, (self.column + 3) % 8
        return frame, float(landed and caught), landed and not caught, False, {}

    def draw(self) -> np.ndarray:
        cells = np.zeros((8, 8, 3), np.uint8)
        cells[7, self.paddle - 1 : self.paddle + 2] = (60, 160, 255)
        cells[self.row, self.column] = (255, 200, 40)
        return cells.repeat(4, axis=0).repeat(4, axis=1)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=10_000, help="real steps to play at random")
parser.add_argument("--share", type=float, default=0.3, help="of the preset's updates of the world model")
parser.add_argument("--imagined", type=int, default=100_000, help="steps of the dream that PPO learns from")
args = parser.parse_args()

dream = dreamenvs.fit(Catch, steps=args.steps, update_share=args.share, out="dreams/GRID-Catch-v0")
envs = dreamenvs.DreamVecEnv(dream, num_envs=16, obs_type="latent", horizon=70)
policy = PPO("MlpPolicy", envs, n_steps=128, batch_size=512, ent_coef=0.01, device="cpu").learn(args.imagined)
for name in ("random", "PPO from the dream"):
    result = dreamenvs.transfer(
        "random" if name == "random" else policy, dream, obs_type="latent", episodes=20, max_episode_steps=500
    )
    print(f"{name}: a real return of {result.real.episode_return.mean:.1f}")
print(dreamenvs.register(dream.path), "is its id for gymnasium.make")
