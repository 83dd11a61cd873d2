"""Atari games as world-model papers play them: the Atari-100k protocol over the raw emulator (frameskip 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from dreamenvs.worlds.area_resize import AreaResize


@dataclass(frozen=True, kw_only=True)
class AtariConfig:
    """The choices of the protocol; sticky actions belong to the emulator and stand in the environment's kwargs."""

    size: int = 64
    """Height and width of the observation."""
    skip: int = 4
    """Emulator frames for each action; the last two are maximised, for some games draw sprites every other frame."""
    noop_max: int = 30
    """An episode starts after a random number of idle frames, from 1 up to this; 0 for none."""
    terminal_on_life_loss: bool = False
    """Whether a lost life ends the episode. The next unseeded reset then plays on with the lives that are left."""

    def __post_init__(self) -> None:
        if not (8 <= self.size <= 210 and 1 <= self.skip <= 64 and 0 <= self.noop_max <= 1000):
            raise ValueError(f"no sensible Atari protocol: {self}")


class AtariProtocol(gymnasium.Wrapper[NDArray[np.uint8], Any, NDArray[np.uint8], Any], RecordConstructorArgs):
    """Frame skipping with maximum, no-op starts, lives and area-averaged RGB frames."""

    def __init__(self, env: gymnasium.Env[NDArray[np.uint8], Any], config: AtariConfig) -> None:
        RecordConstructorArgs.__init__(self, config=config)
        gymnasium.Wrapper.__init__(self, env)
        shape = env.observation_space.shape
        if shape is None or len(shape) != 3:
            raise ValueError(f"the Atari protocol needs RGB frames, not {env.observation_space}")
        self.config = config
        self.observation_space = gymnasium.spaces.Box(0, 255, (config.size, config.size, shape[2]), np.uint8)
        self._resize = AreaResize((shape[0], shape[1]), (config.size, config.size))
        self._lives = 0
        self._playing = False

    @property
    def playing(self) -> bool:
        """Whether the last episode ended with a lost life, and the game goes on at the next reset without a seed."""
        return self._playing

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode; with a seed always from a new game."""
        if self._playing and seed is None:
            frame, _, terminated, truncated, info = self.env.step(0)
            if not (terminated or truncated):
                return self._begin(frame, info)
        frame, info = self.env.reset(seed=seed, options=options)
        idle = int(self.np_random.integers(1, self.config.noop_max + 1)) if self.config.noop_max else 0
        for _ in range(idle):
            frame, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                frame, info = self.env.reset(options=options)
        return self._begin(frame, info)

    def step(self, action: Any) -> tuple[NDArray[np.uint8], SupportsFloat, bool, bool, dict[str, Any]]:
        """One action, repeated over the skipped frames; rewards add up."""
        total, terminated, truncated = 0.0, False, False
        before = frame = np.zeros(0, np.uint8)
        info: dict[str, Any] = {}
        for _ in range(self.config.skip):
            before = frame
            frame, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        if before.size:
            frame = np.maximum(before, frame)
        lost = info["lives"] < self._lives
        self._lives = info["lives"]
        self._playing = self.config.terminal_on_life_loss and lost and not (terminated or truncated)
        return self._resize(frame), total, terminated or self._playing, truncated, info

    def _begin(self, frame: NDArray[np.uint8], info: dict[str, Any]) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        self._lives, self._playing = info["lives"], False
        return self._resize(frame), info
