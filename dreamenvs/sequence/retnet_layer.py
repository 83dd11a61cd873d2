"""One layer of the RetNet (REM, appendix A.3): multi-scale retention, then a feed-forward network, both pre-norm.

`project` and `finish` are for training, with gradients and dropout; the methods with a trailing underscore are for
inference, write into `hidden`, and give a row the same bits in a batch of any size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dreamenvs.nn.attention import rotate
from dreamenvs.nn.layers import MIN_ROWS, row_silu
from dreamenvs.sequence.retention import back_turn, chunk_turns, remember_chunk, retain_chunk, turn_chunk

EPS = 1e-6
# BLAS shares a longer sum between threads, in a way that depends on the number of rows.
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
    gate: Tensor  # (1, K, D)


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
            nn.init.xavier_normal_(weight)

    def project(self, hidden: Tensor) -> Projected:
        """What to retain of hidden (B, T, D)."""
        projected = self.qkvg(self.retention_norm(hidden)).unflatten(-1, (4, self.heads, -1))
        queries, keys, values = projected[..., :3, :, :].permute(2, 0, 3, 1, 4).unbind()
        return Projected(queries, keys, values, projected[..., 3, :, :].flatten(-2))

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
        projected = self._project(hidden)
        self._finish_(hidden, retain_chunk(projected, state, new_state), projected[:, :, 3].flatten(2))

    def extend_last(self, hidden: Tensor, state: Tensor, new_state: Tensor) -> Tensor:
        """What `extend_` would make of the last of hidden (B, L, D), as (B, D): the others leave keys and values only.

        The last token retains all of the chunk, so it reads the new state, one position before its frame.
        """
        rows, length, width = hidden.shape
        normed = _norm(hidden, self.retention_norm)
        weight, bias = self.qkvg.weight[width : 3 * width], self.qkvg.bias[width : 3 * width]
        keys, values = _linear(normed.view(-1, width), weight, bias).view(rows, length, 2, self.heads, -1).unbind(2)
        turns = chunk_turns(self.heads, keys.shape[-1], length, keys.dtype, keys.device)
        values = values.transpose(1, 2).reshape(-1, *keys.shape[1::2])
        remember_chunk(turn_chunk(keys, turns.keys), values, state, new_state, self.heads)
        last = _linear(normed[:, -1], self.qkvg.weight, self.qkvg.bias).view(rows, 4, self.heads, -1)
        query = rotate(last[:, 0], back_turn(keys.shape[-1], keys.dtype, keys.device)).view(-1, 1, keys.shape[-1])
        retained = torch.bmm(query, new_state.mT).view(rows, self.heads, 1, -1)
        result = hidden[:, -1:].contiguous()
        self._finish_(result, retained, last[:, 3:].flatten(2))
        return result[:, 0]

    def share(self, queries: Tensor) -> SharedQueries:
        """The part of `extend_` that all rows have in common, for inputs (K, D)."""
        projected = self._project(queries[None])
        length, _, heads, head_dim = projected.shape[1:]
        turns = chunk_turns(heads, head_dim, length, projected.dtype, projected.device)
        turned = turn_chunk(projected[:, :, 0], turns.queries)
        state = projected.new_zeros(heads, head_dim, head_dim)
        within = retain_chunk(projected, state)[0]
        return SharedQueries(turned, within, projected[:, :, 3].flatten(2))

    def peek_(self, hidden: Tensor, shared: SharedQueries, state: Tensor) -> None:
        """`extend_` of inputs that are the same in every row, hidden (B, K, D), without a new state."""
        rows = hidden.shape[0]
        within, queries = (part.expand(rows, *part.shape).flatten(0, 1) for part in (shared.within, shared.queries))
        retained = torch.baddbmm(within, queries, state.mT).view(rows, *shared.within.shape)
        self._finish_(hidden, retained, shared.gate)

    def _project(self, hidden: Tensor) -> Tensor:
        """(B, L, 4, heads, d): queries, keys, values and gate of hidden (B, L, D)."""
        normed = _norm(hidden, self.retention_norm).flatten(0, 1)
        projected = _linear(normed, self.qkvg.weight, self.qkvg.bias)
        return projected.view(*hidden.shape[:2], 4, self.heads, -1)

    def _finish_(self, hidden: Tensor, retained: Tensor, gate: Tensor) -> None:
        width = hidden.shape[-1]
        hidden = hidden.view(-1, width)
        normed = F.layer_norm(retained, retained.shape[-1:], eps=EPS).transpose(1, 2)
        opened = row_silu(gate).view(gate.shape[0], *normed.shape[1:])
        gated = torch.mul(normed, opened, out=hidden.new_empty(normed.shape))
        _add_linear_(hidden, gated.view(-1, width), self.out)
        raised = row_silu(_linear(_norm(hidden, self.feed_forward_norm), self.up.weight, self.up.bias))
        _add_linear_(hidden, raised, self.down)

    def _drop(self, inputs: Tensor) -> Tensor:
        return F.dropout(inputs, self.dropout, self.training)


def _norm(inputs: Tensor, norm: nn.LayerNorm) -> Tensor:
    return F.layer_norm(inputs, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(N, D') of inputs (N, D), in rows: unlike `row_linear`'s columns they can be normalised where they lie."""
    count = len(inputs)
    if count < MIN_ROWS:
        inputs = F.pad(inputs, (0, 0, 0, MIN_ROWS - count))
    return torch.addmm(bias, inputs, weight.t())[:count]


def _add_linear_(total: Tensor, inputs: Tensor, linear: nn.Linear) -> None:
    """Add the linear map of inputs (N, D) to total (N, D') in place."""
    count = len(inputs)
    if count < MIN_ROWS:
        padded, inputs = (F.pad(part, (0, 0, 0, MIN_ROWS - count)) for part in (total, inputs))
    else:
        padded = total
    padded.add_(linear.bias)
    for start in range(0, inputs.shape[1], MAX_SUM):
        padded.addmm_(inputs[:, start : start + MAX_SUM], linear.weight[:, start : start + MAX_SUM].t())
    if count < MIN_ROWS:
        total.copy_(padded[:count])
