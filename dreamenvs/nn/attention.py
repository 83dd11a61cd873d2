"""Attention over a band of the past, with rotary positions (Su et al., 2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BASE = 10_000.0
PIECE = 256
"""Values that are summed at once. BLAS may cut longer sums anywhere, so that what nobody sees at the end of a ring
would change how the rest is rounded."""


def rotary_turns(positions: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Complex rotations (..., head_dim / 2) for integer positions (...), for queries and keys of `dtype`."""
    # float32 angles are wrong by radians after a million steps, float64 ones are not.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    angles = positions[..., None].double() * BASE**-exponents
    return torch.polar(torch.ones_like(angles), angles).to(torch.promote_types(dtype, torch.float32).to_complex())


def rotate(inputs: Tensor, turns: Tensor) -> Tensor:
    """Turn each pair of neighbours in inputs (..., head_dim) by turns (..., head_dim / 2)."""
    pairs = inputs.to(turns.dtype.to_real()).reshape(*inputs.shape[:-1], -1, 2)
    return torch.view_as_real(torch.view_as_complex(pairs) * turns).flatten(-2).to(inputs.dtype)


def band(length: int, window: int, device: torch.device) -> Tensor:
    """(T, T) bool: position t sees t - window + 1 .. t."""
    visible = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return visible.triu(1 - window)


def attend_band(queries: Tensor, keys: Tensor, values: Tensor, window: int) -> Tensor:
    """Attention (B, heads, T, head_dim) of a sequence to itself: each position sees the last `window`, with itself."""
    length = queries.shape[-2]
    if length <= window:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=band(length, window, queries.device))


def attend_visible(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Attention (B, heads, T, head_dim) to keys and values (B, heads, S, head_dim) where visible (B, 1, T, S)."""
    # Not scaled_dot_product_attention: on CPU its rounding of short queries depends on the number of threads.
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.mT
    return torch.matmul(scores.masked_fill(~visible, -torch.inf).softmax(-1), values)


def attend_few(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
    """Attention (N, T, head_dim) of a few queries each (N, T, head_dim) to keys and values (N, S, head_dim).

    `visible` (N, T, S) hides the rest; None shows all, with the same bits as a mask that does.
    """
    scores = torch.bmm(queries * queries.shape[-1] ** -0.5, keys.mT)
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    weights = scores.softmax(-1)
    attended = torch.bmm(weights[..., :PIECE], values[:, :PIECE])
    for start in range(PIECE, keys.shape[1], PIECE):
        piece = slice(start, start + PIECE)
        attended = torch.baddbmm(attended, weights[..., piece], values[:, piece])
    return attended
