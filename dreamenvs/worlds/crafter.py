"""Crafter (Hafner, 2021) with the Gymnasium interface, which its package does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class CrafterConfig:
    """How the game is drawn and how long it lasts."""

    size: int = 64
    length: int = 10000

    def __post_init__(self) -> None:
        if not 9 <= self.size <= 512 or self.length < 2:
            raise ValueError(f"no sensible Crafter: {self}")


class CrafterEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """The game with its reward; `info["achievements"]` counts how often each was reached in the episode so far."""

    def __init__(self, config: CrafterConfig, *, reward: bool = True, render_mode: str | None = None) -> None:
        import crafter

        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.render_mode = render_mode
        self.config = config
        self._game = crafter.Env(size=(config.size, config.size), reward=reward, length=config.length, seed=0)
        _put_in_order(self._game)
        self.observation_space = gymnasium.spaces.Box(0, 255, (config.size, config.size, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(int(self._game.action_space.n))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start in a new world."""
        super().reset(seed=seed)
        # Crafter hashes (seed, episode) into each world's seed; drawing both from np_random makes reset repeatable.
        self._game._seed, self._game._episode = int(self.np_random.integers(2**31 - 1)), 0
        return np.array(self._game.reset(), np.uint8), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one action; death terminates, the length truncates."""
        observation, reward, ended, info = self._game.step(int(action))
        terminated = info["discount"] == 0
        achievements = {name: int(count) for name, count in info["achievements"].items()}
        return (
            np.array(observation, np.uint8),
            float(reward),
            bool(terminated),
            bool(ended and not terminated),
            {"achievements": achievements},
        )

    def render(self) -> NDArray[np.uint8] | None:
        """The current view."""
        return np.array(self._game.render(), np.uint8) if self.render_mode == "rgb_array" else None


def _put_in_order(game: Any) -> None:
    """Crafter picks the creature that disappears from a set, in the order of memory addresses: sorted, a seed decides.

    The number of a creature on the map is the order in which it came into the world.
    """
    world, balance = game._world, game._balance_chunk

    def balance_in_order(chunk: Any, creatures: Any) -> None:
        balance(chunk, sorted(creatures, key=lambda creature: int(world._obj_map[tuple(creature.pos)])))

    game._balance_chunk = balance_in_order
