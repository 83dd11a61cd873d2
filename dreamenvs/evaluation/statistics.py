"""Bootstrap intervals of means over episodes, and aggregates over runs and tasks (Agarwal et al., 2021).

Nothing is assumed about how returns are spread. Scores are (…, R, M): R runs of each of M tasks, normalised so that
tasks can be put together. A resample draws as many runs of each task with replacement, and never another task: the
tasks of a benchmark are no random choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dreamenvs.evaluation.results import text_table, to_json

Samples = NDArray[np.float64]  # (N,)
Scores = NDArray[np.float64]  # (…, R, M)
Values = NDArray[np.float64]
Figure = Callable[[Scores], Values]
"""(…) of scores (…, R, M)."""

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


class Aggregates(NamedTuple):
    """What the scores of a method come to."""

    mean: Estimate
    median: Estimate
    iqm: Estimate
    optimality_gap: Estimate
    runs: int
    tasks: int

    def to_json(self) -> dict[str, Any]:
        """For a card or a file."""
        figures = {name: to_json(getattr(self, name)) for name in FIGURES}
        return {"aggregates": figures, "setting": {"runs": self.runs, "tasks": self.tasks, "interval": INTERVAL}}

    def table(self) -> str:
        """The figures for people."""
        rows = [[name.replace("_", " "), *getattr(self, name)] for name in FIGURES]
        return f"{text_table(['', 'value', 'low', 'high'], rows)}\n{self.runs} runs of {self.tasks} tasks; {INTERVAL}"


class Profile(NamedTuple):
    """A performance profile: the share of runs above each threshold, averaged over tasks, and its interval."""

    thresholds: Values  # (P,)
    shares: Values  # (P,)
    low: Values  # (P,), NaN for single runs
    high: Values  # (P,)


def human_normalized(returns: Scores, random: Values | Sequence[float], human: Values | Sequence[float]) -> Scores:
    """Scores (…, M) of returns (…, M): 0 is what random actions earn (M,), 1 what people do (M,)."""
    low, high = np.asarray(random, np.float64), np.asarray(human, np.float64)
    if (low == high).any():
        raise ValueError("a task in which people earn what random actions do has no normalised score")
    scores: Scores = (np.asarray(returns, np.float64) - low) / (high - low)
    return scores


def mean(scores: Scores) -> Values:
    """Over all runs and tasks."""
    values: Values = scores.mean((-2, -1))
    return values


def median(scores: Scores) -> Values:
    """Over tasks, of each task's mean over its runs."""
    values: Values = np.median(scores.mean(-2), axis=-1)
    return values


def iqm(scores: Scores) -> Values:
    """The interquartile mean: over runs of all tasks together, without the lowest and the highest quarter.

    Where the number of runs is no multiple of four, a quarter is rounded down, as in scipy's `trim_mean`.
    """
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    values: Values = flat[..., cut : flat.shape[-1] - cut].mean(-1)
    return values


def optimality_gap(scores: Scores, target: float = 1.0) -> Values:
    """How far runs fall short of the target γ, on average; what is beyond it does not make up for what is below."""
    values: Values = target - np.minimum(scores, target).mean((-2, -1))
    return values


def superhuman(scores: Scores) -> NDArray[np.int64]:
    """In how many tasks the mean over runs is above 1."""
    counts: NDArray[np.int64] = (scores.mean(-2) > 1).sum(-1)
    return counts


FIGURES: dict[str, Figure] = {"mean": mean, "median": median, "iqm": iqm, "optimality_gap": optimality_gap}
INTERVAL = f"{LEVEL:.0%} percentile bootstrap over runs within tasks, {RESAMPLES:,} resamples"


def aggregate(scores: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> Aggregates:
    """Mean, median, IQM and optimality gap of normalised scores (R, M), all of the same resamples."""
    scores = _checked(scores)
    drawn: dict[str, list[Values]] = {name: [] for name in FIGURES}
    for part in _resampled(scores, rng, resamples):
        for name, figure in FIGURES.items():
            drawn[name].append(figure(part))
    runs, tasks = scores.shape
    estimates = {
        name: estimate(float(figure(scores)), np.concatenate(drawn[name]), runs) for name, figure in FIGURES.items()
    }
    return Aggregates(**estimates, runs=runs, tasks=tasks)


def estimate_figure(scores: Scores, figure: Figure, rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """Any figure of scores (R, M), such as `iqm` or `partial(optimality_gap, target=2.0)`, with its interval."""
    scores = _checked(scores)
    drawn = np.concatenate([figure(part) for part in _resampled(scores, rng, resamples)])
    return estimate(float(figure(scores)), drawn, len(scores))


def performance_profile(
    scores: Scores, thresholds: Values | Sequence[float], rng: np.random.Generator, resamples: int = RESAMPLES
) -> Profile:
    """The share of runs of scores (R, M) above each of the thresholds (P,)."""
    scores, levels = _checked(scores), np.asarray(thresholds, np.float64)
    if levels.ndim != 1 or not levels.size or not np.isfinite(levels).all():
        raise ValueError(f"thresholds are a list of finite numbers, not {thresholds}")
    above = (scores[..., None] > levels).astype(np.float64)  # (R, M, P)
    runs, tasks = scores.shape
    # Runs are drawn by how often each comes up: a task's share is then a product, and no score is compared again.
    drawn = []
    for counts in _counts(runs, tasks, rng, resamples, size=(runs + len(levels)) * tasks):
        drawn.append(np.einsum("brm,rmp->bp", counts, above, optimize=True) / (runs * tasks))
    low, high = np.quantile(np.concatenate(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    if runs < 2:
        low, high = np.full((2, len(levels)), np.nan)
    return Profile(levels, above.mean((0, 1)), low, high)


def probability_of_improvement(
    first: Scores, second: Scores, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Estimate:
    """P(X > Y): how likely a run of `first` (R, M) is above one of `second` (S, M), averaged over the tasks.

    Runs that are equal count half. Both methods' runs are resampled, each on its own.
    """
    first, second = _checked(first), _checked(second)
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"both methods need the same tasks, not {first.shape[1]} and {second.shape[1]} of them")
    x, y = first.T[:, :, None], second.T[:, None, :]
    wins = (x > y) + 0.5 * (x == y)  # (M, R, S)
    (runs, tasks), others = first.shape, len(second)
    pairs, size = runs * others * tasks, max(runs, others) * tasks
    drawn = []
    for counts, weights in zip(
        _counts(runs, tasks, rng, resamples, size=size),
        _counts(others, tasks, rng, resamples, size=size),
        strict=True,
    ):
        against = counts.transpose(2, 0, 1) @ wins  # (M, b, S)
        drawn.append((against * weights.transpose(2, 0, 1)).sum((0, 2)) / pairs)
    return estimate(float(wins.mean()), np.concatenate(drawn), min(runs, others))


def _checked(scores: Scores) -> Scores:
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"scores are (runs, tasks) with one of each at least, not {scores.shape}")
    if not np.isfinite(scores).all():
        run, task = np.argwhere(~np.isfinite(scores))[0].tolist()
        raise ValueError(f"the score of run {run} in task {task} is {scores[run, task]}: leave such a task out")
    return scores


def _resampled(scores: Scores, rng: np.random.Generator, resamples: int) -> Iterator[Scores]:
    """Parts (b, R, M) of all resamples, of bounded size."""
    for size in _parts(resamples, scores.size):
        drawn = rng.integers(len(scores), size=(size, *scores.shape))
        yield np.take_along_axis(scores[None], drawn, axis=1)


def _counts(runs: int, tasks: int, rng: np.random.Generator, resamples: int, *, size: int) -> Iterator[Values]:
    """Parts (b, R, M) of how often each run of each task is drawn; `size` numbers are needed for one resample."""
    for count in _parts(resamples, size):
        drawn = rng.multinomial(runs, [1 / runs] * runs, size=(count, tasks))
        yield drawn.transpose(0, 2, 1).astype(np.float64)


def _parts(resamples: int, size: int) -> list[int]:
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}")
    part = max(1, _AT_ONCE // size)
    return [min(part, resamples - begun) for begun in range(0, resamples, part)]
