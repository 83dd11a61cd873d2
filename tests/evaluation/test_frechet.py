"""The Fréchet distance against closed forms and against the general product of covariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dreamenvs.evaluation import frechet
from dreamenvs.evaluation.frechet import compare_features, frechet_distance

Matrix = NDArray[np.float64]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def naive(mean: Matrix, covariance: Matrix, other_mean: Matrix, other: Matrix) -> float:
    """By the eigenvalues of the product itself, which are real and not negative, as those of A^½ B A^½ are."""
    eigenvalues = np.linalg.eigvals(covariance @ other).astype(complex)
    assert np.abs(eigenvalues.imag).max() < 1e-6 * np.abs(eigenvalues).max()
    shared = np.sqrt(eigenvalues.real.clip(0)).sum()
    return float(((mean - other_mean) ** 2).sum() + np.trace(covariance) + np.trace(other) - 2 * shared)


def covariance(size: int, seed: int, rank: int | None = None) -> Matrix:
    factor = rng(seed).normal(size=(size, rank or 2 * size))
    return factor @ factor.T / factor.shape[1]


def test_one_dimension_by_hand() -> None:
    # N(1, 4) and N(3, 9): (1 - 3)² + (2 - 3)²
    assert frechet_distance(np.array([1.0]), np.array([[4.0]]), np.array([3.0]), np.array([[9.0]])) == pytest.approx(5)


def test_diagonal_covariances_are_one_dimension_after_the_other() -> None:
    first, second, gap = np.array([1.0, 4.0, 0.0]), np.array([9.0, 4.0, 16.0]), np.array([1.0, -2.0, 0.5])
    expected = (gap**2).sum() + (2**2 + 0 + 4**2)
    assert frechet_distance(gap, np.diag(first), np.zeros(3), np.diag(second)) == pytest.approx(expected)


def test_commuting_covariances_share_their_eigenvectors() -> None:
    rotation = np.linalg.qr(rng().normal(size=(5, 5)))[0]
    first, second = rng(1).uniform(0.1, 4, 5), rng(2).uniform(0.1, 4, 5)
    pair = [(rotation * values) @ rotation.T for values in (first, second)]
    expected = ((np.sqrt(first) - np.sqrt(second)) ** 2).sum()
    assert frechet_distance(np.zeros(5), pair[0], np.zeros(5), pair[1]) == pytest.approx(expected)


@pytest.mark.parametrize(("size", "rank"), [(3, None), (16, None), (40, None)])
def test_random_covariances(size: int, rank: int | None) -> None:
    first, second = covariance(size, 1, rank), covariance(size, 2, rank)
    means = rng(3).normal(size=(2, size))
    expected = naive(means[0], first, means[1], second)
    assert frechet_distance(means[0], first, means[1], second) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(means[1], second, means[0], first) == pytest.approx(expected, rel=1e-9)


def test_singular_covariances_give_no_complex_numbers() -> None:
    """Where there are fewer videos than features: rank 3 of 20, in subspaces that meet in zero alone."""
    first, second = covariance(20, 1, 3), covariance(20, 2, 3)
    factors = [rng(seed).normal(size=(20, 3)) / math.sqrt(3) for seed in (1, 2)]
    shared = np.linalg.svd(factors[0].T @ factors[1], compute_uv=False).sum()  # tr (A B)^½ of A = F Fᵀ, B = G Gᵀ
    expected = np.trace(first) + np.trace(second) - 2 * shared
    assert frechet_distance(np.zeros(20), first, np.zeros(20), second) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(np.zeros(20), first, np.zeros(20), first) == pytest.approx(0, abs=1e-6)


def test_many_at_once_are_each_as_alone() -> None:
    first, second = (np.stack([covariance(4, seed + n) for n in range(3)]) for seed in (0, 10))
    means = rng().normal(size=(2, 3, 4))
    together = frechet_distance(means[0], first, means[1], second)
    alone = [frechet_distance(means[0, n], first[n], means[1, n], second[n]) for n in range(3)]
    assert together.tolist() == pytest.approx([float(value) for value in alone])


def test_features_are_taken_for_gaussians() -> None:
    real, imagined = rng(1).normal(size=(50, 6)), rng(2).normal(1.0, 2.0, (50, 6)) + 1e4
    distance = compare_features(real, imagined, rng()).distance
    expected = naive(real.mean(0), np.cov(real.T), imagined.mean(0), np.cov(imagined.T))
    assert distance == pytest.approx(expected, rel=1e-9)
    assert compare_features(real, real, rng()).distance == pytest.approx(0, abs=1e-7)


def test_a_resample_is_a_set_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    real, imagined = rng(1).normal(size=(12, 2)), rng(2).normal(0.5, 2.0, (12, 2))
    found = compare_features(real, imagined, rng(), resamples=20)
    drawn = rng()
    distances = []
    for counts in drawn.multinomial(12, [1 / 12] * 12, size=20):
        rows = np.repeat(np.arange(12), counts)
        sets = [(features[rows].mean(0), np.cov(features[rows].T)) for features in (real, imagined)]
        distances.append(naive(*sets[0], *sets[1]))
    assert found.std == pytest.approx(np.std(distances))
    monkeypatch.setattr(frechet, "_AT_ONCE", 5)
    assert compare_features(real, imagined, rng(), resamples=20).std == pytest.approx(found.std)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pairs \(N, F\), not \(3, 2\) and \(4, 2\)"):
        compare_features(np.zeros((3, 2)), np.zeros((4, 2)), rng())
    with pytest.raises(ValueError, match="not finite"):
        compare_features(np.zeros((3, 2)), np.full((3, 2), np.nan), rng())
    assert math.isnan(compare_features(np.zeros((1, 2)), np.ones((1, 2)), rng()).std)
