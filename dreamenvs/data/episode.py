"""Episode: one real episode, or a piece of one, as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """T steps: `actions[t]` follows `observations[t]`, and `rewards[t]`, the flags and `observations[t + 1]` follow it.

    The last observation has no action. Frames are stored as Gymnasium gives them, with the channels last.
    """

    observations: NDArray[np.uint8]  # (T + 1, H, W, C)
    actions: NDArray[Any]  # (T,) int64 | (T, A) float32
    rewards: NDArray[np.float32]  # (T,)
    terminated: NDArray[np.bool_]  # (T,)
    truncated: NDArray[np.bool_]  # (T,)

    def __post_init__(self) -> None:
        steps = len(self.actions)
        if steps < 1 or self.observations.ndim != 4 or len(self.observations) != steps + 1:
            raise ValueError(f"{steps} actions need {steps + 1} images, not {self.observations.shape}")
        for name in ("rewards", "terminated", "truncated"):
            if getattr(self, name).shape != (steps,):
                raise ValueError(f"{name} must have the shape ({steps},), not {getattr(self, name).shape}")
        arrays = (self.observations, self.rewards, self.terminated, self.truncated)
        if [array.dtype.name for array in arrays] != ["uint8", "float32", "bool", "bool"]:
            raise ValueError(f"an episode holds uint8, float32, bool and bool, not {[a.dtype.name for a in arrays]}")
        if self.actions.dtype != (np.int64 if self.actions.ndim == 1 else np.float32) or self.actions.ndim > 2:
            raise ValueError(
                f"actions are (T,) int64 or (T, A) float32, not {self.actions.ndim}-d {self.actions.dtype}"
            )
        if self.terminated[:-1].any() or self.truncated[:-1].any():
            raise ValueError("an episode ends with its last step")

    def __len__(self) -> int:
        """T, the number of steps."""
        return len(self.actions)

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return float(self.rewards.sum(dtype=np.float64))
