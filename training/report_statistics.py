"""Figures over many runs, as Agarwal et al. (2021) advise: aggregates with stratified bootstrap intervals, performance
profiles, and the probability that one method improves on another.

The scores of a method are one array (runs,) per world. Resampling draws runs within each world and keeps the worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dreamenvs.evaluation.statistics import LEVEL, RESAMPLES, Estimate, Samples, estimate

Scores = Mapping[str, Samples]
"""The scores of one method, (runs,) by world."""
Resampled = Sequence[NDArray[np.float64]]
"""(resamples, runs) by world."""


class Profile(NamedTuple):
    """The share of runs that score more than each threshold, with its interval; all (thresholds,)."""

    thresholds: Samples
    share: Samples
    low: Samples
    high: Samples


def mean(scores: Resampled) -> Samples:
    """Over worlds, of the mean over runs."""
    return world_means(scores).mean(1)


def median(scores: Resampled) -> Samples:
    """Over worlds, of the mean over runs."""
    return np.median(world_means(scores), axis=1)


def iqm(scores: Resampled) -> Samples:
    """The interquartile mean over all runs of all worlds: a quarter of them, rounded down, is cut off at either end."""
    pooled = np.sort(np.concatenate(list(scores), axis=1), axis=1)
    cut = pooled.shape[1] // 4
    return pooled[:, cut : pooled.shape[1] - cut].mean(1)


AGGREGATES: Mapping[str, Callable[[Resampled], Samples]] = {"mean": mean, "median": median, "IQM": iqm}


def world_means(scores: Resampled) -> NDArray[np.float64]:
    """(resamples, worlds)"""
    return np.stack([part.mean(1) for part in scores], axis=1)


def aggregate(
    scores: Scores, statistic: Callable[[Resampled], Samples], rng: np.random.Generator, resamples: int = RESAMPLES
) -> Estimate:
    """An aggregate of all runs and its interval, which is NaN where no world has two runs."""
    value = float(statistic([part[None] for part in scores.values()])[0])
    return estimate(value, statistic(resample(scores, rng, resamples)), max(map(len, scores.values())))


def profile(scores: Scores, thresholds: Samples, rng: np.random.Generator, resamples: int = 500) -> Profile:
    """The distribution of scores over all runs, from above."""

    def shares(pooled: NDArray[np.float64]) -> NDArray[np.float64]:  # (resamples, runs) to (resamples, thresholds)
        return np.stack([(pooled > threshold).mean(1) for threshold in thresholds], axis=1)

    resampled = shares(np.concatenate(resample(scores, rng, resamples), axis=1))
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Profile(thresholds, shares(np.concatenate(list(scores.values()))[None])[0], low, high)


def improvement(first: Scores, second: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """The probability that a run of `first` beats one of `second` in a world, ties counting half; over worlds."""
    worlds = [world for world in first if world in second]
    first, second = ({world: scores[world] for world in worlds} for scores in (first, second))

    def probability(one: Resampled, other: Resampled) -> Samples:
        parts = [
            (np.sign(a[:, :, None] - b[:, None, :]) / 2 + 0.5).mean((1, 2)) for a, b in zip(one, other, strict=True)
        ]
        return np.mean(parts, axis=0)

    value = float(probability([a[None] for a in first.values()], [b[None] for b in second.values()])[0])
    resampled = probability(resample(first, rng, resamples), resample(second, rng, resamples))
    return estimate(value, resampled, max(map(len, [*first.values(), *second.values()])))


def resample(scores: Scores, rng: np.random.Generator, resamples: int) -> list[NDArray[np.float64]]:
    """Runs drawn with replacement within each world, (resamples, runs) by world."""
    return [part[rng.integers(len(part), size=(resamples, len(part)))] for part in scores.values()]
