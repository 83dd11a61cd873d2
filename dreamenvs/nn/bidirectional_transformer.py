"""A Transformer in which every token of a frame sees every other: pre-norm, as BERT's descendants have it.

The released GIT-STORM normalises attention over the queries and has no residual around the feed-forward part. Over the
queries a token would not receive a mean of what it looks at, but a share of what looks at it; here the softmax is over
the keys, and both parts of a layer add to the residual stream.
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from dreamenvs.nn import initialization
from dreamenvs.nn.attention import attend_few
from dreamenvs.nn.cpu.packed import Part
from dreamenvs.nn.layers import RowLayerNorm, add_linear, gelu_linear, part_linear


class BidirectionalLayer(nn.Module):
    """LayerNorm, GELU and no biases but the norms', which come before all matrices that could have one."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm = RowLayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = RowLayerNorm(width)
        self.up = nn.Linear(width, feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, width, bias=False)
        for linear in (self.qkv, self.out, self.up, self.down):
            initialization.normal_(linear.weight)

    def forward(self, hidden: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Hidden (N, S, D) after the layer, of the `chosen` (N, S) among hidden (N, K, D), or of all."""
        attended = self._attend(self.attention_norm(hidden), chosen)
        if chosen is not None:
            hidden = take_tokens(hidden, chosen)
        hidden = self._add(hidden, attended, self.out)
        raised = gelu_linear(self.feed_forward_norm(hidden), self.up.weight)
        return self._add(hidden, raised, self.down)

    def _attend(self, normal: Tensor, chosen: Tensor | None) -> Tensor:
        """What the heads of the chosen tokens attend to (N, S, D); only they ask, but all are asked."""
        width = normal.shape[-1]
        if chosen is None:
            queries, keys, values = self._heads(normal, Part())
        else:
            (queries,) = self._heads(take_tokens(normal, chosen), Part(0, width))
            keys, values = self._heads(normal, Part(width))
        attended = attend_few(queries.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), None)
        return attended.view(queries.shape).permute(1, 2, 0, 3).flatten(2)

    def _heads(self, inputs: Tensor, part: Part) -> tuple[Tensor, ...]:
        """Queries, keys and values, or a part of them, each (heads, N, S, d), of inputs (N, S, D)."""
        found = part_linear(inputs, self.qkv.weight, part)
        found = found.view(*inputs.shape[:2], -1, self.heads, inputs.shape[-1] // self.heads)
        return found.permute(2, 3, 0, 1, 4).contiguous().unbind()

    def _add(self, hidden: Tensor, inputs: Tensor, linear: nn.Linear) -> Tensor:
        if self.training and self.dropout:
            return hidden + F.dropout(linear(inputs), self.dropout)
        return add_linear(hidden, inputs, linear.weight)


class BidirectionalTransformer(nn.Module):
    """A stack of layers."""

    def __init__(self, *, width: int, layers: int, heads: int, feed_forward: int, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = (width, heads, feed_forward, dropout)
        self.layers = nn.ModuleList(BidirectionalLayer(*sizes) for _ in range(layers))
        self.final_norm = RowLayerNorm(width)

    def forward(self, inputs: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Hidden (N, S, D) of the `chosen` (N, S) among inputs (N, K, D), or of all; no more leaves the last layer."""
        hidden, last = inputs, len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            hidden = layer(hidden, chosen if i == last else None)
        return cast(Tensor, self.final_norm(hidden))


def take_tokens(values: Tensor, chosen: Tensor) -> Tensor:
    """Values (N, S, D) of the chosen (N, S) among values (N, K, D)."""
    rows, count, width = values.shape
    starts = chosen.new_tensor(range(0, rows * count, count))[:, None]
    return values.reshape(-1, width).index_select(0, (chosen + starts).flatten()).view(rows, -1, width)
