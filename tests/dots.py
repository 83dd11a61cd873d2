"""Dots: a real environment of a dot on a line, decided by its seed and actions, for tests."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dreamenvs.types import DiscreteActions, WorldSpec

SPEC = WorldSpec(world="Dots", observation_shape=(3, 12, 16), actions=DiscreteActions(count=3))


class Dots(gymnasium.Env[NDArray[np.uint8], Any]):
    """The action moves the dot, now and then the wind does; it is rewarded on the left and ends on the right.

    With `lives`, a game has several episodes, as in Atari: `playing` says that an unseeded reset goes on with it.
    """

    def __init__(self, lives: int = 1, wind: float = 0.2, noisy: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (12, 16, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.lives, self.wind, self.noisy = lives, wind, noisy
        self.left = 0
        self.place = 8

    @property
    def playing(self) -> bool:
        return self.left > 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self.playing:
            self.left = self.lives
        self.place = int(self.np_random.integers(4, 12))
        return self._draw(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        push = int(self.np_random.integers(-1, 2)) if self.np_random.random() < self.wind else 0
        self.place = int(np.clip(self.place + int(action) - 1 + push, 0, 15))
        over = self.place == 15
        self.left -= over
        return self._draw(), float(self.place == 0), over, False, {}

    def _draw(self) -> NDArray[np.uint8]:
        frame = np.zeros((12, 16, 3), np.uint8)
        frame[4:8, self.place] = 255, 120, 40 * self.left
        if self.noisy:
            frame[0] = np.random.default_rng().integers(256, size=(16, 3))
        return frame
