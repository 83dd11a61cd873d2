"""Mamba-2 (Dao and Gu, 2024) as STEP-VQ uses it (table 13): residual mixers with no MLP between them.

The mixer's parameters have the names and shapes of `mamba_ssm.Mamba2`, whose kernels run the scan where they can.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as remember
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.nn.layers import GroupRMSNorm, RowRMSNorm, row_linear, row_silu, row_softplus
from dreamenvs.sequence.ssd import ssd_chunked

Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Mamba2Config:
    """Sizes of the stack; a head has `expand * width / heads` channels."""

    width: int = 512
    layers: int = 4
    heads: int = 4
    state_size: int = 16
    conv_width: int = 4
    expand: int = 2
    groups: int = 1
    """Heads of a group share the input and output maps of the state."""
    dropout: float = 0.1
    """On what each mixer adds to the residual stream."""
    chunk: int = 64
    """The length that training treats as attention; it changes speed, never results."""

    def __post_init__(self) -> None:
        if self.expand * self.width % self.heads or self.heads % self.groups:
            raise ValueError(
                f"groups must divide heads, and heads must divide expand * width, "
                f"not {self.groups}, {self.heads} and {self.expand} * {self.width}"
            )
        if min(self.layers, self.state_size, self.chunk) < 1 or self.conv_width < 2:
            raise ValueError("layers, state_size and chunk are at least 1, conv_width at least 2")


class Mamba2Cache(NamedTuple):
    """All that a row remembers, whatever its age."""

    conv: Tensor  # (B, layers, conv_width - 1, channels), the last inputs of the convolution
    ssm: Tensor  # (B, layers, groups, state, inner / groups), heads side by side: reading out is one matrix product


class Mamba2Mixer(nn.Module):
    """One selective state-space layer: project, convolve, scan, gate, project back."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.config = config
        self.inner = config.expand * config.width
        shared = config.groups * config.state_size
        channels = self.inner + 2 * shared
        self.sizes = [self.inner, channels, config.heads]  # z, (x, B, C), dt
        self.parts = [self.inner, shared, shared]  # x, B, C
        self.in_proj = nn.Linear(config.width, sum(self.sizes), bias=False)
        self.conv1d = nn.Conv1d(channels, channels, config.conv_width, groups=channels)
        self.dt_bias = nn.Parameter(torch.tensor(_initial_steps(config.heads)))
        self.A_log = nn.Parameter(torch.tensor([math.log(1 + 15 * draw) for draw in _uniform(config.heads)]))
        self.D = nn.Parameter(torch.ones(config.heads))
        self.norm = GroupRMSNorm(self.inner, config.groups)
        self.out_proj = nn.Linear(self.inner, config.width, bias=False)

    def forward(self, inputs: Tensor, conv: Tensor, ssm: Tensor) -> tuple[Tensor, Mamba2Cache]:
        """Outputs (B, T, D) and this layer's memory after inputs (B, T, D), given its memory before them."""
        groups, heads, width = self.config.groups, self.config.heads, self.config.conv_width
        z, xbc, dt = row_linear(inputs, self.in_proj.weight).split_with_sizes(self.sizes, -1)
        history = torch.cat((conv, xbc), 1)
        xbc = row_silu(self._convolve([history[:, i : i + inputs.shape[1]] for i in range(width)]))
        x, b, c = xbc.split_with_sizes(self.parts, -1)
        x = rearrange(x, "B T (h p) -> B T h p", h=heads)
        b, c = (rearrange(part, "B T (g n) -> B T g n", g=groups) for part in (b, c))
        state = rearrange(ssm, "B g n (h p) -> B (g h) n p", h=heads // groups)
        outputs, state = self._scan(x, row_softplus(dt + self.dt_bias), -self.A_log.exp(), b, c, state)
        outputs = rearrange(outputs + self.D[:, None] * x, "B T h p -> B T (h p)")
        ssm = rearrange(state, "B (g h) n p -> B g n (h p)", g=groups)
        outputs = row_linear(self.norm(outputs * row_silu(z)), self.out_proj.weight)
        return outputs, Mamba2Cache(history[:, 1 - width :], ssm)

    def step(self, inputs: Tensor, old: Mamba2Cache, new: Mamba2Cache) -> Tensor:
        """Outputs (B, D) for inputs (B, D); reads this layer's memory from `old` and writes it to `new`."""
        groups, per_head = self.config.groups, self.inner // self.config.heads
        z, xbc, dt = row_linear(inputs, self.in_proj.weight).contiguous().split_with_sizes(self.sizes, -1)
        torch.cat((old.conv[:, 1:], xbc[:, None]), 1, out=new.conv)
        x, b, c = row_silu(self._convolve([*old.conv.unbind(1), xbc])).split_with_sizes(self.parts, -1)
        dt = row_softplus(dt + self.dt_bias)
        decay = torch.exp(dt * -self.A_log.exp())
        decay, dt, skip = (part.repeat_interleave(per_head, -1) for part in (decay, dt, self.D))
        decay, inflow = (rearrange(part, "B (g d) -> B g 1 d", g=groups) for part in (decay, dt * x))
        torch.mul(old.ssm, decay, out=new.ssm).addcmul_(rearrange(b, "B (g n) -> B g n 1", g=groups), inflow)
        c = rearrange(c, "B (g n) -> B g 1 n", g=groups)
        outputs = torch.cat([torch.bmm(c[:, i], new.ssm[:, i])[:, 0] for i in range(groups)], -1)
        gated = outputs.addcmul_(skip, x).mul_(row_silu(z))
        return row_linear(self.norm(gated), self.out_proj.weight)

    def _convolve(self, taps: list[Tensor]) -> Tensor:
        """The causal convolution as a sum over its taps (..., channels), oldest first."""
        weights = self.conv1d.weight[:, 0].t().contiguous()
        total = torch.addcmul(cast(Tensor, self.conv1d.bias), taps[0], weights[0])
        for tap, weight in zip(taps[1:], weights[1:], strict=True):
            total.addcmul_(tap, weight)
        return total

    def _scan(self, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        scan = select_scan(x.device, config.heads, x.shape[-1], config.groups, config.state_size, config.chunk)
        return scan(x, dt, a, b, c, state, config.chunk)


def _initial_steps(heads: int) -> list[float]:
    """Biases whose softplus is log-uniform in [1e-3, 1e-1]."""
    steps = [math.exp(math.log(1e-3) + math.log(1e2) * draw) for draw in _uniform(heads)]
    return [step + math.log(-math.expm1(-step)) for step in steps]


def _uniform(count: int) -> list[float]:
    """Numbers in [0, 1) as Python floats: arithmetic on the meta device, where loading outlines a model, is slow."""
    draws: list[float] = torch.rand(count, device="cpu").tolist()
    return draws


class Mamba2(nn.Module):
    """A stack of mixers, each on the normalised residual stream; implements `SequenceModel`."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.config = config
        self.norms = nn.ModuleList(RowRMSNorm(config.width) for _ in range(config.layers))
        self.mixers = nn.ModuleList(Mamba2Mixer(config) for _ in range(config.layers))
        self.final_norm = RowRMSNorm(config.width)

    @property
    def width(self) -> int:
        return self.config.width

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden (B, T, D) of inputs (B, T, D)."""
        return self.extend(inputs, self.initial_cache(inputs.shape[0]))[0]

    def initial_cache(self, rows: int) -> Mamba2Cache:
        """The memory of rows that have seen nothing."""
        config, weight = self.config, self.final_norm.weight
        inner = config.expand * config.width
        channels = inner + 2 * config.groups * config.state_size
        return Mamba2Cache(
            weight.new_zeros(rows, config.layers, config.conv_width - 1, channels),
            weight.new_zeros(rows, config.layers, config.groups, config.state_size, inner // config.groups),
        )

    def extend(self, inputs: Tensor, cache: Mamba2Cache) -> tuple[Tensor, Mamba2Cache]:
        """Hidden (B, T, D) of inputs (B, T, D) that follow what the cache has seen."""
        hidden, memories = inputs, []
        for i, (norm, mixer) in enumerate(zip(self.norms, self.mixers, strict=True)):
            added, memory = mixer(norm(hidden), cache.conv[:, i], cache.ssm[:, i])
            hidden = hidden + F.dropout(added, self.config.dropout, self.training)
            memories.append(memory)
        conv, ssm = (torch.stack(layers, 1) for layers in zip(*memories, strict=True))
        return self.final_norm(hidden), Mamba2Cache(conv, ssm)

    @torch.no_grad()
    def step(self, inputs: Tensor, cache: Mamba2Cache) -> tuple[Tensor, Mamba2Cache]:
        """Hidden (B, D) of one more input (B, D), without gradients: training goes through `forward` or `extend`."""
        hidden, new = inputs, Mamba2Cache(torch.empty_like(cache.conv), torch.empty_like(cache.ssm))
        for i, (norm, mixer) in enumerate(zip(self.norms, self.mixers, strict=True)):
            layer = cast(Mamba2Mixer, mixer)
            old_layer, new_layer = (Mamba2Cache(part.conv[:, i], part.ssm[:, i]) for part in (cache, new))
            added = layer.step(norm(hidden), old_layer, new_layer)
            hidden = hidden + F.dropout(added, self.config.dropout, self.training)
        return self.final_norm(hidden), new

    def flops_per_step(self) -> int:
        """Floating-point operations of one `step`, per row, without norms and activations."""
        mixer = cast(Mamba2Mixer, self.mixers[0])
        projections = 2 * (mixer.in_proj.weight.numel() + mixer.out_proj.weight.numel())
        return self.config.layers * (
            projections + 2 * mixer.conv1d.weight.numel() + 5 * mixer.inner * self.config.state_size
        )


@remember
def select_scan(device: torch.device, heads: int, head_dim: int, groups: int, state: int, chunk: int) -> Scan:
    """The scan for these sizes: mamba_ssm's kernel where it can be imported and proves right, else `ssd_chunked`."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return ssd_chunked
    try:
        import selective_scan_cuda  # noqa: F401 (what CPU builds of mamba_ssm lack)
    except ImportError:
        return ssd_chunked
    try:
        if _agree(kernel_scan, ssd_chunked, device, (heads, head_dim, groups, state, chunk)):
            return kernel_scan
        reason = "its results differ from the reference"
    except Exception as error:  # a broken build can fail in any way
        reason = repr(error)
    warnings.warn(f"mamba_ssm's kernel is not used: {reason}", RuntimeWarning, stacklevel=2)
    return ssd_chunked


def kernel_scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """`ssd_chunked` by mamba_ssm's Triton kernel, whose state has P before N."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    outputs, final = mamba_chunk_scan_combined(
        x, dt, a, b, c, chunk, initial_states=state.mT.contiguous(), return_final_states=True
    )
    return outputs, final.mT.to(state.dtype)


def _agree(fast: Scan, slow: Scan, device: torch.device, sizes: tuple[int, int, int, int, int]) -> bool:
    """Whether two scans give the same outputs, states and gradients on random numbers, up to TF32's rounding."""
    heads, head_dim, groups, state, chunk = sizes
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    rows, length = 2, chunk + 3
    x, dt, a = random(rows, length, heads, head_dim), random(rows, length, heads).sigmoid(), -random(heads).exp()
    b, c = random(rows, length, groups, state), random(rows, length, groups, state)
    start = random(rows, heads, state, head_dim)
    results = []
    with torch.inference_mode(False), torch.enable_grad():
        for scan in (fast, slow):
            leaves = [part.clone().requires_grad_() for part in (x, dt, a, b, c, start)]
            x, dt, a, b, c, start = leaves
            outputs, final = scan(x, dt, a, b, c, start, chunk)
            gradients = torch.autograd.grad(outputs.square().sum() + final.square().sum(), leaves)
            results.append((outputs, final, *gradients))
    return all(torch.dist(left, right) <= 1e-2 * right.norm() for left, right in zip(*results, strict=True))
