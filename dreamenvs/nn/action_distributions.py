"""Distributions that a network's outputs describe and values are drawn from: over classes, and over [-1, 1]^A.

Draws come from row-keyed noise by inverse CDF, so that a row draws the same alone and among others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dreamenvs.nn.distributions import unimix
from dreamenvs.random import Noise

MIN_STD, MAX_STD = 0.1, 1.0
_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)


class Categorical:
    """Classes (…) of outputs (…, V), mixed with a `share` of the uniform distribution."""

    def __init__(self, count: int, share: float = 0.0) -> None:
        self.outputs = count
        self.share = share

    def sample(self, outputs: Tensor, noise: Noise, draw: int) -> Tensor:
        """Classes (B,) of outputs (B, V)."""
        return noise.categorical(unimix(outputs, self.share)[:, None], draw)[:, 0]

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def log_prob(self, outputs: Tensor, values: Tensor) -> Tensor:
        return unimix(outputs, self.share).gather(-1, values[..., None])[..., 0]

    def entropy(self, outputs: Tensor) -> Tensor:
        logs = unimix(outputs, self.share)
        return -(logs.exp() * logs).sum(-1)


class TruncatedNormal:
    """Vectors (…, A) in [-1, 1] of outputs (…, 2·A): normal distributions cut off at the bounds, each by itself.

    Means are squashed into the bounds and standard deviations into [0.1, 1], as in DreamerV2 and V3: what is cut off
    is then never nearly all, so that every formula below is safe in float32. A density that was squashed by tanh would
    need the inverse of tanh at the bounds, where it is infinite.
    """

    def __init__(self, size: int) -> None:
        self.outputs = 2 * size

    def sample(self, outputs: Tensor, noise: Noise, draw: int) -> Tensor:
        """Vectors (B, A) of outputs (B, 2·A); the noise's temperature scales the standard deviation."""
        mean, std = self._parameters(outputs)
        if noise.temperature == 0:
            return mean
        std = std * noise.temperature
        below, share = self._cut(mean, std)
        levels = below + noise.uniform(mean.shape[-1], draw).to(mean.dtype) * share
        drawn: Tensor = mean + std * torch.special.ndtri(levels)
        return drawn.clamp(-1, 1)

    def mode(self, outputs: Tensor) -> Tensor:
        return self._parameters(outputs)[0]

    def log_prob(self, outputs: Tensor, values: Tensor) -> Tensor:
        mean, std = self._parameters(outputs)
        _, share = self._cut(mean, std)
        density = -0.5 * ((values - mean) / std).square() - std.log() - _LOG_SQRT_2_PI
        return (density - share.log()).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        mean, std = self._parameters(outputs)
        _, share = self._cut(mean, std)
        low, high = (-1 - mean) / std, (1 - mean) / std
        slopes = low * _normal(low) - high * _normal(high)
        return (0.5 + _LOG_SQRT_2_PI + (std * share).log() + slopes / (2 * share)).sum(-1)

    def _parameters(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = outputs.chunk(2, -1)
        # Shifted by 2, so that outputs of zero begin with a standard deviation near its largest.
        return mean.tanh(), MIN_STD + (MAX_STD - MIN_STD) * torch.sigmoid(spread + 2)

    def _cut(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """What lies below the bounds, and the share between them."""
        below = torch.special.ndtr((-1 - mean) / std)
        return below, torch.special.ndtr((1 - mean) / std) - below


def _normal(values: Tensor) -> Tensor:
    """The density of the standard normal distribution."""
    return (-0.5 * values.square() - _LOG_SQRT_2_PI).exp()
