"""A causal Transformer over a sliding window, with STEP-VQ's sizes (table 14).

Each input attends to the last `window` inputs, itself included, in every layer. Positions are rotary, for the paper
names none, or learned and cyclic as STORM's: see `sequence/positions.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from dreamenvs.nn.attention import attend_bags, attend_band, attend_few, attend_visible
from dreamenvs.sequence.kv_cache import (
    BLOCK,
    TransformerCache,
    check_fresh,
    claim_ring,
    copy_ring,
    held_inputs,
    initial_ring,
    plan_inputs,
    write_last,
    writers,
)
from dreamenvs.sequence.positions import PositionsName, build_positions
from dreamenvs.sequence.transformer_layers import LAYERS, NORMS, as_layers

LayerName = Literal["lean", "gpt", "post"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes of the stack; a head has `width / heads` channels."""

    width: int = 512
    layers: int = 4
    heads: int = 8
    feed_forward: int = 2048
    dropout: float = 0.1
    """On what attention and feed-forward add to the residual stream."""
    window: int = 128
    """How many inputs each input attends to, itself included."""
    slack: int = 0
    """Slots of the cache beyond the window, or more. With K, K + 1 inputs at once are appended in place, and a cache is
    usable while no more than K + 1 inputs were appended after it: for token-level models a block of tokens less one."""
    layer: LayerName = "lean"
    """What the layers are made of, beside attention: see `sequence/transformer_layers.py`."""
    positions: PositionsName = "rotary"
    """`rotary`, or `learned` and cyclic: see `sequence/positions.py`."""

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be an even multiple of heads, not {self.width} and {self.heads}")
        if min(self.layers, self.feed_forward, self.window) < 1 or self.slack < 0:
            raise ValueError("layers, feed_forward and window are at least 1, slack at least 0")
        if self.layer not in get_args(LayerName):
            raise ValueError(f"layer is one of {get_args(LayerName)}, not {self.layer!r}")
        if self.positions not in get_args(PositionsName):
            raise ValueError(f"positions is one of {get_args(PositionsName)}, not {self.positions!r}")


@dataclass(frozen=True, kw_only=True)
class BlockTransformerConfig:
    """GPT layers over blocks of inputs, one block for each frame; the defaults are IRIS's."""

    width: int = 256
    layers: int = 10
    heads: int = 4
    feed_forward: int = 1024
    dropout: float = 0.1
    blocks: int = 20
    """The window, in blocks."""

    def for_blocks(self, length: int) -> TransformerConfig:
        """The same for blocks of `length` inputs, with room for one block beside the window."""
        return TransformerConfig(
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            feed_forward=self.feed_forward,
            dropout=self.dropout,
            window=self.blocks * length,
            slack=length - 1,
            layer="gpt",
        )


class Transformer(nn.Module):
    """A stack of layers with attention between their halves; implements `SequenceModel`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        sizes = (config.width, config.heads, config.feed_forward, config.dropout)
        self.blocks = nn.ModuleList(LAYERS[config.layer](*sizes) for _ in range(config.layers))
        self.final_norm = NORMS[config.layer](config.width)
        self.positions = build_positions(config.positions, config.width, config.heads, config.window)

    @property
    def width(self) -> int:
        return self.config.width

    @property
    def head_dim(self) -> int:
        return self.config.width // self.config.heads

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden (B, T, D) of inputs (B, T, D)."""
        positions = self.positions.begin(inputs) + torch.arange(inputs.shape[1], device=inputs.device)
        turns, hidden = self.positions.turns(positions, inputs.dtype), self.positions.place(inputs, positions)
        for layer in as_layers(self.blocks):
            queries, keys, values = (part.transpose(1, 2) for part in layer.project(hidden, turns))
            attended = attend_band(queries, keys, values, self.config.window)
            hidden = layer.finish(hidden, attended.transpose(1, 2).flatten(2))
        return cast(Tensor, self.final_norm(hidden))

    def initial_cache(self, rows: int) -> TransformerCache:
        """The memory of rows that have seen nothing."""
        config = self.config
        slots = config.window
        if config.slack:
            # Whole blocks, as in `plan_inputs`: a sum over other numbers of slots may be rounded differently.
            slots = -(-(config.window + config.slack) // BLOCK) * BLOCK
        shape = (rows, config.heads, config.layers, slots, self.head_dim)
        return initial_ring(shape, next(self.parameters()))

    @torch.no_grad()
    def extend(self, inputs: Tensor, cache: TransformerCache) -> tuple[Tensor, TransformerCache]:
        """Hidden (B, T, D) of T more inputs (B, T, D), without gradients: training goes through `forward`."""
        if inputs.shape[1] <= self.config.slack + 1:
            return self._append(inputs, cache)
        check_fresh(cache, self.config.window)
        new = copy_ring(cache, self.config.window)
        positions = cache.position[:, None] + torch.arange(inputs.shape[1], device=inputs.device)  # (B, T)
        visible = self._visible(held_inputs(cache), positions)
        turns, hidden = self.positions.turns(positions, inputs.dtype), self.positions.place(inputs, positions)
        for i, layer in enumerate(as_layers(self.blocks)):
            queries, keys, values = (part.transpose(1, 2) for part in layer.project(hidden, turns))
            all_keys = torch.cat((new.keys[:, :, i], keys), 2)
            all_values = torch.cat((new.values[:, :, i], values), 2)
            write_last(new.keys, cache.position, i, keys)
            write_last(new.values, cache.position, i, values)
            attended = attend_visible(queries, all_keys, all_values, visible)
            hidden = layer.finish(hidden, attended.transpose(1, 2).flatten(2))
        position = cache.position + inputs.shape[1]
        return self.final_norm(hidden), new._replace(position=position, tip=position.clone())

    @torch.no_grad()
    def step(self, inputs: Tensor, cache: TransformerCache) -> tuple[Tensor, TransformerCache]:
        """Hidden (B, D) of one more input (B, D), without gradients; past the window all ages cost the same."""
        hidden, cache = self._append(inputs[:, None], cache)
        return hidden[:, 0], cache

    def _append(self, inputs: Tensor, cache: TransformerCache) -> tuple[Tensor, TransformerCache]:
        """`extend` in place, by no more inputs than there is room for beside all that they see."""
        count, width = inputs.shape[1:]
        cache = claim_ring(cache, self.config.window)
        plan = plan_inputs(cache, self.config.window, count)
        write_keys, write_values = (writers(ring, plan, count) for ring in (cache.keys, cache.values))
        # Of each layer (B · heads, span, d).
        all_keys, all_values = (ring.flatten(0, 1)[:, :, : plan.span].unbind(1) for ring in (cache.keys, cache.values))
        vectors, slots = cache.values.view(-1, self.head_dim), cache.values.shape[3]
        positions = cache.position[:, None] + torch.arange(count, device=inputs.device)
        turns, hidden = self.positions.turns(positions, inputs.dtype), self.positions.place(inputs, positions)
        for i, layer in enumerate(as_layers(self.blocks)):
            queries, keys, values = (part.transpose(1, 2) for part in layer.project(hidden, turns))
            write_keys[i](keys)
            write_values[i](values)
            queries = queries.reshape(-1, count, self.head_dim)
            if plan.bags is None:
                attended = attend_few(queries, all_keys[i], all_values[i], plan.concealed)
            else:
                # Bags are of the first layer; the values of another lie as far behind as its slots do.
                attended = attend_bags(queries, all_keys[i], vectors[i * slots :], plan.bags, plan.concealed)
            attended = attended.view(len(inputs), -1, count, self.head_dim).transpose(1, 2).reshape(-1, count, width)
            hidden = layer.finish(hidden, attended)
        cache.tip.add_(count)
        return self.final_norm(hidden), cache._replace(position=cache.position + count)

    def flops_per_step(self) -> int:
        """Floating-point operations of one `step`, per row, with a full window, without norms and activations."""
        config = self.config
        projections = 4 * config.width**2 + 2 * config.width * config.feed_forward
        return config.layers * 2 * (projections + 2 * config.window * config.width)

    def _visible(self, held: Tensor, positions: Tensor) -> Tensor:
        """(B, 1, T, slots + T) what inputs at positions (B, T) see of the held inputs (B, slots) and one another."""
        sources = torch.cat((held, positions), 1)[:, None]
        age = positions[..., None] - sources
        return ((age >= 0) & (age < self.config.window) & (sources >= 0))[:, None]
