"""Randomness keyed by row: noise is a function of (row seed, row step, draw), never of the batch it is computed in.

The generator is SplitMix64 (Steele, Lea and Flood, 2014) used as a counter-based hash and written in tensor operations,
so that a row draws the same numbers alone and among a thousand others, and a snapshot of two integers is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLY_1 = 0xBF58476D1CE4E5B9 - 2**64
_MULTIPLY_2 = 0x94D049BB133111EB - 2**64
_STEP = 0xD1342543DE82EF95 - 2**64  # an odd constant of its own, so that (seed, step) and (seed, draw) never coincide
_DRAW = 0xDA942042E4DD58B5 - 2**64


def mix(bits: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64 tensors, whose arithmetic wraps; `>>` keeps the sign, hence the masks."""
    bits = (bits ^ ((bits >> 30) & (2**34 - 1))) * _MULTIPLY_1
    bits = (bits ^ ((bits >> 27) & (2**37 - 1))) * _MULTIPLY_2
    return bits ^ ((bits >> 31) & (2**33 - 1))


def wrap_seed(seed: int) -> int:
    """Any Python integer as the int64 with the same low 64 bits."""
    return (seed + 2**63) % 2**64 - 2**63


class Noise(NamedTuple):
    """The random numbers of one step, for every row: ask for them by `draw`, one number for each separate use."""

    seeds: Tensor  # (B,) int64
    steps: Tensor  # (B,) int64
    temperature: float = 1.0
    """Sharpens (below 1) or flattens (above 1) what is sampled from logits; 0 takes the most likely value."""

    def bits(self, count: int, draw: int = 0) -> Tensor:
        """(B, count) int64, all 64 bits random."""
        keys = mix(mix(self.seeds + GOLDEN) + self.steps * _STEP) + wrap_seed(draw * _DRAW)
        counters = torch.arange(1, count + 1, device=keys.device)
        return mix(mix(keys)[:, None] + counters * GOLDEN)

    def uniform(self, count: int, draw: int = 0) -> Tensor:
        """(B, count) float32 in [0, 1), with 24 random bits each."""
        return ((self.bits(count, draw) >> 40) & (2**24 - 1)).to(torch.float32) * 2.0**-24

    def integers(self, below: int, draw: int = 0) -> Tensor:
        """(B,) int64 in [0, below)."""
        return ((self.bits(1, draw)[:, 0] >> 33) & (2**31 - 1)) * below >> 31

    def categorical(
        self,
        logits: Tensor,
        draw: int = 0,
        *,
        coupled: bool = False,
        exclusive: bool = False,
        places: Tensor | None = None,
    ) -> Tensor:
        """Sample (B, K) classes from logits (B, K, V) by inverse CDF; `coupled`, with one number for all K of a row.

        `places` (B, K), which tokens of a frame they are where not all are drawn in order, is for those who listen.

        Coupled, every class keeps its probability, but a row's unlikely classes come together: a number below a
        variable's largest probability gives its likeliest class, one above it another. `exclusive`, those of a kind
        come in turn instead, each with the opposite that makes up for it: see `_inverse_exclusive`.
        """
        if self.temperature == 0:
            return logits.argmax(-1)
        if self.temperature != 1:
            logits = logits / self.temperature
        probabilities = logits.float().softmax(-1)
        if exclusive:
            return _inverse_exclusive(probabilities, self.uniform(logits.shape[2] ** 2, draw))
        if coupled:
            return _inverse_coupled(probabilities, self.uniform(1, draw))
        return _inverse(probabilities, self.uniform(logits.shape[1], draw))

    def categorical_again(self, logits: Tensor, draw: int = 0) -> Tensor:
        """Sample (B, K) classes once more, from other logits (B, K, V) at the same points as `categorical` did."""
        return Noise(*self).categorical(logits, draw)

    def of_rows(self, rows: Tensor) -> Noise:
        """The noise of some rows (N,) alone."""
        return self._replace(seeds=self.seeds[rows], steps=self.steps[rows])

    def choose(self, logits: Tensor, draw: int = 0) -> Tensor:
        """Sample (B,) one class a row from logits (B, V)."""
        if self.temperature == 0:
            return logits.argmax(-1)
        probabilities = (logits.float() / self.temperature).softmax(-1)
        return _inverse(probabilities[:, None], self.uniform(1, draw))[:, 0]

    def bernoulli(self, logits: Tensor, draw: int = 0) -> Tensor:
        """Sample (B,) booleans from log-odds (B,)."""
        if self.temperature == 0:
            return logits > 0
        return self.uniform(1, draw)[:, 0] < torch.sigmoid(logits.float() / self.temperature)


def _inverse(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Classes (B, K) of probabilities (B, K, V) in any scale, at the points (B, K) of their cumulative sums."""
    cumulative = probabilities.cumsum(-1)
    # Scaling by the last entry rather than assuming 1 keeps the last class from taking float rounding's share.
    thresholds = uniform[..., None] * cumulative[..., -1:]
    return (cumulative <= thresholds).sum(-1).clamp_(max=probabilities.shape[-1] - 1)


def _inverse_coupled(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Classes (B, K) at one point (B, 1) for all, with the likeliest class of each first in its order."""
    largest, likeliest = probabilities.max(-1)
    others = probabilities.scatter(-1, likeliest[..., None], 0.0)
    beyond = (uniform - largest) / (1 - largest).clamp(min=1e-12)
    return torch.where(uniform < largest, likeliest, _inverse(others, beyond.clamp(0, 1 - 2**-24)))


def _inverse_exclusive(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Classes (B, K) at one point for each pair of classes, of points (B, V²), by systematic sampling.

    A variable whose likeliest class is a, and b its next, takes another than a with the probability that is left. Those
    of the same a and b share the circle of their pair, one after another and the largest first, so that where an object
    may appear in one of many places, it appears in as many as it should, and not in all at once. Those from b to a lie
    on the same circle from its beginning on: what appears in one place is missing in the other.
    """
    classes = probabilities.shape[-1]
    likeliest = probabilities.argmax(-1)
    others = probabilities.scatter(-1, likeliest[..., None], 0.0)
    left, following = others.sum(-1), others.argmax(-1)
    kind = likeliest * classes + following
    order = (kind - left.double()).argsort(dim=-1, stable=True)
    kinds, ends = kind.gather(-1, order), left.gather(-1, order).double().cumsum(-1)
    starts = ends - left.gather(-1, order)
    first = torch.ones_like(kinds, dtype=torch.bool)
    first[:, 1:] = kinds[:, 1:] != kinds[:, :-1]
    offsets = starts - torch.where(first, starts, 0.0).cummax(-1).values
    offsets = torch.empty_like(offsets).scatter_(-1, order, offsets)
    pair = torch.minimum(likeliest, following) * classes + torch.maximum(likeliest, following)
    beyond = (uniform.gather(-1, pair).double() - offsets).remainder(1.0) / left.clamp(min=1e-12)
    drawn = _inverse(others, beyond.clamp(0, 1 - 2**-24).to(probabilities.dtype))
    return torch.where(beyond < 1, drawn, likeliest)
