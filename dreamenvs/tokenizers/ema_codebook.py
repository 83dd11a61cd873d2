"""The codebook of a VQ-VAE, moved by exponential averages of what it is asked to represent (STEP-VQ, section 2.1).

The codebook is a buffer: the optimiser does not see it, and gradients reach the encoder alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn import distributed

_SMOOTHING = 1e-5


class Quantized(NamedTuple):
    """Vectors and the codes that stand for them."""

    tokens: Tensor  # (N,) int64
    logits: Tensor  # (N, V), -‖vector - code‖² up to a constant per vector, with gradients to the vectors
    vectors: Tensor  # (N, D), the nearest code forward, the vector itself backward
    distances: Tensor  # (N,), ‖vector - code‖² to the nearest code, with gradients to the vectors


class Quantizer(nn.Module):
    """`codes` vectors of `width` numbers; `forward` quantises and, in training mode, lets the codes follow."""

    codebook: Tensor
    usage: Tensor
    sums: Tensor

    def __init__(self, codes: int, width: int, decay: float, revival: float) -> None:
        super().__init__()
        self.decay, self.revival = decay, revival
        spread = (3 / width) ** 0.5  # codes of length about 1
        self.register_buffer("codebook", torch.empty(codes, width).uniform_(-spread, spread))  # (V, D)
        self.register_buffer("usage", torch.zeros(codes))  # (V,), averaged vectors per code; zero before training
        self.register_buffer("sums", torch.zeros(codes, width))  # (V, D), averaged sums of those vectors

    def encode(self, vectors: Tensor) -> Tensor:
        """The nearest codes (N,) of vectors (N, D)."""
        return self._scores(vectors, self.codebook).argmax(-1)

    def embed(self, tokens: Tensor) -> Tensor:
        """The codes (…, D) of tokens (…)."""
        return F.embedding(tokens, self.codebook)

    def forward(self, vectors: Tensor) -> Quantized:
        if self.training and not self.usage.any():
            self._seed(distributed.gather(vectors.detach()))
        # The graph keeps a copy, for the average below changes the codebook in place.
        codebook = self.codebook.clone()
        logits = self._scores(vectors, codebook)
        tokens = logits.argmax(-1)
        nearest = F.embedding(tokens, codebook)
        if self.training:
            self._follow(vectors.detach(), tokens)
        distances = (vectors - nearest).square().sum(-1)
        return Quantized(tokens, logits, vectors + (nearest - vectors).detach(), distances)

    @staticmethod
    def _scores(vectors: Tensor, codebook: Tensor) -> Tensor:
        """-‖vector - code‖² without ‖vector‖², which neither a softmax nor an argmax over codes can see."""
        return torch.addmm(-codebook.square().sum(-1), vectors, codebook.T, alpha=2)

    @torch.no_grad()
    def _follow(self, vectors: Tensor, tokens: Tensor) -> None:
        counts, sums = code_statistics(vectors, tokens, len(self.usage))
        self.usage.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(sums, 1 - self.decay)
        if self.revival > 0:
            self._revive(vectors)
        total = self.usage.sum()
        smoothed = (self.usage + _SMOOTHING) / (total + len(self.usage) * _SMOOTHING) * total
        torch.div(self.sums, smoothed[:, None], out=self.codebook)

    def _revive(self, vectors: Tensor) -> None:
        """Codes that win fewer than `revival` vectors per batch start again at a random vector of this one."""
        dead = (self.usage < self.revival)[:, None]
        chosen = distributed.choose(vectors, len(self.usage))
        self.sums.copy_(torch.where(dead, chosen * self.revival, self.sums))
        self.usage.clamp_(min=self.revival)

    @torch.no_grad()
    def _seed(self, vectors: Tensor) -> None:
        """Start the codes at vectors of the first batch, far ones first (k-means++).

        The paper does not say where its codes start. An average follows only codes that win: away from the data they
        never would, and a uniform choice would spend most of them on copies of the background.
        """
        chosen = vectors[torch.randint(len(vectors), (1,), device=vectors.device)]
        nearest = (vectors - chosen).square().sum(-1)
        self.codebook[0] = chosen[0]
        for code in range(1, len(self.codebook)):
            # The floor keeps a batch with fewer distinct vectors than codes drawable.
            chosen = vectors[torch.multinomial(nearest.clamp(min=1e-12), 1)]
            self.codebook[code] = chosen[0]
            nearest = torch.minimum(nearest, (vectors - chosen).square().sum(-1))
        distributed.follow_first(self.codebook)
        self.usage.fill_(len(vectors) / len(self.usage))
        self.sums.copy_(self.codebook * self.usage[:, None])


def code_statistics(vectors: Tensor, tokens: Tensor, codes: int) -> tuple[Tensor, Tensor]:
    """How many (V,) of the vectors (N, D) of all ranks each code stands for, by tokens (N,), and their sums (V, D)."""
    counts = torch.bincount(tokens, minlength=codes).to(vectors)
    sums = vectors.new_zeros(codes, vectors.shape[1]).index_add_(0, tokens, vectors)
    both = distributed.all_sum(torch.cat([counts[:, None], sums], 1))
    return both[:, 0], both[:, 1:].contiguous()
