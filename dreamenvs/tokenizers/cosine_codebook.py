"""A codebook of unit vectors: the nearest code is the one at the smallest angle (Δ-IRIS, table 3; Yu et al., 2021).

The codes are a buffer that follows running averages; the optimiser does not see it. Codes that nobody uses are revived
only while the usage of all codes together is poor: later, a rare code stands for a rare event.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn import distributed, initialization
from dreamenvs.nn.layers import row_linear
from dreamenvs.tokenizers.ema_codebook import code_statistics

USAGE_DECAY = 0.98
_POOR = 1.0
"""Bits of usage below which the codes have collapsed, whenever that happens."""


class UnitQuantized(NamedTuple):
    """Vectors and the codes that stand for them."""

    tokens: Tensor  # (N,) int64
    vectors: Tensor  # (N, D), the nearest code forward, the unit vector backward
    commitment: Tensor  # (), the mean squared difference, with gradients to the vectors


class UnitQuantizer(nn.Module):
    """`codes` unit vectors of `width` numbers; `forward` quantises and, in training mode, lets the codes follow."""

    codebook: Tensor
    usage: Tensor
    updates: Tensor

    def __init__(self, codes: int, width: int, decay: float, revival_updates: int) -> None:
        super().__init__()
        self.decay, self.revival_updates = decay, revival_updates
        codebook = initialization.normal_(torch.empty(codes, width), 1.0)
        # Arithmetic on the device "meta", where a model is outlined before it is loaded, imports half of torch.
        self.register_buffer("codebook", codebook if codebook.is_meta else F.normalize(codebook, dim=-1))  # (V, D)
        self.register_buffer("usage", torch.full((codes,), 1 / codes))  # (V,), averaged shares of the vectors
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def encode(self, vectors: Tensor) -> Tensor:
        """The nearest codes (N,) of vectors (N, D) of any length."""
        return row_linear(vectors, self.codebook).argmax(-1)

    def embed(self, tokens: Tensor) -> Tensor:
        """The codes (…, D) of tokens (…)."""
        return F.embedding(tokens, self.codebook)

    def forward(self, vectors: Tensor) -> UnitQuantized:
        units = F.normalize(vectors, dim=-1)
        tokens = self.encode(units.detach())
        nearest = self.embed(tokens)
        commitment = distributed.mean((units - nearest).square())
        if self.training:
            self._follow(units.detach(), tokens)
        return UnitQuantized(tokens, units + (nearest - units).detach(), commitment)

    @torch.no_grad()
    def _follow(self, units: Tensor, tokens: Tensor) -> None:
        """Turn each code that was used towards the mean of its vectors, and keep count of how often it is."""
        counts, sums = code_statistics(units, tokens, len(self.usage))
        means = F.normalize(sums, dim=-1)
        # A code without vectors is drawn towards zero, which leaves its direction as it is.
        self.codebook.copy_(F.normalize(torch.lerp(self.codebook, means, 1 - self.decay), dim=-1))
        self.usage.lerp_(counts / counts.sum(), 1 - USAGE_DECAY)
        self._revive(units)
        self.updates.add_(1)

    def _revive(self, units: Tensor) -> None:
        """While usage is poor, put codes that are hardly used in the places of random vectors."""
        entropy = usage_entropy(self.usage)
        allowed = entropy < _POOR or int(self.updates) < self.revival_updates
        codes = len(self.usage)
        if not allowed or entropy >= math.log2(codes) - 2:
            return
        idle = (self.usage < 0.1 / codes).nonzero()[:, 0]
        self.codebook[idle] = distributed.choose(units, len(idle))
        self.usage[idle] = 1 / codes


def usage_entropy(usage: Tensor) -> float:
    """The entropy, in bits, of shares (V,) that need not add up to one."""
    shares = usage / usage.sum()
    return float(-(shares * shares.clamp(min=1e-12).log2()).sum())
