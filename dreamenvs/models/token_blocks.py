"""Blocks: a frame's K tokens and the action that follows them, as K + 1 inputs of a token-level sequence model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.nn import initialization
from dreamenvs.nn.layers import RowLinear
from dreamenvs.protocols import Tokenizer


@dataclass(frozen=True, kw_only=True)
class SharedCodesConfig:
    """The tokenizer's own codes, which the dynamics do not move (REM, section 2.1). It has no choices."""


@dataclass(frozen=True, kw_only=True)
class TokenTableConfig:
    """A table of the sequence model's own: IRIS, and REM's ablation with separate embeddings. It has no choices."""


class SharedCodes(nn.Module):
    """Tokens (N, K) as the tokenizer's codes (N, K, D), through a linear map where the widths differ."""

    def __init__(self, code_width: int, width: int) -> None:
        super().__init__()
        self.project: nn.Module = nn.Identity() if code_width == width else RowLinear(code_width, width)

    def forward(self, tokens: Tensor, tokenizer: Tokenizer) -> Tensor:
        codes = rearrange(tokenizer.embed(tokens).detach(), "n (k d) -> n k d", k=tokens.shape[1])
        vectors: Tensor = self.project(codes)
        return vectors


class TokenTable(nn.Module):
    """Tokens (N, K) as learned vectors (N, K, D), whatever the tokenizer's codes are."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = initialization.table(vocabulary, width)

    def forward(self, tokens: Tensor, tokenizer: Tokenizer) -> Tensor:
        vectors: Tensor = self.table(tokens)
        return vectors


class ActionInput(nn.Module):
    """Encoded actions (N, A) as one input (N, D): of one-hot actions, a table."""

    def __init__(self, action_width: int, width: int) -> None:
        super().__init__()
        self.linear = RowLinear(action_width, width, bias=False)
        initialization.normal_(self.linear.weight)

    def forward(self, actions: Tensor) -> Tensor:
        inputs: Tensor = self.linear(actions.to(self.linear.weight.dtype))
        return inputs


def lay_out(tokens: Tensor, actions: Tensor) -> Tensor:
    """Blocks (..., K + 1, D) of embedded tokens (..., K, D) and actions (..., D)."""
    return torch.cat([tokens, actions[..., None, :]], dim=-2)
