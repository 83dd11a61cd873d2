"""IRIS's encoder and decoder: VQGAN's (Esser et al., 2021) with the same few channels at every level.

The decoder is the heavier one: each of its levels has one residual block more than the encoder's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn.frame_networks.resampling import (
    EPSILON,
    Double,
    Halve,
    RowNormSiLU,
    check_groups,
    from_signed,
    to_signed,
)
from dreamenvs.nn.frame_networks.shapes import grid_shape
from dreamenvs.nn.layers import RowConv2d, RowLinear


@dataclass(frozen=True, kw_only=True)
class ResidualNetworkConfig:
    """Levels of residual blocks, with a halving between two of them; the defaults are IRIS's."""

    channels: tuple[int, ...] = (64, 64, 64, 64, 64)
    """Of each level. Five levels make a 4×4 grid of a 64×64 frame; for IRIS with an 8×8 grid leave out the last, so
    that the others do at their sizes what they did."""
    blocks: int = 2
    """Residual blocks of each level; the decoder has one more."""
    attention: tuple[int, ...] = (4, 8)
    """Strides of the levels whose blocks attend: 16 and 8 positions a side in a 64×64 frame. IRIS gives these sizes;
    the strides mean the same levels in frames of any size."""
    features: int = 512
    """Channels of the encoder's grid."""
    groups: int = 32
    """Groups of every GroupNorm."""

    def __post_init__(self) -> None:
        if len(self.channels) < 2 or self.blocks < 1:
            raise ValueError(f"need two levels and a block in each, not channels {self.channels}, blocks {self.blocks}")
        strides = [2**level for level in range(len(self.channels))]
        if any(stride not in strides for stride in self.attention):
            raise ValueError(f"attention {self.attention} must name strides of levels, which are {strides}")
        check_groups(self.channels, self.groups)

    @property
    def strides(self) -> tuple[int, ...]:
        return (1,) + (2,) * (len(self.channels) - 1)


class RowPointwise(RowLinear):
    """A 1×1 convolution of (N, C, H, W), which stays in this order in memory."""

    def forward(self, features: Tensor) -> Tensor:
        result = super().forward(rearrange(features, "n c h w -> n h w c"))
        return rearrange(result, "n h w c -> n c h w").contiguous()


class IRISBlock(nn.Module):
    """Norm, SiLU and convolution, twice, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            RowNormSiLU(inputs, groups),
            RowConv2d(inputs, outputs, 3, padding=1),
            RowNormSiLU(outputs, groups),
            RowConv2d(outputs, outputs, 3, padding=1),
        )
        self.shortcut = nn.Identity() if inputs == outputs else RowPointwise(inputs, outputs)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.shortcut(features) + self.layers(features)
        return result


class AttentionBlock(nn.Module):
    """Every position of a frame attends to all, with one head; there are no position codes."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=EPSILON)
        self.project = RowLinear(channels, 3 * channels)
        self.output = RowLinear(channels, channels)

    def forward(self, features: Tensor) -> Tensor:
        projected = self.project(rearrange(self.norm(features), "n c h w -> n 1 (h w) c"))
        queries, keys, values = (part.contiguous() for part in projected.chunk(3, dim=-1))
        attended: Tensor = self.output(F.scaled_dot_product_attention(queries, keys, values))
        return features + rearrange(attended, "n 1 (h w) c -> n c h w", h=features.shape[2]).contiguous()


class IRISEncoder(nn.Module):
    """Frames (N, C, H, W) uint8 to features (N, `features`, H', W')."""

    def __init__(self, config: ResidualNetworkConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        grid_shape(config, observation_shape)
        width = config.channels[0]
        layers: list[nn.Module] = [RowConv2d(observation_shape[0], width, 3, padding=1)]
        for level, channels in enumerate(config.channels):
            if level > 0:
                layers += [Halve(width, width)]
            layers += _level(config, level, width, config.blocks)
            width = channels
        layers += [*_middle(width, config.groups), RowNormSiLU(width, config.groups)]
        self.layers = nn.Sequential(*layers, RowConv2d(width, config.features, 3, padding=1))

    def forward(self, observations: Tensor) -> Tensor:
        features: Tensor = self.layers(to_signed(observations, next(self.parameters())))
        return features


class IRISDecoder(nn.Module):
    """Features (N, `features`, H', W') to frames (N, C, H, W), floats around [0, 1]."""

    def __init__(self, config: ResidualNetworkConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        grid_shape(config, observation_shape)
        width = config.channels[-1]
        layers: list[nn.Module] = [RowConv2d(config.features, width, 3, padding=1), *_middle(width, config.groups)]
        for level, channels in reversed(list(enumerate(config.channels))):
            layers += _level(config, level, width, config.blocks + 1)
            width = channels
            if level > 0:
                layers += [Double(width, width)]
        layers += [RowNormSiLU(width, config.groups), RowConv2d(width, observation_shape[0], 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        return from_signed(self.layers(features))


def _level(config: ResidualNetworkConfig, level: int, inputs: int, blocks: int) -> Iterator[nn.Module]:
    """Residual blocks of one size, each with its attention where the level has it."""
    outputs = config.channels[level]
    for block in range(blocks):
        yield IRISBlock(inputs if block == 0 else outputs, outputs, config.groups)
        if 2**level in config.attention:
            yield AttentionBlock(outputs, config.groups)


def _middle(channels: int, groups: int) -> Iterator[nn.Module]:
    yield IRISBlock(channels, channels, groups)
    yield AttentionBlock(channels, groups)
    yield IRISBlock(channels, channels, groups)
