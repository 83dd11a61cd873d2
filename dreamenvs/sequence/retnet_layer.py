"""One layer of the RetNet (REM, appendix A.3): multi-scale retention, then a feed-forward network, both pre-norm.

`project` and `finish` are for training, with gradients and dropout; the methods with a trailing underscore are for
inference, write into `hidden`, and give a row the same bits in a batch of any size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dreamenvs.nn import initialization
from dreamenvs.nn.layers import MIN_ROWS, row_silu
from dreamenvs.sequence.retention import Turns, back_turn, chunk_turns, remember_chunk, retain_chunk, turn_chunk

QUERIES, KEYS, VALUES, GATE = range(4)
EPS = 1e-6
# BLAS shares a longer sum between threads, in a way that depends on the number of rows. It is also how much of the
# feed-forward network is computed at a time, for what lies in the cache is not read from memory again.
MAX_SUM = 512


class Projected(NamedTuple):
    """What a layer makes of its inputs."""

    queries: Tensor  # (B, heads, T, d), as keys and values
    keys: Tensor
    values: Tensor
    gate: Tensor  # (B, T, D)


class SharedQueries(NamedTuple):
    """What the first layer makes of inputs that are the same in every row."""

    queries: Tensor  # (heads, K, d), turned
    within: Tensor  # (heads, K, d), what they retain of one another
    opened: Tensor  # (K, heads, d), the gate


class RetNetLayer(nn.Module):
    """Queries, keys, values and gate are one projection, in this order."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.retention_norm = nn.LayerNorm(width, EPS)
        self.qkvg = nn.Linear(width, 4 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width, EPS)
        self.up = nn.Linear(width, feed_forward)
        self.down = nn.Linear(feed_forward, width)
        for linear in (self.qkvg, self.out, self.up, self.down):
            nn.init.zeros_(linear.bias)
        for weight in (*self.qkvg.weight.chunk(4), self.out.weight, self.up.weight, self.down.weight):
            initialization.xavier_normal_(weight)

    def project(self, hidden: Tensor) -> Projected:
        """What to retain of hidden (B, T, D)."""
        # In chunks: the gradients of slices would each be a tensor of zeros but for a part.
        *heads, gate = self.qkvg(self.retention_norm(hidden)).chunk(4, -1)
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in heads)
        return Projected(queries, keys, values, gate)

    def finish(self, hidden: Tensor, retained: Tensor, gate: Tensor) -> Tensor:
        """Hidden (B, T, D) after the layer, given what its heads retained (B, heads, T, d)."""
        # Each head of each token is normalised alone: GroupNorm per token, without weights.
        normed = F.layer_norm(self._drop(retained), retained.shape[-1:], eps=EPS).transpose(1, 2).flatten(2)
        hidden = hidden + self._drop(self.out(normed * F.silu(gate)))
        # The paper says GELU; SiLU is what its results were made with.
        raised = self._drop(F.silu(self.up(self.feed_forward_norm(hidden))))
        return hidden + self._drop(self.down(raised))

    def extend_(self, hidden: Tensor, state: Tensor, new_state: Tensor | None) -> None:
        """Put hidden (B, L, D) through the layer, and the state (B · heads, d, d) after it into `new_state`, if any."""
        normed = _norm(hidden, self.retention_norm)
        room = torch.empty_like(normed)  # for one projection after the other, which then stays in the cache
        turns = self._turns(hidden)
        queries = self._turned(normed, QUERIES, turns.queries, room)
        keys, values = self._turned(normed, KEYS, turns.keys, room), self._values(normed, room)
        retained = retain_chunk(queries, keys, values, state)
        if new_state is not None:
            remember_chunk(keys, values, state, new_state, self.heads)
        self._finish_(hidden, retained, self._opened(normed, room))

    def extend_last(self, hidden: Tensor, state: Tensor, new_state: Tensor) -> Tensor:
        """What `extend_` would make of the last of hidden (B, L, D), as (B, D): the others leave keys and values only.

        The last token retains all of the chunk, so it reads the new state, one position before its frame.
        """
        normed = _norm(hidden, self.retention_norm)
        room = torch.empty_like(normed)
        keys = self._turned(normed, KEYS, self._turns(hidden).keys, room)
        remember_chunk(keys, self._values(normed, room), state, new_state, self.heads)
        last, normed = hidden[:, -1:].contiguous(), normed[:, -1:].contiguous()
        room = torch.empty_like(last)
        back = back_turn(keys.shape[-1], keys.dtype, keys.device)
        retained = torch.bmm(self._turned(normed, QUERIES, back, room), new_state.mT)
        self._finish_(last, retained, self._opened(normed, room))
        return last[:, 0]

    def share(self, queries: Tensor) -> SharedQueries:
        """The part of `extend_` that all rows have in common, for inputs (K, D)."""
        normed = _norm(queries[None], self.retention_norm)
        room, turns = torch.empty_like(normed), self._turns(normed)
        turned = self._turned(normed, QUERIES, turns.queries, room)
        keys, values = self._turned(normed, KEYS, turns.keys, room), self._values(normed, room)
        within = torch.bmm(torch.bmm(turned, keys.mT).tril_(), values)
        return SharedQueries(turned, within, self._opened(normed, room)[0])

    def peek_(self, hidden: Tensor, shared: SharedQueries, state: Tensor) -> None:
        """`extend_` of inputs that are the same in every row, hidden (B, K, D), without a new state."""
        rows = hidden.shape[0]
        within, queries = (part.expand(rows, *part.shape).flatten(0, 1) for part in (shared.within, shared.queries))
        self._finish_(hidden, torch.baddbmm(within, queries, state.mT), shared.opened)

    def _turns(self, hidden: Tensor) -> Turns:
        return chunk_turns(self.heads, hidden.shape[-1] // self.heads, hidden.shape[1], hidden.dtype, hidden.device)

    def _turned(self, normed: Tensor, part: int, turns: Tensor, room: Tensor) -> Tensor:
        """Queries or keys (B · heads, L, d) of normed (B, L, D)."""
        return turn_chunk(self._project(normed, part, room), self._bias(part), turns)

    def _values(self, normed: Tensor, room: Tensor) -> Tensor:
        """Values (B · heads, L, d) of normed (B, L, D)."""
        values = self._project(normed, VALUES, room).transpose(1, 2)
        return torch.add(values, self._bias(VALUES)[:, None], out=room.new_empty(values.shape)).flatten(0, 1)

    def _opened(self, normed: Tensor, room: Tensor) -> Tensor:
        """The open gate (B, L, heads, d) of normed (B, L, D), in `room`."""
        gate = self._project(normed, GATE, room).add_(self._bias(GATE))
        row_silu(room, inplace=True)
        return gate

    def _project(self, normed: Tensor, part: int, room: Tensor) -> Tensor:
        """One of the four projections (B, L, heads, d), without its bias, of normed (B, L, D), in room (B, L, D)."""
        width = normed.shape[-1]
        weight = self.qkvg.weight[part * width : (part + 1) * width]
        _product(normed.view(-1, width), weight, room.view(-1, width))
        return room.view(*room.shape[:2], self.heads, -1)

    def _bias(self, part: int) -> Tensor:
        return self.qkvg.bias.view(4, self.heads, -1)[part]

    def _finish_(self, hidden: Tensor, retained: Tensor, opened: Tensor) -> None:
        """`finish` for hidden (B, L, D) in place, what the heads retained (B · heads, L, d) and an open gate."""
        rows, length, width = hidden.shape
        tokens = hidden.view(-1, width)
        normed = _normalise_(retained).view(rows, self.heads, length, -1).transpose(1, 2)
        gated = torch.mul(normed, opened, out=hidden.new_empty(normed.shape))
        _add_product_(tokens.add_(self.out.bias), gated.view(tokens.shape), self.out.weight)
        fed = _norm(tokens, self.feed_forward_norm)
        tokens.add_(self.down.bias)
        for start in range(0, len(self.up.bias), MAX_SUM):
            some = slice(start, start + MAX_SUM)
            raised = fed.new_empty(len(fed), len(self.up.bias[some]))
            _product(fed, self.up.weight[some], raised)
            raised = row_silu(raised.add_(self.up.bias[some]), inplace=True)
            _add_product_(tokens, raised, self.down.weight[:, some])

    def _drop(self, inputs: Tensor) -> Tensor:
        return F.dropout(inputs, self.dropout, self.training)


def _norm(inputs: Tensor, norm: nn.LayerNorm) -> Tensor:
    return F.layer_norm(inputs, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _normalise_(inputs: Tensor) -> Tensor:
    """`F.layer_norm` over the last dimension in place: that is twice as slow on rows as short as a head's."""
    inputs.sub_(inputs.mean(-1, keepdim=True))
    lengths: Tensor = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
    return inputs.mul_(lengths.square_().div_(inputs.shape[-1]).add_(EPS).rsqrt_())


def _product(inputs: Tensor, weight: Tensor, room: Tensor) -> None:
    """Write what weight (D', D) makes of inputs (N, D) into room (N, D').

    In rows: unlike `row_linear`'s columns they can be normalised where they lie.
    """
    if len(room) < MIN_ROWS or inputs.shape[1] > MAX_SUM:
        _add_product_(room.zero_(), inputs, weight)
    else:
        torch.mm(inputs, weight.t(), out=room)


def _add_product_(total: Tensor, inputs: Tensor, weight: Tensor) -> None:
    """Add to total (N, D') what weight (D', D) makes of inputs (N, D)."""
    count = len(total)
    if count < MIN_ROWS:
        padded = F.pad(total, (0, 0, 0, MIN_ROWS - count))
        _add_product_(padded, F.pad(inputs, (0, 0, 0, MIN_ROWS - count)), weight)
        total.copy_(padded[:count])
        return
    for start in range(0, inputs.shape[1], MAX_SUM):
        some = slice(start, start + MAX_SUM)
        # In place by `out=`, because FlopCounterMode does not see addmm_.
        torch.addmm(total, inputs[:, some], weight[:, some].t(), out=total)
