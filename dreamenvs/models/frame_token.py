"""I-tokens: the current frame as an input of its own to the sequence model (Δ-IRIS, section 2.3), or none of them.

Tokens of changes alone would have to be summed up from the start of time to know what the world looks like now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.nn.frame_networks.delta_iris import FrameEncoder, FrameNetworkConfig, map_shape
from dreamenvs.nn.layers import RowLayerNorm, RowLinear


@dataclass(frozen=True, kw_only=True)
class FrameTokenConfig:
    """A frame network whose flattened map is the input; the defaults are the paper's for Crafter."""

    network: FrameNetworkConfig = field(default_factory=lambda: FrameNetworkConfig(channels=(32, 32, 64, 64, 128)))
    channels: int = 8
    """Of the map. In the paper its 8·8·8 numbers are the width; where they are not, a linear layer follows."""


@dataclass(frozen=True, kw_only=True)
class NoFrameTokenConfig:
    """The paper's ablation: the sequence model sees actions and Δ-tokens only."""


class FrameToken(nn.Module):
    """One input per frame, trained through the dynamics' loss."""

    count = 1

    def __init__(self, config: FrameTokenConfig, observation_shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        channels, *size = observation_shape
        height, across = map_shape(config.network, *size)
        numbers = height * across * config.channels
        self.encoder = FrameEncoder(config.network, channels, config.channels)
        self.norm = RowLayerNorm(numbers)
        self.project = nn.Identity() if numbers == width else RowLinear(numbers, width)

    def forward(self, frames: Tensor) -> Tensor:
        """Inputs (N, 1, D) of frames (N, C, H, W) uint8."""
        floats = frames.to(self.norm.weight.dtype) / 255
        numbers = self.norm(rearrange(self.encoder(floats), "n c h w -> n (h w c)"))
        inputs: Tensor = self.project(numbers)
        return inputs[:, None]


class NoFrameToken(nn.Module):
    """No inputs at all."""

    count = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, frames: Tensor) -> Tensor:
        """Inputs (N, 0, D)."""
        return torch.zeros(len(frames), 0, self.width, device=frames.device)
