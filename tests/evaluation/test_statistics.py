"""Bootstrap intervals in cases that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dreamenvs.evaluation import statistics
from dreamenvs.evaluation.statistics import estimate_gap, estimate_mean


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_samples_that_agree_leave_no_doubt() -> None:
    assert estimate_mean(np.full(7, 3.0), rng()) == (3.0, 3.0, 3.0)
    assert estimate_gap(np.full(7, 3.0), np.full(2, 1.0), rng()) == (2.0, 2.0, 2.0)


def test_two_samples() -> None:
    # Two draws from {0, 1} have the means 0, ½ and 1 with the chances ¼, ½ and ¼.
    assert estimate_mean(np.array([0.0, 1.0]), rng()) == (0.5, 0.0, 1.0)


def test_one_sample_has_no_interval() -> None:
    estimate = estimate_mean(np.array([4.0]), rng())
    assert estimate.mean == 4.0
    assert math.isnan(estimate.low)
    assert math.isnan(estimate_gap(np.array([4.0]), np.zeros(9), rng()).high)
    with pytest.raises(ValueError, match="no samples"):
        estimate_mean(np.zeros(0), rng())


def test_many_samples_give_the_normal_interval() -> None:
    samples = rng().normal(5.0, 2.0, 1_000)
    estimate = estimate_mean(samples, rng())
    half = 1.96 * samples.std() / math.sqrt(1_000)
    assert estimate.mean == pytest.approx(samples.mean())
    assert estimate.low == pytest.approx(samples.mean() - half, abs=0.01)
    assert estimate.high == pytest.approx(samples.mean() + half, abs=0.01)


def test_the_variances_of_a_gap_add_up() -> None:
    first, second = rng().normal(1.0, 3.0, 400), rng().normal(0.0, 4.0, 400)
    gap = estimate_gap(first, second, rng())
    half = 1.96 * math.sqrt((first.var() + second.var()) / 400)
    assert gap.high - gap.low == pytest.approx(2 * half, rel=0.05)


def test_computing_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = rng().normal(size=30)
    whole = estimate_mean(samples, rng())
    monkeypatch.setattr(statistics, "_AT_ONCE", 100)
    assert estimate_mean(samples, rng()) == whole
