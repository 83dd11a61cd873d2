"""The Fréchet distance between two sets of features, each taken for a Gaussian (Heusel et al., 2017, equation 6).

It is ‖μ - ν‖² + tr(A + B - 2 (A B)^½). The product of two covariances is not symmetric, and a general matrix root of it
drifts into complex numbers where they are nearly singular. Its root has the trace of (A^½ B A^½)^½, which is symmetric
and has no negative eigenvalues but by rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float64]  # (N, F)

RESAMPLES = 100
_AT_ONCE = 2**22


class Distance(NamedTuple):
    """A Fréchet distance between two sets of videos."""

    distance: float
    """Over all videos. It is never negative, and above zero for two sets of the same kind: estimated moments differ, by
    the more, the fewer videos there are for each feature."""
    std: float
    """Over bootstrap resamples of the videos; NaN for a single one."""


def frechet_distance(
    mean: Features, covariance: Features, other_mean: Features, other_covariance: Features
) -> NDArray[np.float64]:
    """Distances (…) between Gaussians with means (…, F) and covariances (…, F, F), in float64."""
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values.clip(0))[..., None, :]) @ vectors.swapaxes(-1, -2)
    product = root @ other_covariance @ root
    # Rounding leaves it a little askew, which eigvalsh, reading one triangle, would not notice.
    shared = np.sqrt(np.linalg.eigvalsh((product + product.swapaxes(-1, -2)) / 2).clip(0)).sum(-1)
    apart = np.square(mean - other_mean).sum(-1)
    traces = np.trace(covariance, axis1=-2, axis2=-1) + np.trace(other_covariance, axis1=-2, axis2=-1)
    distances: NDArray[np.float64] = np.maximum(apart + traces - 2 * shared, 0.0)
    return distances


def compare_features(
    real: Features, imagined: Features, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Distance:
    """The distance of features (N, F) of imagined videos from those (N, F) of real ones, row by row a pair.

    A resample draws pairs, since a dream starts from its real video's frames and takes its actions.
    """
    if real.shape != imagined.shape or real.ndim != 2 or not len(real):
        raise ValueError(f"real and imagined features are pairs (N, F), not {real.shape} and {imagined.shape}")
    if not (np.isfinite(real).all() and np.isfinite(imagined).all()):
        raise ValueError("a feature is not finite: the feature network failed on some video")
    whole = np.ones((1, len(real)))
    distance = float(frechet_distance(*_moments(real, whole), *_moments(imagined, whole))[0])
    if len(real) < 2:
        return Distance(distance, float("nan"))
    part = max(1, _AT_ONCE // (real.shape[1] * max(real.shape)))
    drawn = []
    for begun in range(0, resamples, part):
        counts = rng.multinomial(len(real), [1 / len(real)] * len(real), size=min(part, resamples - begun))
        weights = counts.astype(np.float64)
        drawn.append(frechet_distance(*_moments(real, weights), *_moments(imagined, weights)))
    return Distance(distance, float(np.concatenate(drawn).std()))


def _moments(features: Features, weights: Features) -> tuple[Features, Features]:
    """Means (R, F) and unbiased covariances (R, F, F) of features (N, F), each as often as weights (R, N) say."""
    count = len(features)
    centre = features.mean(0)
    centred = features - centre  # so that no digits are lost where the mean is far from zero
    means = weights @ centred / count
    squares = (centred.T * weights[:, None, :]) @ centred
    covariances = (squares - count * means[:, :, None] * means[:, None, :]) / max(count - 1, 1)
    return means + centre, covariances
