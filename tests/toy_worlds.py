"""Analytic worlds: environment semantics are tested against literal arrays, with no network in the way."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.protocols import Stage
from dreamenvs.random import Noise
from dreamenvs.types import ContinuousActions, DiscreteActions, Outcome, Segment, WorldSpec


class Count(NamedTuple):
    """The state of a CountingWorld."""

    count: Tensor  # (B,) int64
    last: Tensor  # (B,) int64, the last action


class CountingWorld:
    """Counts up by its action: reward = action, terminated at `limit`, and with `jitter` one more at times.

    Every pixel is the count; the tokens are its two decimal digits; the features are the count and the last action.
    """

    num_tokens = 2
    vocabulary = 10
    num_features = 2

    def __init__(self, *, limit: int = 10, jitter: float = 0.0, broken_at: int | None = None) -> None:
        self.spec = WorldSpec(world="Counting", observation_shape=(3, 4, 6), actions=DiscreteActions(count=3))
        self.limit = limit
        self.jitter = jitter
        self.broken_at = broken_at
        """The count at which the world gives NaN rewards."""

    def observe(self, context: Segment) -> Count:
        count = context.observations[:, -1, 0, 0, 0].long()
        return Count(count, torch.zeros_like(count))

    def update(self, state: Count, actions: Tensor, observations: Tensor) -> Count:
        return Count(observations[:, 0, 0, 0].long(), actions)

    def step(self, state: Count, actions: Tensor, noise: Noise) -> tuple[Count, Outcome]:
        jump = (noise.uniform(1)[:, 0] < self.jitter).long()
        count = state.count + actions + jump
        rewards = actions.float()
        if self.broken_at is not None:
            rewards = rewards.masked_fill(count == self.broken_at, float("nan"))
        return Count(count, actions), Outcome(rewards, count >= self.limit, torch.ones_like(count, dtype=torch.bool))

    def tokens(self, state: Count) -> Tensor:
        return torch.stack([state.count // 10 % 10, state.count % 10], dim=1)

    def decode(self, state: Count) -> Tensor:
        return state.count.to(torch.uint8)[:, None, None, None].expand(-1, *self.spec.observation_shape)

    def features(self, state: Count) -> Tensor:
        return torch.stack([state.count, state.last], dim=1).float()

    def stages(self) -> tuple[Stage, ...]:
        return ()


def counting_contexts(starts: tuple[int, ...] = (0,)) -> Segment:
    """One context of one frame for each start value."""
    rows = len(starts)
    frames = torch.tensor(starts, dtype=torch.uint8)[:, None, None, None, None].expand(rows, 1, 3, 4, 6)
    return Segment(
        observations=frames.clone(),
        actions=torch.zeros(rows, 1, dtype=torch.int64),
        rewards=torch.zeros(rows, 1),
        terminated=torch.zeros(rows, 1, dtype=torch.bool),
        valid=torch.ones(rows, 1, dtype=torch.bool),
    )


def counting_checkpoint(starts: tuple[int, ...] = (0,), **kwargs: object) -> Checkpoint:
    """A CountingWorld as environments take it."""
    world = CountingWorld(**kwargs)  # type: ignore[arg-type]
    return Checkpoint(
        model=world, contexts=counting_contexts(starts), family="Counting", config=None, card={}, path=Path("counting")
    )


class Point(NamedTuple):
    """The state of a PointWorld."""

    position: Tensor  # (B, 2) float32


class PointWorld:
    """A point pushed about by continuous actions; the reward is minus its distance from the origin."""

    num_tokens = 2
    vocabulary = 16
    num_features = 2

    def __init__(self) -> None:
        actions = ContinuousActions(low=(-1.0, -1.0), high=(1.0, 1.0))
        self.spec = WorldSpec(world="Point", observation_shape=(3, 4, 4), actions=actions)

    def observe(self, context: Segment) -> Point:
        return Point(context.observations[:, -1, 0, 0, :2].float() / 255)

    def update(self, state: Point, actions: Tensor, observations: Tensor) -> Point:
        return Point(observations[:, 0, 0, :2].float() / 255)

    def step(self, state: Point, actions: Tensor, noise: Noise) -> tuple[Point, Outcome]:
        position = (state.position + 0.1 * actions + 0.01 * (noise.uniform(2) - 0.5)).clamp(-1, 1)
        never = torch.zeros(len(position), dtype=torch.bool)
        return Point(position), Outcome(-position.norm(dim=1), never, ~never)

    def tokens(self, state: Point) -> Tensor:
        return ((state.position + 1) * 7.5).long()

    def decode(self, state: Point) -> Tensor:
        pixels = ((state.position + 1) * 127).to(torch.uint8)
        return pixels.mean(dim=1, dtype=torch.float32).to(torch.uint8)[:, None, None, None].expand(-1, 3, 4, 4)

    def features(self, state: Point) -> Tensor:
        return state.position.clone()

    def stages(self) -> tuple[Stage, ...]:
        return ()


def point_checkpoint() -> Checkpoint:
    """A PointWorld as environments take it."""
    frames = torch.full((1, 1, 3, 4, 4), 128, dtype=torch.uint8)
    segment = Segment(
        frames, torch.zeros(1, 1, 2), torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool), torch.ones(1, 1).bool()
    )
    return Checkpoint(model=PointWorld(), contexts=segment, family="Point", config=None, card={}, path=Path("point"))


class Place(NamedTuple):
    """The state of a CorridorWorld."""

    place: Tensor  # (B,) int64


class CorridorWorld:
    """A corridor of `length` places from 0 on: 0 goes left, 1 right. Past its right end lies 1, past its left end 0.2.

    Both end the episode, so that with enough patience the optimum is to go right from everywhere; its return is 1. The
    features are the place as one of many, the token is the place, and the frame is bright there.
    """

    num_tokens = 1

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.num_features = self.vocabulary = length
        self.spec = WorldSpec(world="Corridor", observation_shape=(1, 4, 4 * length), actions=DiscreteActions(count=2))

    def observe(self, context: Segment) -> Place:
        return Place(self._find(context.observations[:, -1]))

    def update(self, state: Place, actions: Tensor, observations: Tensor) -> Place:
        return Place(self._find(observations))

    def step(self, state: Place, actions: Tensor, noise: Noise) -> tuple[Place, Outcome]:
        place = state.place + 2 * actions - 1
        left, right = place < 0, place >= self.length
        rewards = right.float() + 0.2 * left.float()
        return Place(place.clamp(0, self.length - 1)), Outcome(rewards, left | right, torch.ones_like(left))

    def tokens(self, state: Place) -> Tensor:
        return state.place[:, None]

    def decode(self, state: Place) -> Tensor:
        lit = torch.nn.functional.one_hot(state.place, self.length).to(torch.uint8) * 255
        return lit.repeat_interleave(4, 1)[:, None, None].expand(-1, 1, 4, -1)

    def features(self, state: Place) -> Tensor:
        return torch.nn.functional.one_hot(state.place, self.length).float()

    def stages(self) -> tuple[Stage, ...]:
        return ()

    def contexts(self, frames: int = 1) -> Segment:
        """A context for each place, in which nothing has moved."""
        steps = (self.length, frames)
        shown = self.decode(Place(torch.arange(self.length)))[:, None].expand(-1, frames, -1, -1, -1)
        flags = torch.zeros(steps, dtype=torch.bool)
        return Segment(shown.clone(), torch.zeros(steps, dtype=torch.int64), torch.zeros(steps), flags, ~flags)

    def _find(self, frames: Tensor) -> Tensor:
        return frames[:, 0, 0, ::4].argmax(-1)


class Cue(NamedTuple):
    """The state of a RecallWorld."""

    cue: Tensor  # (B,) int64
    age: Tensor  # (B,) int64


class RecallWorld:
    """Shows a cue of two in its first frame and never again: the second action must name it, for a reward of 1.

    The best that an agent without memory can earn is 0.5. The token is the cue plus one, then 0.
    """

    num_tokens = 1
    vocabulary = 3
    num_features = 1
    spec = WorldSpec(world="Recall", observation_shape=(1, 4, 4), actions=DiscreteActions(count=2))

    def observe(self, context: Segment) -> Cue:
        cue = (context.observations[:, -1, 0, 0, 0] // 100).long() - 1
        return Cue(cue, torch.zeros_like(cue))

    def update(self, state: Cue, actions: Tensor, observations: Tensor) -> Cue:
        return Cue(state.cue, state.age + 1)

    def step(self, state: Cue, actions: Tensor, noise: Noise) -> tuple[Cue, Outcome]:
        asked = state.age == 1
        rewards = (asked & (actions == state.cue)).float()
        return Cue(state.cue, state.age + 1), Outcome(rewards, asked, torch.ones_like(asked))

    def tokens(self, state: Cue) -> Tensor:
        return torch.where(state.age == 0, state.cue + 1, 0)[:, None]

    def decode(self, state: Cue) -> Tensor:
        return (100 * self.tokens(state)).to(torch.uint8)[:, :, None, None].expand(-1, 1, 4, 4)

    def features(self, state: Cue) -> Tensor:
        return self.tokens(state).float()

    def stages(self) -> tuple[Stage, ...]:
        return ()

    def contexts(self) -> Segment:
        """One context for each cue."""
        frames = torch.tensor([100, 200], dtype=torch.uint8)[:, None, None, None, None].expand(2, 1, 1, 4, 4)
        flags = torch.zeros(2, 1, dtype=torch.bool)
        return Segment(frames.clone(), torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1), flags, ~flags)
