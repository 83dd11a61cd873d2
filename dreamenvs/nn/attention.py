"""Attention over a band of the past, with rotary positions (Su et al., 2021)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BASE = 10_000.0
PIECE = 128
"""Values that are summed at once. BLAS may cut longer sums anywhere, on AMD processors from 160 terms on, so that what
nobody sees at the end of a ring would change how the rest is rounded."""


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


def rotate_(inputs: Tensor, turns: Tensor) -> Tensor:
    """`rotate` in place, of inputs whose neighbours lie side by side and whose dtype is that of the turns."""
    torch.view_as_complex(inputs.view(*inputs.shape[:-1], -1, 2)).mul_(turns)
    return inputs


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


def attend_few(queries: Tensor, keys: Tensor, values: Tensor, concealed: Tensor | None) -> Tensor:
    """Attention (N, T, head_dim) of a few queries each (N, T, head_dim) to keys and values (N, S, head_dim).

    `concealed` (N, T, S) is not seen; None shows all, with the same bits as a mask that does.
    """
    scores = torch.bmm(queries * queries.shape[-1] ** -0.5, keys.mT)
    if concealed is not None:
        scores.masked_fill_(concealed, -torch.inf)
    weights = scores.softmax(-1)
    attended = torch.bmm(weights[..., :PIECE], values[:, :PIECE])
    for start in range(PIECE, keys.shape[1], PIECE):
        piece = slice(start, start + PIECE)
        attended = torch.baddbmm(attended, weights[..., piece], values[:, piece])
    return attended


class Bags(NamedTuple):
    """Where each of N · T queries finds its S values in a table."""

    places: Tensor  # (N · T · S,) int64
    starts: Tensor  # (N · T,) int64


def bags_of(count: int, stride: int, length: int, queries: int, device: torch.device) -> Bags:
    """Bags of `count` stretches of `length` values, which begin every `stride` vectors, for so many queries each."""
    stretches = torch.arange(count, device=device)[:, None] * stride + torch.arange(length, device=device)
    places = stretches[:, None].expand(-1, queries, -1).reshape(-1)
    return Bags(places, torch.arange(0, len(places), length, device=device))


def attend_bags(queries: Tensor, keys: Tensor, table: Tensor, bags: Bags, concealed: Tensor | None) -> Tensor:
    """`attend_few` with the values in a table (…, head_dim).

    For one query or two, what is read once is read at the speed of memory: keys times columns, and values as bags of
    embeddings. BLAS takes half as long again for rows times keys, and twice as long for weights times values.
    """
    # As the transposes of rows: BLAS takes three times as long for a column that is made by `[..., None]`.
    scores = torch.bmm(keys, (queries * queries.shape[-1] ** -0.5).mT).mT
    if concealed is not None:
        scores = scores.masked_fill_(concealed, -torch.inf)
    weights = scores.contiguous().softmax(-1).view(-1)
    # Not by way of F.embedding_bag, whose checks take as long as the bags of a few rows.
    attended: Tensor = torch.embedding_bag(table, bags.places, bags.starts, False, 0, False, weights)[0]
    return attended.view(queries.shape)
