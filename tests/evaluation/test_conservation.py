"""Conservation: what a game conserves is found by itself, and a dream that loses or doubles it is found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.conservation import build_counter, conservation, count_patches, find_conserved
from dreamenvs.random import Noise
from dreamenvs.types import Outcome
from tests.toy_worlds import CorridorWorld

LENGTH = 8


class Seen(NamedTuple):
    """Where somebody is, and how often."""

    place: Tensor  # (B,) int64
    shown: Tensor  # (B,) int64, how many are seen


class LeakyCorridor(CorridorWorld):
    """A corridor whose walker is now and then seen twice, or not at all, and for one step alone."""

    def __init__(self, doubled: float = 0.0, lost: float = 0.0) -> None:
        super().__init__(LENGTH)
        self.doubled, self.lost = doubled, lost

    def observe(self, context: Any) -> Seen:
        place = self._find(context.observations[:, -1])
        return Seen(place, torch.ones_like(place))

    def step(self, state: Seen, actions: Tensor, noise: Noise) -> tuple[Any, Outcome]:
        place = (state.place + 2 * actions - 1) % LENGTH
        chance = noise.uniform(1)[:, 0]
        shown = 1 + (chance < self.doubled).long() - (chance > 1 - self.lost).long()
        ends = noise.uniform(1, draw=1)[:, 0] < 0.02
        return Seen(place, shown), Outcome(ends.float() * 3, ends, torch.ones_like(ends))

    def decode(self, state: Seen) -> Tensor:  # type: ignore[override]
        one = torch.nn.functional.one_hot(state.place, LENGTH)
        other = torch.nn.functional.one_hot((state.place + 3) % LENGTH, LENGTH)
        lit = (one * (state.shown > 0)[:, None] + other * (state.shown > 1)[:, None]).to(torch.uint8) * 255
        return lit.repeat_interleave(4, 1)[:, None, None].expand(-1, 1, 4, -1)


def episodes(count: int = 6, steps: int = 50) -> list[Episode]:
    """Walks in which one is always seen, next to a lamp of two states that is nothing to conserve."""
    rng = np.random.default_rng(0)
    result = []
    for _ in range(count):
        places = (np.cumsum(rng.choice([-1, 1], steps + 1)) + 3) % LENGTH
        frames = np.zeros((steps + 1, 4, LENGTH, 4, 1), np.uint8)
        frames[np.arange(steps + 1), :, places] = 255
        flags = np.arange(steps) == steps - 1
        result.append(
            Episode(
                observations=frames.reshape(steps + 1, 4, 4 * LENGTH, 1),
                actions=rng.integers(0, 2, steps),
                rewards=np.zeros(steps, np.float32),
                terminated=flags,
                truncated=np.zeros(steps, bool),
            )
        )
    return result


def checkpoint(**leaks: float) -> Checkpoint:
    world = LeakyCorridor(**leaks)
    return Checkpoint(
        model=world, contexts=CorridorWorld(LENGTH).contexts(), family="Leaky", config=None, card={}, path=Path("leaky")
    )


def test_the_one_walker_is_found() -> None:
    real = episodes()
    counter = build_counter((1, 4, 4 * LENGTH), real)
    counts = [count_patches(counter, torch.from_numpy(np.moveaxis(e.observations, -1, 1).copy())) for e in real]
    found = find_conserved(counts)
    assert list(found.values()) == [(1, 1.0)]  # the empty places are too many to be a thing
    (walker,) = found
    assert counter.patches[walker].min() == 255


def test_an_honest_dream_conserves_it() -> None:
    result = conservation(checkpoint(), episodes(), rows=16, steps=3200)
    (walker,) = result.conserved
    assert walker.real == walker.dream == (0.0, 0.0, 0.0)
    assert result.strange == result.strange_real == 0
    assert result.dream.steps == 3200
    assert result.dream.ends.low < 2.0 < result.dream.ends.high
    assert result.dream.reward.mean == pytest.approx(3 * result.dream.ends.mean)


def test_doubling_and_losing_are_told_apart() -> None:
    result = conservation(checkpoint(doubled=0.08, lost=0.03), episodes(), rows=32, steps=9600)
    (walker,) = result.conserved
    assert walker.dream.more == pytest.approx(0.08, abs=0.015)
    assert walker.dream.fewer == pytest.approx(0.03, abs=0.01)
    assert walker.dream.frames_with_more == pytest.approx(0.08, abs=0.015)
    assert f"{walker.dream.more:.2%}" in result.table()
    assert result.to_json()["conserved"][0]["dream_more"] == pytest.approx(walker.dream.more, abs=1e-3)


def test_what_looks_like_nothing_real_is_counted() -> None:
    class Strange(LeakyCorridor):
        def decode(self, state: Seen) -> Tensor:  # type: ignore[override]
            frames = super().decode(state).clone()
            frames[:, :, :, :4] = 77
            return frames

    world = Strange()
    result = conservation(checkpoint()._replace(model=world), episodes(), rows=8, steps=160)
    assert result.strange == pytest.approx(1 / LENGTH)
