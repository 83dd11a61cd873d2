"""Any environment that can draw itself, seen through its pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from dreamenvs.worlds.area_resize import AreaResize


@dataclass(frozen=True, kw_only=True)
class PixelsConfig:
    """How the pictures are made."""

    size: int = 64
    """Height and width of the observation."""
    repeat: int = 1
    """Simulator steps for each action; rewards add up."""
    camera_id: int = 0
    """Which camera of a dm_control task looks."""

    def __post_init__(self) -> None:
        if not (8 <= self.size <= 512 and 1 <= self.repeat <= 64):
            raise ValueError(f"no sensible pictures: {self}")


class Pixels(gymnasium.Wrapper[NDArray[np.uint8], Any, Any, Any], RecordConstructorArgs):
    """Replaces observations with the resized picture of `render`, and repeats actions."""

    def __init__(self, env: gymnasium.Env[Any, Any], config: PixelsConfig) -> None:
        RecordConstructorArgs.__init__(self, config=config)
        gymnasium.Wrapper.__init__(self, env)
        if env.render_mode != "rgb_array":
            raise ValueError(f"pictures need render_mode='rgb_array', not {env.render_mode!r}")
        self.config = config
        self.observation_space = gymnasium.spaces.Box(0, 255, (config.size, config.size, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode."""
        _, info = self.env.reset(seed=seed, options=options)
        return self._picture(), info

    def step(self, action: Any) -> tuple[NDArray[np.uint8], SupportsFloat, bool, bool, dict[str, Any]]:
        """One action, `repeat` times."""
        total, terminated, truncated = 0.0, False, False
        info: dict[str, Any] = {}
        for _ in range(self.config.repeat):
            _, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return self._picture(), total, terminated, truncated, info

    def _picture(self) -> NDArray[np.uint8]:
        picture: NDArray[np.uint8] = np.asarray(self.env.render(), np.uint8)
        return AreaResize(picture.shape[:2], (self.config.size, self.config.size))(picture)
