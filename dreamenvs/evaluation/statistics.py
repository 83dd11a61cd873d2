"""Bootstrap intervals: how far a mean over episodes could be off, with no assumption about how returns are spread."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float64]  # (N,)

LEVEL = 0.95
RESAMPLES = 5_000
_AT_ONCE = 2**20


class Estimate(NamedTuple):
    """A mean and its percentile bootstrap interval at `LEVEL`; the interval of one sample is NaN."""

    mean: float
    low: float
    high: float


def estimate_mean(samples: Samples, rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """The mean of independent samples (N,)."""
    means = resampled_means(samples, rng, resamples)
    return estimate(float(samples.mean()), means, len(samples))


def estimate_gap(first: Samples, second: Samples, rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """The mean of `first` (N,) minus that of `second` (M,), drawn independently of each other."""
    means = resampled_means(first, rng, resamples) - resampled_means(second, rng, resamples)
    return estimate(float(first.mean() - second.mean()), means, min(len(first), len(second)))


def resampled_means(samples: Samples, rng: np.random.Generator, resamples: int = RESAMPLES) -> Samples:
    """(resamples, …) means of as many samples (N, …), drawn with replacement; computed in parts of bounded size."""
    if not len(samples):
        raise ValueError("there is nothing to estimate a mean from: no samples")
    part = max(1, _AT_ONCE // samples.size)
    sizes = [min(part, resamples - begun) for begun in range(0, resamples, part)]
    return np.concatenate([samples[rng.integers(len(samples), size=(size, len(samples)))].mean(1) for size in sizes])


def estimate(value: float, resampled: Samples, count: int) -> Estimate:
    """A figure of `count` samples with the percentile interval of the same figure of resampled ones (resamples,)."""
    if count < 2:
        return Estimate(value, float("nan"), float("nan"))
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))
