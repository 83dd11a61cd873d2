"""The Retentive Network of REM (Cohen et al., 2024, appendix A.3), with the calls that predicting frames at once needs.

A row's memory is one matrix per head and layer, however many tokens it has seen. There is no norm after the last layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.sequence.retention import MAX_CHUNK, retain_blockwise, retain_chunkwise, retain_peeking
from dreamenvs.sequence.retnet_layer import RetNetLayer

# Tokens that go through all layers together, so that what one operation writes is in the cache for the next.
GROUP_TOKENS = 2080


@dataclass(frozen=True, kw_only=True)
class RetNetConfig:
    """Sizes of the stack; a head has `width / heads` channels."""

    width: int = 256
    layers: int = 5
    heads: int = 4
    feed_forward: int = 1024
    dropout: float = 0.1
    """On what the heads retain, inside the feed-forward network, and on what either adds to the residual stream."""
    chunk: int = 128
    """Tokens that are treated in parallel; it changes speed, never results. The paper's 195 is slower on CPU."""

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be an even multiple of heads, not {self.width} and {self.heads}")
        if min(self.layers, self.feed_forward) < 1:
            raise ValueError("layers and feed_forward are at least 1")
        if not 1 <= self.chunk <= MAX_CHUNK:
            raise ValueError(f"chunk must be in 1..{MAX_CHUNK}, not {self.chunk}")


class RetNetCache(NamedTuple):
    """All that a row remembers, seen from its own next token."""

    # Heads before layers: so all heads of all rows in one layer are one batch of matrices, without a copy.
    states: Tensor  # (B, heads, layers, d, d), values before keys


class Peeked(NamedTuple):
    """Hidden of real blocks, and what the queries would have given before each of them."""

    hidden: Tensor  # (B, T, L, D)
    peeked: Tensor  # (B, T, K, D)


class RetNet(nn.Module):
    """A stack of retention layers; implements `SequenceModel`.

    `forward` and `forward_peeking` are for training. The others are without gradients and without dropout.
    """

    def __init__(self, config: RetNetConfig) -> None:
        super().__init__()
        self.config = config
        # The published code copies one layer, so that all begin with the same weights; here each draws its own.
        self.layers = nn.ModuleList(
            RetNetLayer(config.width, config.heads, config.feed_forward, config.dropout) for _ in range(config.layers)
        )

    @property
    def width(self) -> int:
        return self.config.width

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden (B, T, D) of inputs (B, T, D)."""
        hidden, start = inputs, self.initial_cache(inputs.shape[0]).states
        for i, layer in enumerate(self._layers()):
            queries, keys, values, gate = layer.project(hidden)
            retained = retain_chunkwise(queries, keys, values, start[:, :, i], self.config.chunk)
            hidden = layer.finish(hidden, retained.outputs, gate)
        return hidden

    def forward_peeking(self, blocks: Tensor, queries: Tensor, chunk_blocks: int | None = None) -> Peeked:
        """Hidden of blocks (B, T, L, D), and of queries (K, D) put in place of each block (algorithms 1 and 2).

        `chunk_blocks` is how many blocks are treated in parallel, by default as many as `chunk` holds.
        """
        rows, count, length, _ = blocks.shape
        chunk_blocks = min(chunk_blocks or max(1, self.config.chunk // length), count)
        start = self.initial_cache(rows).states
        hidden, peeked = blocks.flatten(1, 2), queries.expand(rows * count, *queries.shape)
        for i, layer in enumerate(self._layers()):
            real = layer.project(hidden)
            q, k, v = (rearrange(part, "B h (t l) d -> B h t l d", t=count) for part in real[:3])
            retained = retain_blockwise(q, k, v, start[:, :, i], chunk_blocks)
            hidden = layer.finish(hidden, retained.outputs.flatten(2, 3), real.gate)
            before = retained.states[:, :, :-1].transpose(1, 2).flatten(0, 1)
            peeked = self._peek_forward(layer, peeked, before, shared=i == 0)
        return Peeked(hidden.view(blocks.shape), peeked.view(rows, count, *queries.shape))

    def initial_cache(self, rows: int) -> RetNetCache:
        """The memory of rows that have seen nothing."""
        config, weight = self.config, self._layers()[0].out.weight
        head_dim = config.width // config.heads
        return RetNetCache(weight.new_zeros(rows, config.heads, config.layers, head_dim, head_dim))

    @torch.no_grad()
    def extend(self, inputs: Tensor, cache: RetNetCache) -> tuple[Tensor, RetNetCache]:
        """Hidden (B, T, D) of inputs (B, T, D) that follow what the cache has seen."""
        hidden, states = (part.clone(memory_format=torch.contiguous_format) for part in (inputs, cache.states))
        chunk = self.config.chunk
        for rows in _groups(cache, min(inputs.shape[1], chunk)):
            memory = states[rows].flatten(0, 1)
            for start in range(0, inputs.shape[1], chunk):
                piece = hidden[rows, start : start + chunk].contiguous()
                for i, layer in enumerate(self._layers()):
                    layer.extend_(piece, memory[:, i], memory[:, i])
                hidden[rows, start : start + chunk] = piece
        return hidden, RetNetCache(states)

    def step(self, inputs: Tensor, cache: RetNetCache) -> tuple[Tensor, RetNetCache]:
        """Hidden (B, D) of one more input (B, D)."""
        hidden, cache = self.extend(inputs[:, None], cache)
        return hidden[:, 0], cache

    @torch.no_grad()
    def extend_last(self, inputs: Tensor, cache: RetNetCache) -> tuple[Tensor, RetNetCache]:
        """`extend`, with the hidden (B, D) of the last of inputs (B, L, D) alone: the last layer does less for it."""
        chunk = self.config.chunk
        if inputs.shape[1] > chunk:
            _, cache = self.extend(inputs[:, :-chunk], cache)
            inputs = inputs[:, -chunk:]
        last = torch.empty_like(inputs[:, 0])
        states = torch.empty_like(cache.states, memory_format=torch.contiguous_format)
        *layers, final = self._layers()
        for group in _groups(cache, inputs.shape[1]):
            old, new = cache.states[group].flatten(0, 1), states[group].flatten(0, 1)
            hidden = inputs[group].clone(memory_format=torch.contiguous_format)
            for i, layer in enumerate(layers):
                layer.extend_(hidden, old[:, i], new[:, i])
            last[group] = final.extend_last(hidden, old[:, -1], new[:, -1])
        return last, RetNetCache(states)

    @torch.no_grad()
    def peek(self, queries: Tensor, cache: RetNetCache) -> Tensor:
        """Hidden (B, K, D) that `extend` of queries (K, D), the same in every row, would give; the cache stays."""
        hidden = queries.repeat(len(cache.states), 1, 1)
        first, *layers = self._layers()
        shared = first.share(queries)
        for group in _groups(cache, len(queries)):
            states = cache.states[group].flatten(0, 1)
            first.peek_(hidden[group], shared, states[:, 0])
            for i, layer in enumerate(layers, 1):
                layer.extend_(hidden[group], states[:, i], None)
        return hidden

    def _peek_forward(self, layer: RetNetLayer, peeked: Tensor, states: Tensor, shared: bool) -> Tensor:
        """Peeked (N, K, D) after a layer, from states (N, heads, d, d); shared inputs are projected once."""
        queries, keys, values, gate = layer.project(peeked[:1] if shared else peeked)
        retained = retain_peeking(queries, keys, values, states)
        return layer.finish(peeked, retained, gate)

    def _layers(self) -> list[RetNetLayer]:
        return [cast(RetNetLayer, layer) for layer in self.layers]


def _groups(cache: RetNetCache, tokens: int) -> Iterator[slice]:
    """Slices of rows with `tokens` each, as equal as they can be, with GROUP_TOKENS together at most."""
    rows = len(cache.states)
    count = min(rows, math.ceil(rows * tokens / GROUP_TOKENS)) if cache.states.device.type == "cpu" else 1
    return (slice(rows * i // count, rows * (i + 1) // count) for i in range(count))
