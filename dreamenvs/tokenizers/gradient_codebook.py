"""The codebook of a VQ-VAE, moved by gradients (van den Oord et al., 2017, eq. 3), as in IRIS and REM.

Where `Quantizer` averages, this learns: the codes are parameters, which the penalty alone draws to the vectors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn.layers import row_linear


class Coded(NamedTuple):
    """Vectors and the codes that stand for them."""

    tokens: Tensor  # (N,) int64
    logits: Tensor  # (N, V), -‖vector - code‖² up to a constant per vector, with gradients to the vectors
    vectors: Tensor  # (N, D), the nearest code forward, the vector itself backward
    penalties: Tensor  # (N,), means of squares: codes to vectors, and β times vectors to codes


class Codebook(nn.Module):
    """`codes` learned vectors of `width` numbers."""

    def __init__(self, codes: int, width: int, commitment: float) -> None:
        super().__init__()
        self.commitment = commitment
        self.codes = nn.Parameter(torch.empty(codes, width).uniform_(-1 / codes, 1 / codes))  # (V, D)

    @torch.no_grad()
    def encode(self, vectors: Tensor) -> Tensor:
        """The nearest codes (N,) of vectors (N, D)."""
        return self._scores(vectors).argmax(-1)

    def embed(self, tokens: Tensor) -> Tensor:
        """The codes (…, D) of tokens (…)."""
        return F.embedding(tokens, self.codes)

    def forward(self, vectors: Tensor) -> Coded:
        logits = self._scores(vectors)
        tokens = logits.argmax(-1)
        nearest = self.embed(tokens)
        follow = (nearest - vectors.detach()).square().mean(-1)
        commit = (vectors - nearest.detach()).square().mean(-1)
        straight = vectors + (nearest - vectors).detach()
        return Coded(tokens, logits, straight, follow + self.commitment * commit)

    def _scores(self, vectors: Tensor) -> Tensor:
        """-‖vector - code‖² without ‖vector‖², which neither a softmax nor an argmax over codes can see."""
        codes = self.codes.detach()
        return row_linear(vectors, 2 * codes, -codes.square().sum(-1))
