"""The layers a Transformer is made of, each in its two halves: what comes before attention, and what comes after."""

from __future__ import annotations

from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dreamenvs.nn import initialization
from dreamenvs.nn.attention import rotate, rotate_
from dreamenvs.nn.layers import RowLayerNorm, RowLinear, RowRMSNorm, add_linear, gelu_linear, row_linear, row_silu


class Layer(Protocol):
    """One layer around its attention, which the Transformer computes."""

    def project(self, hidden: Tensor, turns: Tensor | None) -> tuple[Tensor, ...]:
        """Queries, keys and values (..., heads, head_dim) of hidden (..., D), with turns (..., 1, head_dim / 2)."""
        ...

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Hidden (..., D) after the layer, given what its heads attended to (..., D)."""
        ...


class LeanLayer(nn.Module):
    """RMSNorm, SiLU and no biases: the Transformer of STEP-VQ's own, of which the paper names the sizes alone."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm = RowRMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = RowRMSNorm(width)
        self.up = nn.Linear(width, feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, width, bias=False)

    def project(self, hidden: Tensor, turns: Tensor | None) -> tuple[Tensor, ...]:
        return split_heads(row_linear(self.attention_norm(hidden), self.qkv.weight), self.heads, turns)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = self._add(hidden, attended, self.out)
        raised = row_silu(row_linear(self.feed_forward_norm(hidden), self.up.weight))
        return self._add(hidden, raised, self.down)

    def _add(self, hidden: Tensor, inputs: Tensor, linear: nn.Linear) -> Tensor:
        return add_residual(hidden, inputs, linear, self.dropout if self.training else 0.0)


class GPTLayer(nn.Module):
    """LayerNorm, GELU and biases, with GPT-2's initial weights: the layer of IRIS and Δ-IRIS."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm = RowLayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward_norm = RowLayerNorm(width)
        self.up = nn.Linear(width, feed_forward)
        self.down = nn.Linear(feed_forward, width)
        for linear in (self.qkv, self.out, self.up, self.down):
            initialization.normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    def project(self, hidden: Tensor, turns: Tensor | None) -> tuple[Tensor, ...]:
        return split_heads(row_linear(self.attention_norm(hidden), self.qkv.weight, self.qkv.bias), self.heads, turns)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = self._add(hidden, attended, self.out)
        raised = gelu_linear(self.feed_forward_norm(hidden), self.up.weight, self.up.bias)
        return self._add(hidden, raised, self.down)

    def _add(self, hidden: Tensor, inputs: Tensor, linear: nn.Linear) -> Tensor:
        return add_residual(hidden, inputs, linear, self.dropout if self.training else 0.0)


class PostLayer(nn.Module):
    """LayerNorm after each residual, ReLU, no bias around attention: STORM's block (GIT-STORM, table 13)."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = RowLinear(width, 3 * width, bias=False)
        self.out = RowLinear(width, width, bias=False)
        self.attention_norm = RowLayerNorm(width, POST_EPSILON)
        self.up = RowLinear(width, feed_forward)
        self.down = RowLinear(feed_forward, width)
        self.feed_forward_norm = RowLayerNorm(width, POST_EPSILON)

    def project(self, hidden: Tensor, turns: Tensor | None) -> tuple[Tensor, ...]:
        return split_heads(self.qkv(hidden), self.heads, turns)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = self.attention_norm(self._add(hidden, attended, self.out))
        raised = self.up(hidden).relu_()
        normal: Tensor = self.feed_forward_norm(self._add(hidden, raised, self.down))
        return normal

    def _add(self, hidden: Tensor, inputs: Tensor, linear: nn.Linear) -> Tensor:
        return add_residual(hidden, inputs, linear, self.dropout if self.training else 0.0)


POST_EPSILON = 1e-6


def add_residual(hidden: Tensor, inputs: Tensor, linear: nn.Linear, dropout: float) -> Tensor:
    """Hidden (..., D) plus what a linear layer makes of inputs, without the share that is dropped."""
    if dropout:
        return hidden + F.dropout(row_linear(inputs, linear.weight, linear.bias), dropout)
    return add_linear(hidden, inputs, linear.weight, linear.bias)


def split_heads(projected: Tensor, heads: int, turns: Tensor | None) -> tuple[Tensor, ...]:
    """Queries, keys and values (..., heads, head_dim) of what one matrix made of them (..., 3·D), turned if at all."""
    parts = projected.contiguous().view(*projected.shape[:-1], 3 * heads, -1)
    # In splits: the gradients of slices would each be a tensor of zeros but for a part.
    if turns is None:
        return parts.split_with_sizes([heads] * 3, -2)
    both, values = parts.split_with_sizes([2 * heads, heads], -2)
    alone = not torch.is_grad_enabled() and turns.dtype.to_real() == parts.dtype
    turned = (rotate_ if alone else rotate)(both, turns)
    return *turned.split_with_sizes([heads, heads], -2), values


LAYERS: dict[str, type[LeanLayer] | type[GPTLayer] | type[PostLayer]] = {
    "lean": LeanLayer,
    "gpt": GPTLayer,
    "post": PostLayer,
}
NORMS: dict[str, type[RowRMSNorm] | type[RowLayerNorm] | type[nn.Identity]] = {
    "lean": RowRMSNorm,
    "gpt": RowLayerNorm,
    "post": nn.Identity,
}
"""What comes after the last layer."""


def as_layers(modules: nn.ModuleList) -> list[Layer]:
    """A module list with its type."""
    return [cast(Layer, module) for module in modules]
