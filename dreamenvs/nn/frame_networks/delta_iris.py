"""Frame networks of residual blocks (Δ-IRIS, table 2): group norm, SiLU and convolution, twice, at every level.

The table says two residual blocks per level; its parameter count, and the code behind it, have one with two
convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUP = 8
"""Frames that go through a network together; a dream never has fewer rows."""

_KEPT = 2**25 - 2**16


@dataclass(frozen=True, kw_only=True)
class FrameNetworkConfig:
    """Levels of a frame network, from the frame on; a decoder goes through them backwards."""

    channels: tuple[int, ...] = (64, 64, 128, 128, 256)
    strides: tuple[int, ...] = (2, 1, 2, 2, 1)
    """1 or 2; a level of stride 2 halves the frame after its block."""
    groups: int = 32
    """Of every GroupNorm."""
    patch: int = 1
    """Squares of as many pixels a side enter and leave as one position. 1 in the paper, where half of the work is done
    at the frame's full size."""

    def __post_init__(self) -> None:
        if not self.channels or len(self.channels) != len(self.strides):
            raise ValueError(f"channels {self.channels} and strides {self.strides} need the same non-zero length")
        if not set(self.strides) <= {1, 2}:
            raise ValueError(f"strides are 1 or 2, not {self.strides}")
        if self.patch < 1:
            raise ValueError(f"a patch has at least one pixel a side, not {self.patch}")
        if self.groups < 1 or any(channels % self.groups for channels in self.channels):
            raise ValueError(f"channels {self.channels} do not split into {self.groups} groups")


def map_shape(config: FrameNetworkConfig, height: int, width: int) -> tuple[int, int]:
    """Height and width of what an encoder makes of a frame."""
    stride = config.patch * prod(config.strides)
    if height % stride or width % stride:
        raise ValueError(
            f"frames of {height}×{width} do not divide by the total stride {stride} of patch {config.patch} and "
            f"strides {config.strides}: height and width must be multiples of {stride}"
        )
    return height // stride, width // stride


class NormSiLU(nn.GroupNorm):
    """Group norm and SiLU."""

    def forward(self, features: Tensor) -> Tensor:
        return F.silu(super().forward(features), inplace=not torch.is_grad_enabled())


class Pointwise(nn.Linear):
    """A 1×1 convolution, as one product of matrices."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ResidualBlock(nn.Module):
    """Features (N, C, H, W) plus what two convolutions make of them; another number of channels goes through 1×1."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.norm_in = NormSiLU(groups, inputs)
        self.conv_in = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm_out = NormSiLU(groups, outputs)
        self.conv_out = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Identity() if inputs == outputs else Pointwise(inputs, outputs)

    def forward(self, features: Tensor) -> Tensor:
        added: Tensor = self.conv_out(self.norm_out(self.conv_in(self.norm_in(features))))
        return added.add_(self.skip(features))


class Upsample(nn.Conv2d):
    """Nearest-neighbour doubling, then a 3×3 convolution: as one transposed convolution, with 4/9 of the products."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        return self.prepared()(features)

    def prepared(self) -> Callable[[Tensor], Tensor]:
        """The layer with its kernel computed, for as long as the weights stay as they are."""
        # Doubling gives every value to 2×2 places, so a place of the result weighs it with up to four weights at once.
        mirrored = self.weight.flip(2, 3).transpose(0, 1)
        kernel = F.pad(mirrored, (0, 1, 0, 1)) + F.pad(mirrored, (1, 0, 0, 1))
        kernel = kernel + kernel.roll(1, 2)
        return lambda features: F.conv_transpose2d(features, kernel, self.bias, stride=2, padding=1)


class FrameEncoder(nn.Module):
    """Floats (N, `inputs`, H, W) to a map (N, `outputs`, H', W')."""

    def __init__(self, config: FrameNetworkConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        width = config.channels[0]
        layers: list[nn.Module] = [nn.Conv2d(inputs * config.patch**2, width, 3, padding=1)]
        if config.patch > 1:
            layers.insert(0, nn.PixelUnshuffle(config.patch))
        for channels, stride in zip(config.channels, config.strides, strict=True):
            layers.append(ResidualBlock(width, channels, config.groups))
            if stride == 2:
                layers.append(nn.Conv2d(channels, channels, 2, 2))
            width = channels
        layers += [NormSiLU(config.groups, width), nn.Conv2d(width, outputs, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, frames: Tensor) -> Tensor:
        return _by_groups(self.layers, frames)


class FrameDecoder(nn.Module):
    """A map (N, `inputs`, H', W') to floats (N, `outputs`, H, W)."""

    def __init__(self, config: FrameNetworkConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        pixels, width = outputs * config.patch**2, config.channels[-1]
        layers: list[nn.Module] = [nn.Conv2d(inputs, width, 3, padding=1)]
        following = (*reversed(config.channels[:-1]), config.channels[0])
        for channels, stride in zip(following, reversed(config.strides), strict=True):
            if stride == 2:
                layers.append(Upsample(width))
            layers.append(ResidualBlock(width, channels, config.groups))
            width = channels
        layers += [NormSiLU(config.groups, width), nn.Conv2d(width, pixels, 3, padding=1)]
        if config.patch > 1:
            layers.append(nn.PixelShuffle(config.patch))
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        return _by_groups(self.layers, features)


def _by_groups(layers: nn.Sequential, inputs: Tensor) -> Tensor:
    """All layers for a few frames, then for the next few, where no gradient is asked for.

    What a few frames fill stays in the processor's cache, where all but the convolutions are several times as fast.
    And a convolution is summed in an order that depends on the number of frames: groups of one size give a frame the
    same bits in a batch of any size.
    """
    if torch.is_grad_enabled() or not len(inputs):
        result: Tensor = layers(inputs)
        return result
    # The C library gives freed memory back to the system, to be cleared and mapped again, unless it has seen a larger
    # block freed: this one is never touched and costs nothing.
    torch.empty(_KEPT, dtype=torch.uint8)
    count, shape = len(inputs), inputs.shape[1:]
    groups = torch.cat([inputs, inputs[:1].expand(-count % GROUP, *shape)]).view(-1, GROUP, *shape)
    steps = [layer.prepared() if isinstance(layer, Upsample) else layer for layer in layers]
    results = []
    for group in groups:
        # Channels last, as the convolutions themselves want them.
        features = group.contiguous(memory_format=torch.channels_last)
        for step in steps:
            features = step(features)
        results.append(features)
    return torch.cat(results)[:count].contiguous()
