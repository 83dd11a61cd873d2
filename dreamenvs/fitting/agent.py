"""What an online run asks of an agent: that it learns in dreams, and acts for real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from dreamenvs.protocols import WorldModel
from dreamenvs.types import Segment


class DreamLearner(Protocol):
    """An agent that learns in the dreams of a world model; its random numbers follow from its seed and the update."""

    def update(self, model: WorldModel[Any], context: Segment, update: int) -> dict[str, float]:
        """One update, in dreams that start after the context; what was measured."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that the learner consists of: weights, moments, statistics."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        ...


class Actor(Protocol):
    """The agent in real episodes. What it has in mind is a tree of tensors with the rows first."""

    def begin(self, context: Segment) -> Any:
        """What it has in mind after real frames (B, T); the last action of the context has not been taken yet."""
        ...

    def act(self, mind: Any, seeds: Tensor, temperature: float) -> tuple[Tensor, Any]:
        """Actions (B,) or (B, A), drawn with the seeds (B,), and what it has in mind when it has chosen them."""
        ...

    def see(self, mind: Any, actions: Tensor, frames: Tensor) -> Any:
        """What it has in mind after the actions that were taken in the end, and the frames (B, C, H, W) thereafter."""
        ...
