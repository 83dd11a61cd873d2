"""Layers that several networks share; the functions named `row_` give a row the same bits in a batch of any size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_ROWS = 16


def row_linear(inputs: Tensor, weight: Tensor) -> Tensor:
    """(..., D') for inputs (..., D) and weight (D', D)."""
    rows = inputs.shape[:-1].numel()
    if rows >= MIN_ROWS:
        return F.linear(inputs, weight)
    # BLAS sums the last one to three rows of a small matrix in another order; zero rows keep real ones out of there.
    padded = F.pad(inputs.reshape(rows, -1), (0, 0, 0, MIN_ROWS - rows))
    return F.linear(padded, weight)[:rows].view(*inputs.shape[:-1], -1)


def row_silu(inputs: Tensor) -> Tensor:
    """SiLU; torch's own, kept for gradients, rounds the elements at the end of a thread's share differently."""
    if torch.is_grad_enabled():
        return F.silu(inputs)
    result = torch.neg(inputs).exp_().add_(1)
    return torch.div(inputs, result, out=result)


class RowSiLU(nn.Module):
    """`row_silu` as a layer."""

    def forward(self, inputs: Tensor) -> Tensor:
        return row_silu(inputs)


def row_softplus(inputs: Tensor) -> Tensor:
    """Softplus; like `row_silu` built from functions that round every element alike."""
    if torch.is_grad_enabled():
        return F.softplus(inputs)
    return inputs.abs().neg_().exp_().log1p_().add_(inputs.clamp(min=0))


class GroupRMSNorm(nn.Module):
    """RMSNorm over each of `groups` equal parts of the width."""

    def __init__(self, width: int, groups: int = 1, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups = groups
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., D) for inputs (..., D)."""
        parts = inputs.view(*inputs.shape[:-1], self.groups, -1)
        return F.rms_norm(parts, parts.shape[-1:], eps=self.eps).view(inputs.shape) * self.weight
