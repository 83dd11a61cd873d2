"""The figures of a report: all that it states and that its plots show, from the returns of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dreamenvs.evaluation.results import to_json
from dreamenvs.evaluation.statistics import (
    LEVEL,
    RESAMPLES,
    Estimate,
    Profile,
    Samples,
    aggregate,
    estimate_gap,
    estimate_mean,
    performance_profile,
    probability_of_improvement,
)
from dreamenvs.evaluation.statistics import Scores as Matrix
from dreamenvs.studies.report.published import Cited, CitedCurve, cite, cite_curve, normalizable, normalize
from dreamenvs.studies.study import Claim

Returns = Mapping[str, Mapping[str, Mapping[int, float]]]
"""The return of each run, by method, world and seed."""
THRESHOLDS = 101
"""Of a performance profile."""
DEALS = 200_000
"""Ways of dealing runs out that are counted at most; with ten runs each there are 184,756."""
KINDS = ("mean", "median", "iqm", "optimality_gap")


class Curve(NamedTuple):
    """The learning curve of one run, both (points,)."""

    steps: Samples
    scores: Samples


class Comparison(NamedTuple):
    """What became of a claim."""

    text: str
    first: str
    second: str
    measure: str
    differences: dict[str, Estimate]
    """By world: the first's mean minus the second's."""
    chance: float
    """How often runs that were dealt out to the two at random, world by world, would differ as much."""
    verdict: str
    """`holds` or `does not hold` where that is seldom, and `undecided` otherwise."""


class Figures(NamedTuple):
    """All that a report states, and its plots show."""

    unit: str
    """What aggregates, profiles and improvements are of: `return`, or `human-normalised score`."""
    runs: dict[str, dict[str, dict[int, float]]]
    """The return of each run, by world, method and seed."""
    returns: dict[str, dict[str, Estimate]]
    """The mean over runs, by world and method."""
    measures: dict[str, dict[str, dict[str, Estimate]]]
    """The means of other numbers over runs, by world, method and name."""
    claims: list[Comparison]
    seeds: dict[str, list[int]]
    """By method, those that are finished in every world: the figures that follow are of them."""
    aggregates: dict[str, dict[str, Estimate]]
    """By method and kind."""
    improvements: dict[str, dict[str, Estimate]]
    """The probability that the first method improves on the second."""
    profiles: dict[str, Profile]
    published: dict[str, dict[str, Cited]]
    """By world and method of a paper."""
    published_curves: dict[str, dict[str, CitedCurve]]
    published_aggregates: dict[str, dict[str, float]]
    """Of a paper's scores in the worlds of the study, where it has all of them; by method and kind."""


def compute(
    runs: Returns,
    worlds: Sequence[str],
    families: Sequence[str],
    resamples: int = RESAMPLES,
    measures: Mapping[str, Returns] | None = None,
    claims: Sequence[Claim] = (),
) -> Figures:
    """Every figure; the bootstrap is seeded, so that it is always the same."""
    rng, measures = np.random.default_rng(0), measures or {}
    by_world = {w: {m: dict(sorted(each[w].items())) for m, each in runs.items() if w in each} for w in worlds}
    returns = {
        world: {m: estimate_mean(np.array(list(s.values())), rng, resamples) for m, s in each.items()}
        for world, each in by_world.items()
    }
    seeds = {method: complete(each, worlds) for method, each in runs.items()}
    human = normalizable(worlds)
    matrices = {m: matrix(runs[m], worlds, seeds[m], human=human) for m in runs if seeds[m]}
    cited = {w: {c.method: c for family in families if (c := cite(family, w)) is not None} for w in worlds}
    curves = {w: {k.method: k for family in families if (k := cite_curve(family, w)) is not None} for w in worlds}
    return Figures(
        unit="human-normalised score" if human else "return",
        runs={world: each for world, each in by_world.items() if each},
        returns={world: each for world, each in returns.items() if each},
        measures=_measures(measures, worlds, list(runs), rng, resamples),
        claims=[
            _compare(claim, {"return": runs, **measures}[claim.measure], worlds, rng, resamples) for claim in claims
        ],
        seeds=seeds,
        aggregates={m: _aggregates(each, rng, resamples, human=human) for m, each in matrices.items()},
        improvements=_improvements(matrices, rng, resamples),
        profiles=_profiles(matrices, rng, resamples),
        published={world: each for world, each in cited.items() if each},
        published_curves={world: each for world, each in curves.items() if each},
        published_aggregates=_published_aggregates(cited) if human else {},
    )


def complete(runs: Mapping[str, Mapping[int, float]], worlds: Sequence[str]) -> list[int]:
    """The seeds that are finished in every world: an aggregate over others would be of easier or harder worlds."""
    return sorted(set.intersection(*(set(runs.get(world, {})) for world in worlds)))


def matrix(
    runs: Mapping[str, Mapping[int, float]], worlds: Sequence[str], seeds: Sequence[int], *, human: bool
) -> Matrix:
    """(R, M) scores, normalised where there are human players."""
    returns = np.array([[runs[world][seed] for world in worlds] for seed in seeds], np.float64)
    return normalize(returns, worlds) if human else returns


def to_plain(figures: Figures) -> Any:
    """For the results file."""
    plain = figures._asdict()
    plain["profiles"] = {
        method: {name: part.tolist() for name, part in each._asdict().items()}
        for method, each in figures.profiles.items()
    }
    return to_json(plain)


def _aggregates(scores: Matrix, rng: np.random.Generator, resamples: int, *, human: bool) -> dict[str, Estimate]:
    found = aggregate(scores, rng, resamples)
    # What a run falls short of 1 means something where 1 is what people earn.
    return {kind: getattr(found, kind) for kind in KINDS if human or kind != "optimality_gap"}


def _measures(
    measures: Mapping[str, Returns],
    worlds: Sequence[str],
    methods: Sequence[str],
    rng: np.random.Generator,
    resamples: int,
) -> dict[str, dict[str, dict[str, Estimate]]]:
    found: dict[str, dict[str, dict[str, Estimate]]] = {}
    for world, method in product(worlds, methods):
        known = {name: _numbers(each, method, world) for name, each in measures.items()}
        means = {name: estimate_mean(each, rng, resamples) for name, each in known.items() if len(each)}
        if means:
            found.setdefault(world, {})[method] = means
    return found


def _compare(
    claim: Claim, numbers: Returns, worlds: Sequence[str], rng: np.random.Generator, resamples: int
) -> Comparison:
    known = {w: (_numbers(numbers, claim.first, w), _numbers(numbers, claim.second, w)) for w in worlds}
    pairs = {world: pair for world, pair in known.items() if all(map(len, pair))}
    differences = {world: estimate_gap(*pair, rng, resamples) for world, pair in pairs.items()}
    won, chance = permutation_test(list(pairs.values()))
    favoured = won < 0 if claim.less else won > 0
    verdict = "undecided" if chance > 1 - LEVEL else "holds" if favoured else "does not hold"
    return Comparison(claim.text, claim.first, claim.second, claim.measure, differences, chance, verdict)


def permutation_test(pairs: Sequence[tuple[Samples, Samples]]) -> tuple[int, float]:
    """Pairs of runs that the first won less those that it lost, over all worlds, and how often chance is as far from 0.

    Exact: every way of dealing the runs of a world out to the two is counted, or `DEALS` of them where there are more,
    and worlds are independent. Bootstrap intervals of three runs are too narrow for a verdict.
    """
    won, spread = 0, {0: 1.0}
    for first, second in pairs:
        pooled = np.concatenate([first, second])
        beats = np.sign(pooled[:, None] - pooled[None]).astype(np.int64)
        dealt = _deals(len(pooled), len(first))
        # What a side wins inside itself, it loses as well.
        outcomes, counts = np.unique(beats.sum(1)[dealt].sum(1), return_counts=True)
        won += int(beats[: len(first)].sum())
        each = dict(zip(outcomes.tolist(), (counts / len(dealt)).tolist(), strict=True))
        both: dict[int, float] = {}
        for (before, chance), (outcome, share) in product(spread.items(), each.items()):
            both[before + outcome] = both.get(before + outcome, 0.0) + chance * share
        spread = both
    return won, sum(chance for outcome, chance in spread.items() if abs(outcome) >= abs(won))


def _deals(runs: int, own: int) -> NDArray[np.int64]:
    """(ways, own) choices of so many runs out of all."""
    if math.comb(runs, own) <= DEALS:
        return np.array(list(combinations(range(runs), own)))
    rng = np.random.default_rng(0)
    return rng.permuted(np.tile(np.arange(runs), (DEALS, 1)), axis=1)[:, :own]


def _numbers(numbers: Returns, method: str, world: str) -> Samples:
    return np.array(list(numbers.get(method, {}).get(world, {}).values()), np.float64)


def _improvements(
    matrices: Mapping[str, Matrix], rng: np.random.Generator, resamples: int
) -> dict[str, dict[str, Estimate]]:
    found: dict[str, dict[str, Estimate]] = {}
    for first, second in combinations(matrices, 2):
        value, low, high = probability_of_improvement(matrices[first], matrices[second], rng, resamples)
        found.setdefault(first, {})[second] = Estimate(value, low, high)
        found.setdefault(second, {})[first] = Estimate(1 - value, 1 - high, 1 - low)
    return found


def _profiles(matrices: Mapping[str, Matrix], rng: np.random.Generator, resamples: int) -> dict[str, Profile]:
    if not matrices:
        return {}
    pooled = np.concatenate([scores.ravel() for scores in matrices.values()])
    thresholds = np.linspace(min(0.0, pooled.min()), pooled.max(), THRESHOLDS)
    return {method: performance_profile(scores, thresholds, rng, resamples) for method, scores in matrices.items()}


def _published_aggregates(cited: Mapping[str, Mapping[str, Cited]]) -> dict[str, dict[str, float]]:
    """The mean and the median; what needs single runs, papers do not let anybody compute."""
    found = {}
    for method in dict.fromkeys(name for each in cited.values() for name in each):
        scores = [each[method].normalized for each in cited.values() if method in each]
        known = [score for score in scores if score is not None]
        if len(known) == len(cited):
            found[method] = {"mean": float(np.mean(known)), "median": float(np.median(known))}
    return found
