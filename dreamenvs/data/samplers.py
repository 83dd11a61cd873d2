"""Rules that choose which excerpts of which episodes a batch is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Counters = Mapping[str, NDArray[np.int64]]


class Sampler(Protocol):
    """Chooses excerpts. What it remembers from batch to batch is in its counters, so that a resumed fit goes on."""

    def draw(
        self, lengths: NDArray[np.int64], rows: int, length: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Episodes (rows,) and the first steps (rows,) of excerpts of `length` steps in them.

        `lengths` are the steps of every episode; from one call to the next, episodes may only be added at the end.
        """
        ...

    def counters(self) -> dict[str, NDArray[np.int64]]:
        """A copy of what the sampler remembers."""
        ...

    def restore(self, counters: Counters) -> None:
        """Go on from what `counters` returned."""
        ...


class UniformSampler:
    """Every step of every episode is equally likely.

    A step is drawn uniformly from all steps and falls on a uniformly drawn place of the segment, which is then moved
    inside its episode. With uniform starts instead, the last step, the only one that terminates, would come up in one
    segment of an episode where a middle step comes up in `length` of them.
    """

    def draw(
        self, lengths: NDArray[np.int64], rows: int, length: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Uniform over all steps."""
        chosen, steps = uniform_places(lengths, rows, rng)
        return chosen, _place(steps, lengths[chosen], length, rng)

    def counters(self) -> dict[str, NDArray[np.int64]]:
        """Nothing is counted."""
        return {}

    def restore(self, counters: Counters) -> None:
        """Nothing was counted."""
        _check_names(counters, ())


class CountSampler:
    """Episodes that were used less come first: P ∝ (1 / (1 + count))^alpha (Δ-IRIS, appendix A.4).

    Inside the episode the step is uniform, as in `UniformSampler`.
    """

    def __init__(self, alpha: float = 5.0) -> None:
        if not 0 <= alpha < 100:
            raise ValueError(f"alpha must be from 0 (every episode alike) to 100, not {alpha}")
        self.alpha = alpha
        self._counts = np.zeros(0, np.int64)
        """How many segments each episode has given."""

    def draw(
        self, lengths: NDArray[np.int64], rows: int, length: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """By inverse counts; the batch is drawn with replacement and counted afterwards."""
        self._counts = _grow(self._counts, len(lengths), "episodes")
        # Relative to the least used episode, so that no power underflows to zero everywhere.
        weights = ((1.0 + self._counts.min()) / (1.0 + self._counts)) ** self.alpha
        chosen = _weighted(weights, rows, rng)
        steps = rng.integers(lengths[chosen])
        np.add.at(self._counts, chosen, 1)
        return chosen, _place(steps, lengths[chosen], length, rng)

    def counters(self) -> dict[str, NDArray[np.int64]]:
        """How many segments each episode has given."""
        return {"episodes": self._counts.copy()}

    def restore(self, counters: Counters) -> None:
        """Go on from earlier counts."""
        self._counts = _check_names(counters, ("episodes",))[0]


class FrequencySampler:
    """Steps that were used less come first: P ∝ softmax(-count / temperature) (DRAMA's rule for its world model).

    DRAMA counts the starts of segments, which there cross episodes. Here they do not, and equally frequent starts would
    starve both ends of an episode; hence the counted step falls on a random place, as in `UniformSampler`.
    """

    def __init__(self, temperature: float = 10.0) -> None:
        if not temperature > 0:
            raise ValueError(f"the temperature must be positive, not {temperature}; large values are nearly uniform")
        self.temperature = temperature
        self._counts = np.zeros(0, np.int64)
        """How often each step, over all episodes one after the other, was drawn."""

    def draw(
        self, lengths: NDArray[np.int64], rows: int, length: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """By the softmax over all steps; the batch is drawn with replacement and counted afterwards."""
        ends = np.cumsum(lengths)
        self._counts = _grow(self._counts, int(ends[-1]), "steps")
        weights = np.exp((self._counts.min() - self._counts) / self.temperature)
        drawn = _weighted(weights, rows, rng)
        np.add.at(self._counts, drawn, 1)
        chosen = np.searchsorted(ends, drawn, side="right")
        return chosen, _place(drawn - (ends - lengths)[chosen], lengths[chosen], length, rng)

    def counters(self) -> dict[str, NDArray[np.int64]]:
        """How often each step was drawn."""
        return {"steps": self._counts.copy()}

    def restore(self, counters: Counters) -> None:
        """Go on from earlier counts."""
        self._counts = _check_names(counters, ("steps",))[0]


def uniform_places(
    places: NDArray[np.int64], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(count,) episodes and places in them, uniform over all places of all episodes."""
    ends = np.cumsum(places)
    drawn = rng.integers(ends[-1], size=count)
    chosen = np.searchsorted(ends, drawn, side="right")
    return chosen, drawn - (ends - places)[chosen]


def _place(
    steps: NDArray[np.int64], lengths: NDArray[np.int64], length: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Starts that put the steps on random places of segments, moved inside their episodes."""
    places = rng.integers(length, size=len(steps))
    starts: NDArray[np.int64] = np.clip(steps - places, 0, np.maximum(lengths - length, 0))
    return starts


def _weighted(weights: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count,) indices by weight, by inverse CDF."""
    cumulative = np.cumsum(weights)
    drawn: NDArray[np.int64] = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
    return np.minimum(drawn, len(weights) - 1)


def _grow(counts: NDArray[np.int64], size: int, noun: str) -> NDArray[np.int64]:
    """The counts with zeros for what was added."""
    if size < len(counts):
        raise ValueError(f"the counters are of {len(counts)} {noun}, but there are {size}: {noun} may only be added")
    return np.concatenate([counts, np.zeros(size - len(counts), np.int64)]) if size > len(counts) else counts


def _check_names(counters: Counters, names: tuple[str, ...]) -> list[NDArray[np.int64]]:
    if set(counters) != set(names):
        raise ValueError(f"these are counters of another sampler: {sorted(counters)}, not {sorted(names)}")
    return [np.array(counters[name], np.int64) for name in names]
