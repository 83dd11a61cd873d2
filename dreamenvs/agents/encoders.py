"""What a recurrent agent sees with: convolutions over frames (IRIS, Δ-IRIS), or over embedded tokens (REM)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.agents.protocol import AgentSpec
from dreamenvs.nn import initialization
from dreamenvs.nn.frame_networks.delta_iris import FrameEncoder, FrameNetworkConfig, map_shape


@dataclass(frozen=True, kw_only=True)
class PixelEncoderConfig:
    """A 3×3 convolution, ReLU and pooling by 2 for each entry: IRIS's, on frames in [-1, 1]."""

    channels: tuple[int, ...] = (32, 32, 64, 64)


@dataclass(frozen=True, kw_only=True)
class ResidualEncoderConfig:
    """Δ-IRIS's: the tokenizer's encoder with half the channels, on frames in [0, 1]."""

    network: FrameNetworkConfig = field(
        default_factory=lambda: FrameNetworkConfig(channels=(32, 32, 64, 64, 128), groups=32)
    )
    channels: int = 16
    """Of the map at the end."""


@dataclass(frozen=True, kw_only=True)
class TokenEncoderConfig:
    """REM's (table 6): tokens as vectors on their grid, 3×3 convolutions and SiLU, and a linear layer.

    REM takes the vectors from the tokenizer's codebook; here the agent learns its own, so that it asks nothing of a
    world model but tokens.
    """

    width: int = 256
    """Of a token's vector."""
    channels: tuple[int, ...] = (128, 64)
    units: int = 512


EncoderConfig = PixelEncoderConfig | ResidualEncoderConfig | TokenEncoderConfig


class PixelEncoder(nn.Module):
    """Frames (N, C, H, W) uint8 to vectors (N, `width`)."""

    def __init__(self, config: PixelEncoderConfig, spec: AgentSpec) -> None:
        super().__init__()
        inputs, height, width = spec.observation_shape
        layers: list[nn.Module] = []
        for channels in config.channels:
            layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU()]
            inputs = channels
            if min(height, width) >= 2:  # a frame that is smaller already stays as it is
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        self.layers = nn.Sequential(*layers)
        self.width = inputs * height * width

    def forward(self, views: Tensor) -> Tensor:
        features: Tensor = self.layers(views.to(_dtype(self)) / 127.5 - 1)
        return features.flatten(1)


class ResidualEncoder(nn.Module):
    """Frames (N, C, H, W) uint8 to vectors (N, `width`)."""

    def __init__(self, config: ResidualEncoderConfig, spec: AgentSpec) -> None:
        super().__init__()
        inputs, height, width = spec.observation_shape
        rows, columns = map_shape(config.network, height, width)
        self.network = FrameEncoder(config.network, inputs, config.channels)
        self.width = config.channels * rows * columns

    def forward(self, views: Tensor) -> Tensor:
        features: Tensor = self.network(views.to(_dtype(self)) / 255)
        return features.flatten(1)


class TokenEncoder(nn.Module):
    """Tokens (N, K) to vectors (N, `width`); K tokens lie on a square where they can, in a line otherwise."""

    def __init__(self, config: TokenEncoderConfig, spec: AgentSpec) -> None:
        super().__init__()
        side = isqrt(spec.num_tokens)
        self.grid = (side, side) if side**2 == spec.num_tokens else (1, spec.num_tokens)
        self.embedding = initialization.table(spec.vocabulary, config.width, std=1.0)
        layers: list[nn.Module] = []
        inputs = config.width
        for channels in config.channels:
            layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.SiLU()]
            inputs = channels
        self.layers = nn.Sequential(*layers)
        self.project = nn.Linear(inputs * spec.num_tokens, config.units)
        self.width = config.units

    def forward(self, views: Tensor) -> Tensor:
        vectors = self.embedding(views).transpose(1, 2).unflatten(2, self.grid)
        return F.silu(self.project(self.layers(vectors).flatten(1)))


def build_encoder(config: EncoderConfig, spec: AgentSpec) -> PixelEncoder | ResidualEncoder | TokenEncoder:
    """The encoder of a config, for what the spec says that the agent sees."""
    wanted = "tokens" if isinstance(config, TokenEncoderConfig) else "rgb"
    if spec.obs_type != wanted:
        raise ValueError(f"{type(config).__name__} is for obs_type {wanted!r}, not {spec.obs_type!r}")
    if isinstance(config, TokenEncoderConfig):
        return TokenEncoder(config, spec)
    if isinstance(config, ResidualEncoderConfig):
        return ResidualEncoder(config, spec)
    return PixelEncoder(config, spec)


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype
