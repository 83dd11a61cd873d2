"""A causal Transformer over a sliding window, with STEP-VQ's sizes (table 14).

Each input attends to the last `window` inputs, itself included, in every layer. Positions are rotary: the paper names
none, and learned absolute ones would force the whole window to be encoded again whenever it slides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dreamenvs.nn.attention import attend_band, attend_one, attend_visible, rotary_turns, rotate
from dreamenvs.nn.layers import RowRMSNorm, row_linear, row_silu
from dreamenvs.sequence.cache import (
    TransformerCache,
    check_fresh,
    claim_ring,
    copy_ring,
    held_inputs,
    initial_ring,
    next_slots,
    next_view,
    write_last,
)


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

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be an even multiple of heads, not {self.width} and {self.heads}")
        if min(self.layers, self.feed_forward, self.window) < 1:
            raise ValueError("layers, feed_forward and window are at least 1")


class Block(nn.Module):
    """One layer in its two halves: what comes before attention, and what comes after."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.attention_norm = RowRMSNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.feed_forward_norm = RowRMSNorm(config.width)
        self.up = nn.Linear(config.width, config.feed_forward, bias=False)
        self.down = nn.Linear(config.feed_forward, config.width, bias=False)

    def project(self, hidden: Tensor, turns: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values (..., heads, head_dim) of hidden (..., D), with turns (..., 1, head_dim / 2)."""
        projected = row_linear(self.attention_norm(hidden), self.qkv.weight).contiguous()
        projected = projected.view(*hidden.shape[:-1], 3 * self.heads, -1)
        turned = rotate(projected[..., : 2 * self.heads, :], turns)
        return turned[..., : self.heads, :], turned[..., self.heads :, :], projected[..., 2 * self.heads :, :]

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Hidden (..., D) after the layer, given what its heads attended to (..., D)."""
        hidden = hidden + self._drop(row_linear(attended, self.out.weight))
        raised = row_silu(row_linear(self.feed_forward_norm(hidden), self.up.weight))
        return hidden + self._drop(row_linear(raised, self.down.weight))

    def _drop(self, added: Tensor) -> Tensor:
        return F.dropout(added, self.dropout, self.training)


class Transformer(nn.Module):
    """A stack of pre-norm blocks; implements `SequenceModel`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = RowRMSNorm(config.width)

    @property
    def width(self) -> int:
        return self.config.width

    @property
    def head_dim(self) -> int:
        return self.config.width // self.config.heads

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden (B, T, D) of inputs (B, T, D)."""
        turns = self._turns(torch.arange(inputs.shape[1], device=inputs.device))
        hidden = inputs
        for block in self._blocks():
            queries, keys, values = (part.transpose(1, 2) for part in block.project(hidden, turns))
            attended = attend_band(queries, keys, values, self.config.window)
            hidden = block.finish(hidden, attended.transpose(1, 2).flatten(2))
        return cast(Tensor, self.final_norm(hidden))

    def initial_cache(self, rows: int) -> TransformerCache:
        """The memory of rows that have seen nothing."""
        config = self.config
        shape = (rows, config.heads, config.layers, config.window, self.head_dim)
        return initial_ring(shape, self.final_norm.weight)

    @torch.no_grad()
    def extend(self, inputs: Tensor, cache: TransformerCache) -> tuple[Tensor, TransformerCache]:
        """Hidden (B, T, D) of T more inputs (B, T, D), without gradients: training goes through `forward`."""
        check_fresh(cache)
        new = copy_ring(cache)
        positions = cache.position[:, None] + torch.arange(inputs.shape[1], device=inputs.device)  # (B, T)
        visible = self._visible(held_inputs(cache), positions)
        turns, hidden = self._turns(positions), inputs
        for i, block in enumerate(self._blocks()):
            queries, keys, values = (part.transpose(1, 2) for part in block.project(hidden, turns))
            all_keys = torch.cat((new.keys[:, :, i], keys), 2)
            all_values = torch.cat((new.values[:, :, i], values), 2)
            write_last(new.keys, cache.position, i, keys)
            write_last(new.values, cache.position, i, values)
            attended = attend_visible(queries, all_keys, all_values, visible)
            hidden = block.finish(hidden, attended.transpose(1, 2).flatten(2))
        position = cache.position + inputs.shape[1]
        return self.final_norm(hidden), new._replace(position=position, tip=position.clone())

    @torch.no_grad()
    def step(self, inputs: Tensor, cache: TransformerCache) -> tuple[Tensor, TransformerCache]:
        """Hidden (B, D) of one more input (B, D), without gradients; past the window all ages cost the same."""
        cache = claim_ring(cache)
        slots, (span, visible) = next_slots(cache), next_view(cache)
        all_keys, all_values = cache.keys.flatten(0, 1), cache.values.flatten(0, 1)  # (B · heads, layers, window, d)
        key_slots, value_slots = cache.keys.view(-1, self.head_dim), cache.values.view(-1, self.head_dim)
        turns, hidden = self._turns(cache.position), inputs
        for i, block in enumerate(self._blocks()):
            queries, keys, values = (part.reshape(-1, self.head_dim) for part in block.project(hidden, turns))
            key_slots.index_put_((slots[i],), keys)
            value_slots.index_put_((slots[i],), values)
            attended = attend_one(queries, all_keys[:, i, :span], all_values[:, i, :span], visible)
            hidden = block.finish(hidden, attended.view(inputs.shape))
        cache.tip.add_(1)
        return self.final_norm(hidden), cache._replace(position=cache.position + 1)

    def flops_per_step(self) -> int:
        """Floating-point operations of one `step`, per row, with a full window, without norms and activations."""
        config = self.config
        projections = 4 * config.width**2 + 2 * config.width * config.feed_forward
        return config.layers * 2 * (projections + 2 * config.window * config.width)

    def _visible(self, held: Tensor, positions: Tensor) -> Tensor:
        """(B, 1, T, window + T) what inputs at positions (B, T) see of the held inputs (B, window) and one another."""
        sources = torch.cat((held, positions), 1)[:, None]
        age = positions[..., None] - sources
        return ((age >= 0) & (age < self.config.window) & (sources >= 0))[:, None]

    def _turns(self, positions: Tensor) -> Tensor:
        """The same for all heads: (..., 1, head_dim / 2) of positions (...)."""
        return rotary_turns(positions, self.head_dim, self.final_norm.weight.dtype)[..., None, :]

    def _blocks(self) -> list[Block]:
        return [cast(Block, block) for block in self.blocks]
