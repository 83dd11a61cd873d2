"""The figures of a report: all that it states and that its plots show, from the returns of runs."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from report_published import normalise, published_scores
from report_statistics import AGGREGATES, Profile, Scores, aggregate, improvement, profile

from dreamenvs.evaluation.results import to_json
from dreamenvs.evaluation.statistics import RESAMPLES, Estimate, Samples, estimate_mean

THRESHOLDS = 101
"""Of a performance profile."""


class Curve(NamedTuple):
    """The learning curve of one run, both (points,)."""

    steps: Samples
    scores: Samples


class Figures(NamedTuple):
    """All that a report states, and its plots show."""

    unit: str
    """What aggregates and profiles are of: `return`, or `human-normalised score`."""
    returns: dict[str, dict[str, Estimate]]
    """The mean return over runs, by world and method."""
    runs: dict[str, dict[str, list[float]]]
    """The return of each run, by world and method."""
    aggregates: dict[str, dict[str, Estimate]]
    """By method and kind."""
    improvements: dict[str, dict[str, Estimate]]
    """The probability that the first method improves on the second."""
    profiles: dict[str, Profile]
    published: dict[str, dict[str, float]]
    """Returns that papers state, by world and method."""


def compute(scores: dict[str, dict[str, Samples]], resamples: int = RESAMPLES) -> Figures:
    """Every figure, from the scores by method and world; the bootstrap is seeded, so that it is always the same."""
    rng = np.random.default_rng(0)
    worlds = list(dict.fromkeys(world for each in scores.values() for world in each))
    by_world = {world: {m: each[world] for m, each in scores.items() if world in each} for world in worlds}
    returns = {w: {m: estimate_mean(s, rng, resamples) for m, s in each.items()} for w, each in by_world.items()}
    normalised = normalise(scores)
    used: dict[str, Scores] = dict(scores if normalised is None else normalised)
    pooled = np.concatenate([part for each in used.values() for part in each.values()])
    thresholds = np.linspace(min(0.0, pooled.min()), pooled.max(), THRESHOLDS)
    improvements: dict[str, dict[str, Estimate]] = {}
    for first, second in combinations(used, 2):
        if set(used[first]) & set(used[second]):
            value, low, high = improvement(used[first], used[second], rng, resamples)
            improvements.setdefault(first, {})[second] = Estimate(value, low, high)
            improvements.setdefault(second, {})[first] = Estimate(1 - value, 1 - high, 1 - low)
    return Figures(
        unit="return" if normalised is None else "human-normalised score",
        returns=returns,
        runs={world: {method: part.tolist() for method, part in each.items()} for world, each in by_world.items()},
        aggregates={
            method: {kind: aggregate(each, statistic, rng, resamples) for kind, statistic in AGGREGATES.items()}
            for method, each in used.items()
        },
        improvements=improvements,
        profiles={method: profile(each, thresholds, rng) for method, each in used.items()},
        published={world: known for world in worlds if (known := published_scores(world))},
    )


def to_plain(figures: Figures) -> Any:
    """For the results file."""
    plain = figures._asdict()
    plain["profiles"] = {
        method: {name: part.tolist() for name, part in each._asdict().items()}
        for method, each in figures.profiles.items()
    }
    return to_json(plain)
