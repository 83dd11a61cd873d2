"""Canvases: what a hidden vector says at every place of a frame, as a map that convolutions can go on from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dreamenvs.nn.layers import RowConv2d, RowLinear, RowRMSNorm


class Canvas(Protocol):
    """Hidden (N, D) as a map (N, C, H', W')."""

    @property
    def grid(self) -> tuple[int, int]: ...

    @property
    def channels(self) -> int: ...

    def __call__(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a frame's tokens lie, and whether the memory has places as they have."""

    grid: tuple[int, int]
    """(1, K) for tokens without places."""
    kernel: int = 3
    """Of convolutions over them; 1 for tokens without places, which have no neighbours."""
    memory_channels: int = 0
    """Of a memory with places; 0 for one vector."""

    def canvas(self, width: int, channels: int) -> Canvas:
        """A canvas for hidden vectors (N, D) of `width`."""
        if self.memory_channels:
            return GridCanvas(self.memory_channels, self.grid, channels, self.kernel)
        return VectorCanvas(width, self.grid, channels)


def layout_of(num_tokens: int, grid: tuple[int, int] | None) -> Layout:
    """Of K tokens that lie on a grid, or on none, under a memory of one vector."""
    return Layout(grid=(1, num_tokens), kernel=1) if grid is None else Layout(grid=grid)


class GridCanvas(nn.Module):
    """Of a memory with places (N, C'·H'·W'): what is near a place, and what is anywhere."""

    def __init__(self, memory_channels: int, grid: tuple[int, int], channels: int, kernel: int = 3) -> None:
        super().__init__()
        self.memory_channels, self.grid, self.channels = memory_channels, grid, channels
        self.near = RowConv2d(memory_channels, channels, kernel, padding=kernel // 2)
        self.anywhere = RowLinear(2 * memory_channels, channels)

    def forward(self, hidden: Tensor) -> Tensor:
        memory = hidden.reshape(-1, self.memory_channels, *self.grid)
        near: Tensor = self.near(memory)
        anywhere: Tensor = self.anywhere(pool(memory))
        return near + anywhere[:, :, None, None]


class VectorCanvas(nn.Module):
    """Of one vector for the whole frame (N, D): `rank` numbers for each place, and the same for all places."""

    def __init__(self, width: int, grid: tuple[int, int], channels: int, rank: int = 8) -> None:
        super().__init__()
        self.grid, self.channels, self.rank = grid, channels, rank
        self.norm = RowRMSNorm(width)
        self.project = RowLinear(width, grid[0] * grid[1] * rank)
        self.spread = RowLinear(rank, channels, bias=False)
        self.everywhere = RowLinear(width, channels)
        self.places = nn.Parameter(torch.zeros(channels, *grid))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.norm(hidden)
        local: Tensor = self.spread(self.project(hidden).reshape(len(hidden), *self.grid, self.rank))
        everywhere: Tensor = self.everywhere(hidden)
        return local.permute(0, 3, 1, 2) + everywhere[:, :, None, None] + self.places


def pool(maps: Tensor) -> Tensor:
    """What is anywhere in maps (N, C, H, W): means, scaled so that one place in a hundred counts, and maxima."""
    return torch.cat([10 * maps.mean((2, 3)), maps.amax((2, 3))], 1)
