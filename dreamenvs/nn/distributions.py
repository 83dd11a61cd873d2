"""Distributions over classes and over real numbers: KL, unimix, straight-through, free bits, two-hot symlog.

The two-hot code is DreamerV3's (Hafner et al., 2023): real numbers live on 255 bins that are even in symlog space.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dreamenvs.nn import distributed

BINS = 255
LIMIT = 20.0
"""The bins span [-20, 20] in symlog space, which is about ±4.9e8 for real numbers."""


def symlog(values: Tensor) -> Tensor:
    """sign(x)·log(1 + |x|): the identity near zero, a logarithm far away."""
    return values.sign() * values.abs().log1p()


def symexp(values: Tensor) -> Tensor:
    """The inverse of `symlog`."""
    return values.sign() * values.abs().expm1()


def two_hot(values: Tensor) -> Tensor:
    """Values (…) as weights (…, 255) of the two bins around their symlog."""
    lower, share = _locate(values)
    weights = torch.zeros(*values.shape, BINS, dtype=values.dtype, device=values.device)
    weights.scatter_(-1, lower[..., None], (1 - share)[..., None])
    return weights.scatter_(-1, lower[..., None] + 1, share[..., None])


def two_hot_mean(logits: Tensor) -> Tensor:
    """The real numbers (…) that logits (…, 255) stand for: symexp of the mean bin."""
    bins = torch.linspace(-LIMIT, LIMIT, BINS, dtype=logits.dtype, device=logits.device)
    return symexp((logits.softmax(-1) * bins).sum(-1))


def two_hot_loss(logits: Tensor, values: Tensor) -> Tensor:
    """Cross-entropy (…) between `two_hot(values)` and logits (…, 255), without building the 255 weights."""
    lower, share = _locate(values.to(logits.dtype))
    pair = torch.stack((lower, lower + 1), -1)
    log_lower, log_upper = logits.log_softmax(-1).gather(-1, pair).unbind(-1)
    return -torch.lerp(log_lower, log_upper, share)


def _locate(values: Tensor) -> tuple[Tensor, Tensor]:
    """The bin below each value, and how far the value is on its way to the bin above."""
    positions = (symlog(values) + LIMIT).mul((BINS - 1) / (2 * LIMIT)).clamp(0, BINS - 1)
    # Clamped as integers: a NaN then gives NaN weights rather than an index out of range.
    lower = positions.long().clamp(0, BINS - 2)
    return lower, positions - lower


def kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """KL[p ‖ q] in nats at every position (…) of logits (…, V)."""
    log_p, log_q = logits_p.log_softmax(-1), logits_q.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def unimix(logits: Tensor, share: float = 0.01) -> Tensor:
    """Log-probabilities (…, V) of logits mixed with a `share` of the uniform distribution, so that no class dies."""
    if share == 0:
        return logits.log_softmax(-1)
    return (logits.softmax(-1) * (1 - share) + share / logits.shape[-1]).log()


def straight_through(logits: Tensor, one_hot: Tensor) -> Tensor:
    """A sample (…, V) that is exactly `one_hot` forward and the probabilities of `logits` backward."""
    probabilities = logits.softmax(-1)
    return one_hot + (probabilities - probabilities.detach())


def free_bits(divergence: Tensor, bits: float = 1.0) -> Tensor:
    """A divergence, already summed over tokens and averaged over frames, that costs nothing to lower below `bits`."""
    return divergence.clamp(min=bits)


def masked_mean(values: Tensor, valid: Tensor) -> Tensor:
    """The mean () of values (N,) over the valid (N,) ones of all ranks; zero where none is."""
    # Filled rather than multiplied, for zero times NaN is NaN.
    return distributed.ratio(values.masked_fill(~valid, 0).sum(), valid.sum())


def one_hot(tokens: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Tokens (…) as floats (…, V)."""
    # Not F.one_hot, which writes integers of eight bytes and then converts them.
    codes = torch.zeros(*tokens.shape, classes, dtype=dtype, device=tokens.device)
    return codes.scatter_(-1, tokens[..., None], 1)
