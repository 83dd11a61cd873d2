"""The vocabulary of the package: what passes between its parts.

Shape legend, used by every docstring and comment:
rows first, then time.  B rows · T steps · K tokens per frame · V vocabulary · D width · F features · A action size ·
N any leading size · C, H, W channels, height and width of an observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Scalar = bool | int | float | str | None


class Segment(NamedTuple):
    """Equal-length excerpts of real experience; `actions[t]` follows `observations[t]`, `rewards[t]` follows both."""

    observations: Tensor  # (B, T, C, H, W) uint8
    actions: Tensor  # (B, T) int64 | (B, T, A) float32
    rewards: Tensor  # (B, T) float32
    terminated: Tensor  # (B, T) bool
    valid: Tensor  # (B, T) bool, False on padding


class Outcome(NamedTuple):
    """What one imagined step gives besides the next state."""

    rewards: Tensor  # (B,) float32
    terminated: Tensor  # (B,) bool
    finite: Tensor  # (B,) bool, False where the model produced NaN or infinity on its way


class LossTerms(NamedTuple):
    """A loss to minimise, and the named parts it is made of (detached, for people to read)."""

    total: Tensor  # ()
    parts: dict[str, Tensor]  # each ()


@dataclass(frozen=True, kw_only=True)
class DiscreteActions:
    """`count` actions, numbered from 0."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a discrete action space needs at least one action, not {self.count}")


@dataclass(frozen=True, kw_only=True)
class ContinuousActions:
    """Real vectors inside finite bounds."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise ValueError(f"low and high need the same non-zero length, not {len(self.low)} and {len(self.high)}")
        # The negated comparison also refuses NaN; infinite bounds cannot be normalised to [-1, 1].
        if not all(-1e30 < low < high < 1e30 for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError(f"continuous actions need finite bounds with low < high, not {self.low} and {self.high}")


@dataclass(frozen=True, kw_only=True)
class SourceEnv:
    """The real environment a dream was fitted on: a registered Gymnasium id, its kwargs, how its frames were made."""

    id: str
    kwargs: Mapping[str, Scalar] = field(default_factory=dict)
    preprocessing: str = "none"
    """The recipe in `worlds/source.py` that turns the environment's output into observations."""
    options: Mapping[str, Scalar] = field(default_factory=dict)
    """The recipe's own settings, such as the size of the frame or the number of skipped frames."""


@dataclass(frozen=True, kw_only=True)
class WorldSpec:
    """What comes from the data and not from a choice: spaces and origin. Saved beside the weights."""

    world: str
    """The world's name in environment ids, such as `Pong`."""
    observation_shape: tuple[int, int, int]  # (C, H, W)
    actions: DiscreteActions | ContinuousActions
    source: SourceEnv | None = None

    def __post_init__(self) -> None:
        if len(self.observation_shape) != 3 or min(self.observation_shape) < 1:
            raise ValueError(f"observation_shape is (channels, height, width), not {self.observation_shape}")
