"""Normalizer: running mean and deviation of a network's inputs, as DRAMA's actor has one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEAST = 1e-3
"""The smallest variance: what never changed must not become loud when it does."""
LIMIT = 10.0


class Normalizer(nn.Module):
    """Inputs (…, F) with a mean of 0 and a deviation of 1 over all that `see` was shown; before that, as they are."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    @torch.no_grad()
    def see(self, inputs: Tensor) -> None:
        """Let inputs (N, F) count (Chan, Golub and LeVeque, 1979)."""
        added = inputs.new_tensor(float(len(inputs)), dtype=self.count.dtype)
        total = self.count + added
        variance, mean = torch.var_mean(inputs, 0, correction=0)
        shift = mean - self.mean
        spread = (self.count * self.variance + added * variance) / total
        self.variance.copy_(spread + shift.square() * self.count * added / total.square())
        self.mean.add_(shift * added / total)
        self.count.copy_(total)

    def forward(self, inputs: Tensor) -> Tensor:
        return ((inputs - self.mean) * (self.variance + LEAST).rsqrt()).clamp(-LIMIT, LIMIT)
