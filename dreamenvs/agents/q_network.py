"""Q networks: the values of all actions, from the current view and the one before it.

One view does not show which way things move. With the view before it a world such as MinAtar is nearly Markov, and the
agent needs no recurrent memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.agents.protocol import AgentSpec
from dreamenvs.nn import initialization
from dreamenvs.types import DiscreteActions

LayerT = TypeVar("LayerT", nn.Linear, nn.Conv2d)

KERNEL = 3
GAIN = 2.0**0.5  # of every layer before a ReLU
LAST_GAIN = 0.01  # of the last layer: all actions begin with nearly the same value


@dataclass(frozen=True, kw_only=True)
class QNetworkConfig:
    """Convolutions over a grid of cells, and a linear layer; each with LayerNorm and ReLU. The defaults suit MinAtar.

    The cells are tokens on their grid, or patches of a frame. Latent views, and tokens without a grid, have no
    convolutions: two linear layers take their place.
    """

    channels: tuple[int, ...] = (16,)
    """Of the 3×3 convolutions, which are not padded unless the grid is smaller than their kernel."""
    units: int = 128
    """Of the linear layer before the Q values."""
    grid: tuple[int, int] | None = None
    """Rows and columns in which tokens lie; None where they lie on no grid."""
    one_hot: int = 32
    """The largest vocabulary whose tokens are one-hot vectors; those of a larger one have learned embeddings."""
    embedding: int = 16
    """The width of a learned embedding."""
    patch: int = 4
    """The side of a patch of a frame in pixels: kernel and stride of the first convolution. MinAtar's cells have 4."""
    patch_channels: int = 16
    """Of the first convolution, which sees each of the two frames by itself; it has ReLU, but no LayerNorm."""

    def __post_init__(self) -> None:
        sizes = (self.units, self.embedding, self.patch, self.patch_channels, *self.channels, *(self.grid or ()))
        if min(sizes) < 1 or self.one_hot < 0:
            raise ValueError(f"sizes of a Q network are at least 1, not {self}")


class QNetwork(nn.Module):
    """Q values (N, A) of views (N, …), as the spec's `obs_type` has them, and the views before them."""

    def __init__(self, config: QNetworkConfig, spec: AgentSpec) -> None:
        super().__init__()
        if not isinstance(spec.actions, DiscreteActions):
            raise ValueError("a Q network has one value for each action: continuous actions have none")
        self.cells = _build_cells(config, spec)
        layers, width = _build_body(config, 2 * self.cells.width, self.cells.grid)
        self.layers = nn.Sequential(*layers)
        self.values = _orthogonal(nn.Linear(width, spec.actions.count), LAST_GAIN)

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        pair = torch.cat([self.cells(previous), self.cells(current)], 1)
        values: Tensor = self.values(self.layers(pair))
        return values


class TokenCells(nn.Module):
    """Tokens (N, K) as vectors on a grid (N, D, H, W), or one after another (N, K · D) without a grid."""

    eye: Tensor

    def __init__(self, config: QNetworkConfig, spec: AgentSpec) -> None:
        super().__init__()
        self.grid = config.grid
        if self.grid is not None and self.grid[0] * self.grid[1] != spec.num_tokens:
            raise ValueError(f"a grid of {self.grid} has no place for {spec.num_tokens} tokens")
        few = spec.vocabulary <= config.one_hot
        depth = spec.vocabulary if few else config.embedding
        self.width = depth if self.grid else depth * spec.num_tokens
        self.table = None if few else initialization.table(spec.vocabulary, depth, std=1.0)
        # Not saved: an identity matrix, or nothing.
        self.register_buffer("eye", torch.eye(spec.vocabulary if few else 0), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.eye[tokens] if self.table is None else self.table(tokens)  # (N, K, D)
        if self.grid is None:
            return vectors.flatten(1)
        return vectors.transpose(1, 2).reshape(len(tokens), self.width, *self.grid)


class PatchCells(nn.Module):
    """Frames (N, C, H, W) uint8 as vectors of their patches (N, D, H / patch, W / patch); zeros fill the last ones."""

    def __init__(self, config: QNetworkConfig, spec: AgentSpec) -> None:
        super().__init__()
        channels, height, width = spec.observation_shape
        self.padding = (0, -width % config.patch, 0, -height % config.patch)
        self.grid = (-(-height // config.patch), -(-width // config.patch))
        self.width = config.patch_channels
        self.convolution = _orthogonal(nn.Conv2d(channels, self.width, config.patch, stride=config.patch), GAIN)

    def forward(self, frames: Tensor) -> Tensor:
        pixels = F.pad(frames.to(self.convolution.weight.dtype) / 255, self.padding)
        return F.relu(self.convolution(pixels))


class LatentCells(nn.Module):
    """Latent views (N, F) as they are."""

    def __init__(self, spec: AgentSpec) -> None:
        super().__init__()
        self.grid = None
        self.width = spec.num_features

    def forward(self, latent: Tensor) -> Tensor:
        return latent


def _build_cells(config: QNetworkConfig, spec: AgentSpec) -> TokenCells | PatchCells | LatentCells:
    if config.grid is not None and spec.obs_type != "tokens":
        raise ValueError(f"only tokens have a grid of their own, not obs_type {spec.obs_type!r}")
    if spec.obs_type == "tokens":
        return TokenCells(config, spec)
    return PatchCells(config, spec) if spec.obs_type == "rgb" else LatentCells(spec)


def _build_body(config: QNetworkConfig, width: int, grid: tuple[int, int] | None) -> tuple[list[nn.Module], int]:
    """The layers between cells and values, and the width of the last one."""
    layers: list[nn.Module] = []
    if grid is None:
        layers += _linear(width, config.units)
        width = config.units
    else:
        height, columns = grid
        for channels in config.channels:
            padding = 0 if min(height, columns) >= KERNEL else KERNEL // 2
            height, columns = (side + 2 * padding - KERNEL + 1 for side in (height, columns))
            convolution = _orthogonal(nn.Conv2d(width, channels, KERNEL, padding=padding), GAIN)
            layers += [convolution, nn.LayerNorm([channels, height, columns]), nn.ReLU()]
            width = channels
        layers.append(nn.Flatten())
        width *= height * columns
    return [*layers, *_linear(width, config.units)], config.units


def _linear(inputs: int, outputs: int) -> list[nn.Module]:
    return [_orthogonal(nn.Linear(inputs, outputs), GAIN), nn.LayerNorm(outputs), nn.ReLU()]


def _orthogonal(layer: LayerT, gain: float) -> LayerT:
    if not layer.weight.is_meta:
        nn.init.orthogonal_(layer.weight, gain)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
    return layer
