"""Retention (Sun et al., 2023; REM, equations 4-7) for all heads of a layer, in four forms that give the same numbers.

Queries, keys and values are (B, heads, T, d) before any rotation. The state (B, heads, d, d) has values before keys,
the transpose of the paper's, and is kept in a moving frame: retention knows only distances, so a row's state is turned
and decayed as if the next token stood at position 0. No position is stored, and rows of any age share a batch.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from dreamenvs.nn.attention import BASE, rotate

MAX_CHUNK = 1024


class Turns(NamedTuple):
    """What a chunk's queries and keys are multiplied with: complex (heads, T, d / 2), rotation, decay and scale in one.

    Query n grows by γ^(n+1) and key m by γ^-(m+1), so their product has the γ^(n-m) of the paper's matrix D, and the
    product of a query with the state before the chunk has the paper's ξ.
    """

    queries: Tensor
    keys: Tensor


class Retained(NamedTuple):
    """What the heads give, and what they remember."""

    outputs: Tensor  # (B, heads, T, d)
    states: Tensor  # (B, heads, d, d) after all tokens, or (B, heads, blocks + 1, d, d) before and after each block


def decays(heads: int, device: torch.device | None = None) -> Tensor:
    """γ (heads,) float64, from 1 - 1/32 to 1 - 1/512.

    Appendix A.3 says 1 - 2^(-5-i), which is the same for one head and for five only; the published results, with
    four, were made with this one.
    """
    return 1 - torch.linspace(math.log(1 / 32), math.log(1 / 512), heads, dtype=torch.float64, device=device).exp()


def thetas(head_dim: int, device: torch.device | None = None) -> Tensor:
    """Radians per token (d / 2,) float64 of each pair of channels; unlike RoPE's the slowest is exactly 1 / BASE."""
    return BASE ** -torch.linspace(0, 1, head_dim // 2, dtype=torch.float64, device=device)


@lru_cache(maxsize=32)
def chunk_turns(heads: int, head_dim: int, length: int, dtype: torch.dtype, device: torch.device) -> Turns:
    """The tables of a chunk of `length` tokens."""
    # The two exponentials are apart, so a long chunk would overflow: γ^-1024 is 1e14, which every dtype here can hold.
    if length > MAX_CHUNK:
        raise ValueError(f"a chunk has at most {MAX_CHUNK} tokens, not {length}")
    with torch.inference_mode(False), torch.no_grad():
        positions = torch.arange(length, dtype=torch.float64, device=device)
        growth = decays(heads, device)[:, None, None] ** (positions[:, None] + 1)
        angles = positions[:, None] * thetas(head_dim, device)
        turns = torch.polar(torch.ones_like(angles), angles)
        to = dtype.to_complex()
        return Turns((turns * growth).to(to), (turns / growth / math.sqrt(head_dim)).to(to))


@lru_cache(maxsize=32)
def frame_turns(heads: int, head_dim: int, tokens: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """What moves a state's frame over each of several numbers of tokens (n,): complex (heads, n, 1, d / 2)."""
    with torch.inference_mode(False), torch.no_grad():
        count = torch.tensor(tokens, dtype=torch.float64, device=device)[:, None, None]
        angles = -count * thetas(head_dim, device)
        turns = torch.polar(torch.ones_like(angles), angles)
        return (turns * decays(heads, device)[:, None, None, None] ** count).to(dtype.to_complex())


@lru_cache(maxsize=32)
def back_turn(head_dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The turn (d / 2,) of a query or key one position before the frame."""
    with torch.inference_mode(False), torch.no_grad():
        angles = -thetas(head_dim, device)
        return torch.polar(torch.ones_like(angles), angles).to(dtype.to_complex())


def advance(states: Tensor, tokens: int) -> Tensor:
    """States (B, heads, d, d) seen from `tokens` later: decayed, and turned back."""
    heads, head_dim = states.shape[1], states.shape[-1]
    return rotate(states, frame_turns(heads, head_dim, (tokens,), states.dtype, states.device)[:, 0])


def retain_parallel(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Outputs (B, heads, T, d) of a whole sequence, (QKᵀ ⊙ D) V, with the paper's absolute positions and no state."""
    heads, length, head_dim = queries.shape[1:]
    positions = torch.arange(length, dtype=torch.float64, device=queries.device)
    angles = positions[:, None] * thetas(head_dim, queries.device)
    turns = torch.polar(torch.ones_like(angles), angles).to(queries.dtype.to_complex())
    age = (positions[:, None] - positions).clamp(min=0)
    decay = (decays(heads, queries.device)[:, None, None] ** age).tril().to(queries.dtype)
    scores = rotate(queries, turns) @ rotate(keys / math.sqrt(head_dim), turns).mT
    return (scores * decay) @ values


def retain_recurrent(queries: Tensor, keys: Tensor, values: Tensor, state: Tensor) -> Retained:
    """Outputs and final state, one token at a time: the state decays, takes k and v, is read, and moves on by one."""
    decay = decays(queries.shape[1], queries.device)[:, None, None].to(queries.dtype)
    turn, outputs = back_turn(queries.shape[-1], queries.dtype, queries.device), []
    for t in range(queries.shape[2]):
        query, key, value = queries[:, :, t], keys[:, :, t] / math.sqrt(keys.shape[-1]), values[:, :, t]
        state = decay * state + value[..., :, None] * key[..., None, :]
        outputs.append((state * query[..., None, :]).sum(-1))
        state = rotate(state, turn)
    return Retained(torch.stack(outputs, 2), state)


def retain_chunkwise(queries: Tensor, keys: Tensor, values: Tensor, state: Tensor, chunk: int) -> Retained:
    """Outputs and final state, parallel inside chunks of `chunk` tokens and recurrent between them."""
    length, outputs = queries.shape[2], []
    full = length // chunk * chunk
    for start, stop, size in ((0, full, chunk), (full, length, length - full)):
        if start < stop:
            parts = (part[:, :, start:stop] for part in (queries, keys, values))
            q, k, v = (rearrange(part, "B h (c l) d -> B h c 1 l d", l=size) for part in parts)
            piece = _retain_chunks(q, k, v, state)
            outputs.append(piece.outputs.flatten(2, 3))
            state = piece.states[:, :, -1]
    return Retained(torch.cat(outputs, 2), state)


def retain_blockwise(queries: Tensor, keys: Tensor, values: Tensor, state: Tensor, chunk_blocks: int) -> Retained:
    """Outputs (B, heads, blocks, L, d) of (B, heads, blocks, L, d), and the state before and after every block.

    The chunks are of `chunk_blocks` blocks, which changes speed, never results; the last one may be shorter.
    """
    blocks, outputs, states = queries.shape[2], [], []
    full = blocks // chunk_blocks * chunk_blocks
    for start, stop, size in ((0, full, chunk_blocks), (full, blocks, blocks - full)):
        if start < stop:
            parts = (part[:, :, start:stop] for part in (queries, keys, values))
            q, k, v = (rearrange(part, "B h (c b) l d -> B h c b l d", b=size) for part in parts)
            piece = _retain_chunks(q, k, v, state)
            state = piece.states[:, :, -1]
            outputs.append(piece.outputs)
            states.append(piece.states[:, :, :-1])
    return Retained(torch.cat(outputs, 2), torch.cat((*states, state[:, :, None]), 2))


def retain_peeking(queries: Tensor, keys: Tensor, values: Tensor, state: Tensor) -> Tensor:
    """Outputs of one chunk, from a state that stays; one row of queries may meet the states of many rows."""
    heads, length, head_dim = queries.shape[1:]
    turns = chunk_turns(heads, head_dim, length, queries.dtype, queries.device)
    queries, keys = rotate(queries, turns.queries), rotate(keys, turns.keys)
    return (queries @ keys.mT).tril() @ values + queries @ state.mT


def _retain_chunks(queries: Tensor, keys: Tensor, values: Tensor, state: Tensor) -> Retained:
    """`retain_blockwise` of whole chunks (B, heads, chunks, blocks, L, d), all of them at once."""
    heads, chunks, blocks, length, head_dim = queries.shape[1:]
    turns = chunk_turns(heads, head_dim, blocks * length, queries.dtype, queries.device)
    queries = rotate(queries.flatten(3, 4), turns.queries[:, None])
    keys = rotate(keys.flatten(3, 4), turns.keys[:, None])
    # Equations 6 and 7 in the frame of the chunk's start, where summing is all that is left of the recurrence.
    by_block = rearrange(keys, "B h c (b l) d -> B h c b l d", b=blocks)
    added = (values.mT @ by_block).cumsum(3)  # (B, heads, chunks, blocks, d, d)
    starts = [state]
    for i in range(chunks):
        starts.append(advance(starts[-1] + added[:, :, i, -1], blocks * length))
    start = torch.stack(starts[:-1], 2)
    # Equation 4.
    within = (queries @ keys.mT).tril() @ values.flatten(3, 4)
    outputs = rearrange(within + queries @ start.mT, "B h c (b l) d -> B h (c b) l d", b=blocks)
    states = start[:, :, :, None]
    if blocks > 1:
        tokens = tuple(i * length for i in range(1, blocks))
        frames = frame_turns(heads, head_dim, tokens, state.dtype, state.device)
        states = torch.cat((states, rotate(states + added[:, :, :, :-1], frames[:, None])), 3)
    return Retained(outputs, torch.cat((states.flatten(2, 3), starts[-1][:, :, None]), 2))


def retain_chunk(queries: Tensor, keys: Tensor, values: Tensor, state: Tensor) -> Tensor:
    """Equation 4 for one chunk without gradients: (N, L, d) from turned queries and keys (N, L, d) and state (N, d, d).

    N are the heads of all rows.
    """
    outputs = torch.bmm(queries, state.mT)
    # In place by `out=`, because FlopCounterMode does not see baddbmm_.
    return torch.baddbmm(outputs, torch.bmm(queries, keys.mT).tril_(), values, out=outputs)


def remember_chunk(keys: Tensor, values: Tensor, state: Tensor, new_state: Tensor, heads: int) -> None:
    """Equation 5 for one chunk: write the state (N, d, d) after turned keys and values (N, L, d), seen from its end.

    The new state may be the old one.
    """
    length, head_dim = keys.shape[1:]
    frame = frame_turns(heads, head_dim, (length,), state.dtype, state.device)[:, 0]  # (heads, 1, d / 2)
    pairs = (-1, heads, head_dim, head_dim // 2, 2)
    total, room = (part.view(pairs) for part in (torch.baddbmm(state, values.mT, keys), new_state))
    torch.mul(torch.view_as_complex(total), frame, out=torch.view_as_complex(room))


def turn_chunk(inputs: Tensor, bias: Tensor, turns: Tensor) -> Tensor:
    """Inputs (B, L, heads, d) plus bias (heads, d), turned by turns (heads, L, d / 2): (B · heads, L, d)."""
    rows, length, heads, head_dim = inputs.shape
    turned = torch.empty(rows, heads, length, head_dim // 2, dtype=turns.dtype, device=turns.device)
    pairs = torch.view_as_complex(inputs.view(rows, length, heads, head_dim // 2, 2)).transpose(1, 2)
    turned_bias = torch.view_as_complex(bias.view(heads, 1, head_dim // 2, 2)) * turns
    torch.addcmul(turned_bias, pairs, turns, out=turned)
    return torch.view_as_real(turned).view(rows * heads, length, head_dim)
