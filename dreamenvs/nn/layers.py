"""Layers that several networks share; the functions named `row_` give a row the same bits in a batch of any size."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dreamenvs.nn.cpu.packed import Part, can_pack, packed_linear

MIN_ROWS = 16
MAX_SUM = 512
SMALL_FRAME = 2**15  # numbers; torch draws the line at 20,480


def row_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(..., D') for inputs (..., D) and weight (D', D); without gradients the result may lie in columns in memory.

    Where a weight cannot be packed: BLAS multiplies a tall weight with a few columns a third faster than a few rows
    with its transpose, and from twelve columns on it sums every one of them alike; sixteen are faster than twelve.
    """
    if torch.is_grad_enabled():
        return F.linear(inputs, weight, bias)
    if can_pack(weight):
        return packed_linear(inputs, weight, bias)
    rows = inputs.reshape(-1, inputs.shape[-1])
    count = len(rows)
    if count < MIN_ROWS:
        rows = F.pad(rows, (0, 0, 0, MIN_ROWS - count))
    results = _product(weight, rows.t(), bias).t()
    if count < MIN_ROWS:
        results = results[:count].contiguous()
    return results.reshape(*inputs.shape[:-1], len(weight))


def _product(weight: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
    """weight (D', D) @ columns (D, N) + bias (D',), summed in the same order for every N."""
    # Longer sums are cut by BLAS, on some processors, where the number of columns and threads tells it to.
    first, *others = range(0, weight.shape[1], MAX_SUM)
    part = slice(first, first + MAX_SUM)
    if bias is None:
        results = weight[:, part] @ columns[part]
    else:
        results = torch.addmm(bias[:, None], weight[:, part], columns[part])
    for start in others:
        part = slice(start, start + MAX_SUM)
        torch.addmm(results, weight[:, part], columns[part], out=results)
    return results


def gelu_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """GELU of `row_linear`."""
    if can_pack(weight):
        return packed_linear(inputs, weight, bias, "gelu")
    return row_gelu(row_linear(inputs, weight, bias))


def add_linear(hidden: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Hidden (..., D') plus `row_linear` of inputs (..., D)."""
    if can_pack(weight):
        return packed_linear(inputs, weight, bias, added=hidden)
    return hidden + row_linear(inputs, weight, bias)


def part_linear(inputs: Tensor, weight: Tensor, part: Part, bias: Tensor | None = None) -> Tensor:
    """`row_linear` with a part of a weight."""
    if can_pack(weight):
        return packed_linear(inputs, weight, bias, part=part)
    return row_linear(inputs, part.of(weight), bias)


class RowLinear(nn.Linear):
    """`nn.Linear` through `row_linear`: the same parameters under the same names."""

    def forward(self, inputs: Tensor) -> Tensor:
        return row_linear(inputs, self.weight, self.bias)


class RowConv2d(nn.Conv2d):
    """`nn.Conv2d` of frames (N, C, H, W), a row each: the same parameters under the same names.

    A 1×1 convolution is better a `RowLinear` at every position: torch's own changes kernels at sixteen frames.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        # torch gives a single small frame to a kernel of its own, which rounds differently; two frames it does not.
        if len(inputs) == 1 and inputs.numel() <= SMALL_FRAME and not torch.is_grad_enabled():
            return super().forward(inputs.expand(2, -1, -1, -1))[:1]
        return super().forward(inputs)


def row_silu(inputs: Tensor, inplace: bool = False) -> Tensor:
    """SiLU of inputs (..., D), to be the same bits wherever in a batch a row stands."""
    # torch's own takes 32 elements at a time, with AVX-512, and rounds what is left over at the end of a thread's share
    # differently. It is used where nothing can be left over, whichever number of threads share the work.
    shares = math.lcm(*range(1, torch.get_num_threads() + 1))
    if torch.is_grad_enabled() or inputs.shape[-1] % (32 * shares) == 0:
        return F.silu(inputs, inplace)
    result = torch.neg(inputs).exp_().add_(1)
    return torch.div(inputs, result, out=inputs if inplace else result)


class RowSiLU(nn.Module):
    """`row_silu` as a layer."""

    def forward(self, inputs: Tensor) -> Tensor:
        return row_silu(inputs)


def row_softplus(inputs: Tensor) -> Tensor:
    """Softplus; like `row_silu` built from functions that round every element alike."""
    if torch.is_grad_enabled():
        return F.softplus(inputs)
    return inputs.abs().neg_().exp_().log1p_().add_(inputs.clamp(min=0))


_ALONE = 2**15
"""So many numbers, and fewer, torch gives to a single thread."""


def row_gelu(inputs: Tensor) -> Tensor:
    """GELU of inputs (..., D); like `row_silu` the same bits wherever in a batch a row stands."""
    if torch.is_grad_enabled():
        return F.gelu(inputs)
    if torch.get_num_threads() > 2:  # what divides among any number of them is soon larger than memory
        width = inputs.shape[-1]
        rows = F.pad(inputs.contiguous(), (0, -width % 32)).reshape(-1, width + -width % 32)
        parts = [F.gelu(part) for part in torch.split(rows, max(1, _ALONE // rows.shape[-1]))]
        return torch.cat(parts)[:, :width].reshape(inputs.shape)
    share = 32 * math.lcm(*range(1, torch.get_num_threads() + 1))
    over = inputs.shape[-1] % share
    # What lies in columns is rounded by another routine than what lies in rows.
    if over == 0:
        return F.gelu(inputs.contiguous())
    return F.gelu(F.pad(inputs, (0, share - over)))[..., : inputs.shape[-1]]


class RowLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last dimension, of inputs that may lie in columns in memory."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__(width, eps=eps)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., D) for inputs (..., D)."""
        return super().forward(inputs.contiguous())


class RowRMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` over the last dimension, in fewer passes where no gradient is asked for."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__(width, eps=eps)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., D) for inputs (..., D)."""
        normal: Tensor = _rms_norm(inputs, self.eps or 0.0) * self.weight
        return normal


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
        return _rms_norm(parts, self.eps).view(inputs.shape) * self.weight


def _rms_norm(inputs: Tensor, eps: float) -> Tensor:
    if torch.is_grad_enabled():
        # Not F.rms_norm, whose gradient goes through a power that took a fifth of a small update's time.
        return inputs * (inputs.square().mean(-1, keepdim=True) + eps).rsqrt()
    # What lies in columns would be summed in an order that depends on the number of rows.
    inputs = inputs.contiguous()
    lengths: Tensor = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
    return inputs * lengths.square_().div_(inputs.shape[-1]).add_(eps).rsqrt_()
