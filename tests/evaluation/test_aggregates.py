"""Aggregates worked out by hand, and their intervals against loops over resamples."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from dreamenvs.evaluation import statistics
from dreamenvs.evaluation.statistics import (
    aggregate,
    estimate_figure,
    human_normalized,
    iqm,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    superhuman,
)

# Two runs (rows) of four tasks (columns).
SCORES = np.array([[0.0, 0.5, 1.0, 4.0], [0.2, 0.7, 2.0, 8.0]])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_by_hand() -> None:
    assert mean(SCORES) == pytest.approx(16.4 / 8)
    assert median(SCORES) == pytest.approx((0.6 + 1.5) / 2)  # of the means 0.1, 0.6, 1.5 and 6
    assert iqm(SCORES) == pytest.approx((0.5 + 0.7 + 1.0 + 2.0) / 4)  # without 0, 0.2, 4 and 8
    assert optimality_gap(SCORES) == pytest.approx(1 - (0 + 0.5 + 1 + 1 + 0.2 + 0.7 + 1 + 1) / 8)
    assert optimality_gap(SCORES, target=2.0) == pytest.approx(2 - (0 + 0.5 + 1 + 2 + 0.2 + 0.7 + 2 + 2) / 8)
    assert superhuman(SCORES) == 2


def test_quarters_are_rounded_down() -> None:
    assert iqm(np.array([[0.0, 1.0, 2.0, 100.0, -50.0, 3.0]])) == pytest.approx((0 + 1 + 2 + 3) / 4)
    assert iqm(np.array([[1.0, 2.0, 9.0]])) == pytest.approx(4)


def test_the_median_is_over_tasks_and_the_iqm_over_runs() -> None:
    """One run of three excels in every task: the median of means moves with it, the IQM leaves it out."""
    scores = np.array([[0.0] * 4, [0.0] * 4, [9.0] * 4])
    assert median(scores) == 3
    assert iqm(scores) == pytest.approx(9 / 6)  # twelve runs, of which the six in the middle hold one of the nines


def test_normalised_scores() -> None:
    scores = human_normalized(np.array([[10.0, -20.7], [30.0, 14.6]]), [10.0, -20.7], [20.0, 14.6])
    assert scores.tolist() == [pytest.approx([0, 0]), pytest.approx([2, 1])]
    with pytest.raises(ValueError, match="random actions do"):
        human_normalized(np.ones(2), [1.0, 2.0], [3.0, 2.0])


def naive(figure: str, scores: NDArray[np.float64]) -> float:
    """Straight from the definitions, in plain Python."""
    runs = [float(value) for value in scores.flatten()]
    if figure == "mean":
        return sum(runs) / len(runs)
    if figure == "median":
        means = sorted(sum(task) / len(task) for task in scores.T.tolist())
        return (means[(len(means) - 1) // 2] + means[len(means) // 2]) / 2
    if figure == "iqm":
        cut = int(0.25 * len(runs))
        kept = sorted(runs)[cut : len(runs) - cut]
        return sum(kept) / len(kept)
    return 1 - sum(min(value, 1) for value in runs) / len(runs)


@pytest.mark.parametrize("figure", list(statistics.FIGURES))
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (5, 26), (4, 3)])
def test_figures_against_plain_python(figure: str, shape: tuple[int, int]) -> None:
    scores = rng().normal(0.8, 1.0, (6, *shape))
    expected = [naive(figure, part) for part in scores]
    assert statistics.FIGURES[figure](scores).tolist() == pytest.approx(expected)


def test_intervals_against_a_loop_over_resamples() -> None:
    scores = rng(1).normal(0.8, 1.0, (4, 5))
    found = aggregate(scores, rng(), resamples=200)
    drawn = rng().integers(4, size=(200, 4, 5))
    for name in statistics.FIGURES:
        values = []
        for indices in drawn:
            resample = np.array([[scores[indices[run, task], task] for task in range(5)] for run in range(4)])
            values.append(naive(name, resample))
        expected = (naive(name, scores), np.quantile(values, 0.025), np.quantile(values, 0.975))
        assert getattr(found, name) == pytest.approx(expected), name
    assert (found.runs, found.tasks) == (4, 5)
    assert estimate_figure(scores, iqm, rng(), 200) == found.iqm
    wide = estimate_figure(scores, partial(optimality_gap, target=2.0), rng(), 200)
    assert wide.mean == pytest.approx(float(optimality_gap(scores, 2.0)))


def test_a_resample_never_mixes_tasks() -> None:
    """Runs that agree within each task leave no doubt, however far apart the tasks are."""
    scores = np.tile([0.0, 1.0, 50.0], (4, 1))
    for value, low, high in aggregate(scores, rng(), resamples=50)[:4]:
        assert low == high == pytest.approx(value)
    assert probability_of_improvement(scores, scores - 1, rng(), resamples=50) == (1, 1, 1)


def test_the_mean_has_the_normal_interval() -> None:
    scores = rng().normal(0.0, 1.0, (50, 8)) + 10 * np.arange(8)
    found = aggregate(scores, rng()).mean
    half = 1.96 * math.sqrt(scores.var(0).mean() / 50 / 8)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.05)


def test_profiles_by_hand_and_against_a_loop() -> None:
    found = performance_profile(SCORES, [-1.0, 0.0, 0.5, 1.0, 8.0], rng(), resamples=40)
    assert found.shares.tolist() == [1, 7 / 8, 5 / 8, 3 / 8, 0]
    drawn = rng().multinomial(2, [0.5, 0.5], size=(40, 4))
    shares = []
    for counts in drawn:
        resample = [SCORES[run, task] for task in range(4) for run in range(2) for _ in range(counts[task, run])]
        shares.append([sum(score > level for score in resample) / 8 for level in found.thresholds])
    assert found.low.tolist() == pytest.approx(np.quantile(shares, 0.025, axis=0).tolist())
    assert found.high.tolist() == pytest.approx(np.quantile(shares, 0.975, axis=0).tolist())
    single = performance_profile(SCORES[:1], [0.1], rng(), resamples=3)
    assert single.shares.tolist() == [3 / 4]
    assert np.isnan(single.low).all()
    with pytest.raises(ValueError, match="finite numbers"):
        performance_profile(SCORES, [float("nan")], rng())


def test_the_area_under_a_profile_is_the_mean() -> None:
    scores = rng().uniform(0, 3, (5, 6))
    levels = np.linspace(0, 3, 20_001)
    found = performance_profile(scores, levels, rng(), resamples=2)
    assert found.shares.sum() * (levels[1] - levels[0]) == pytest.approx(scores.mean(), abs=1e-3)


def test_probability_of_improvement_by_hand() -> None:
    first, second = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[1.0, 1.0], [2.0, 1.0], [4.0, 0.0]])
    # Task 1: 1 against 1, 2, 4 gives ½; 3 against them gives 2. Task 2: each 0 ties with one of three.
    assert probability_of_improvement(first, second, rng()).mean == pytest.approx((2.5 / 6 + 1 / 6) / 2)
    assert probability_of_improvement(second, first, rng()).mean == pytest.approx(1 - (2.5 / 6 + 1 / 6) / 2)
    assert probability_of_improvement(first, first, rng()).mean == 0.5
    with pytest.raises(ValueError, match="same tasks, not 2 and 4"):
        probability_of_improvement(first, SCORES, rng())


def test_probability_of_improvement_against_a_loop_over_pairs() -> None:
    first, second = rng(1).integers(0, 4, (3, 4)).astype(float), rng(2).integers(0, 4, (5, 4)).astype(float)

    def chance(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
        wins = [
            (1.0 if x[i, t] > y[j, t] else 0.5 if x[i, t] == y[j, t] else 0.0)
            for t in range(4)
            for i in range(len(x))
            for j in range(len(y))
        ]
        return sum(wins) / len(wins)

    found = probability_of_improvement(first, second, rng(), resamples=100)
    generator = rng()
    ours = generator.multinomial(3, [1 / 3] * 3, size=(100, 4))
    theirs = generator.multinomial(5, [1 / 5] * 5, size=(100, 4))
    values = []
    for counts, others in zip(ours, theirs, strict=True):
        x = np.stack([np.repeat(first[:, t], counts[t]) for t in range(4)], 1)
        y = np.stack([np.repeat(second[:, t], others[t]) for t in range(4)], 1)
        values.append(chance(x, y))
    expected = (chance(first, second), np.quantile(values, 0.025), np.quantile(values, 0.975))
    assert found == pytest.approx(expected)


def test_computing_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = rng().normal(size=(4, 5))
    whole = aggregate(scores, rng(), 100), performance_profile(scores, [0.0], rng(), 100).low
    monkeypatch.setattr(statistics, "_AT_ONCE", 90)
    assert aggregate(scores, rng(), 100) == whole[0]
    assert np.array_equal(performance_profile(scores, [0.0], rng(), 100).low, whole[1])
    sizes = [len(part) for part in statistics._resampled(scores, rng(), 10)]
    assert sizes == [4, 4, 2]


def test_what_has_no_aggregate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(runs, tasks\) .* not \(3,\)"):
        aggregate(np.zeros(3), rng())
    with pytest.raises(ValueError, match="run 1 in task 2 is nan"):
        aggregate(np.where(np.arange(8).reshape(2, 4) == 6, np.nan, 0.0), rng())
    with pytest.raises(ValueError, match="resamples must be at least 1"):
        aggregate(SCORES, rng(), resamples=0)
    assert math.isnan(aggregate(SCORES[:1], rng()).iqm.low)


def test_results_are_plain() -> None:
    found = aggregate(SCORES, rng(), resamples=20)
    assert found.to_json()["aggregates"]["mean"]["mean"] == pytest.approx(2.05)
    assert "optimality gap" in found.table()
    assert "2 runs of 4 tasks" in found.table()
