"""The convolutional encoder and decoder of frames (STEP-VQ, tables 8 and 9): convolution, norm, SiLU per layer.

Frames stay in (N, C, H, W) memory order: on a CPU channels_last is not reliably faster, and its kernels round a frame
differently in batches of different sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from dreamenvs.nn.frame_networks.shapes import grid_shape

Norm = Literal["group", "channel"]


@dataclass(frozen=True, kw_only=True)
class ConvConfig:
    """Layers of an encoder, from the frame on; the decoder mirrors them."""

    channels: tuple[int, ...] = (32, 64, 128, 256)
    strides: tuple[int, ...] = (1, 2, 2, 2)
    kernel: int = 5
    """The side of every kernel: odd, or even and equal to every stride. Kernels as large as their strides do not
    overlap, and a token then depends on its own patch alone: where patches are the cells of a game, on one object."""
    groups: int = 8
    """Groups of every GroupNorm; the paper names the norm and not its groups."""
    norm: Norm = "group"
    """`group`, the paper's, averages over the whole frame, so that every token depends on every pixel: in Pong 17 % of
    the tokens change from frame to frame while 6 % of the patches do. `channel` normalises each position by itself."""

    def __post_init__(self) -> None:
        if not self.channels or len(self.channels) != len(self.strides):
            raise ValueError(f"channels {self.channels} and strides {self.strides} need the same non-zero length")
        if min(self.strides) < 1 or max(self.strides) > self.kernel:
            raise ValueError(f"need strides from 1 to the kernel, not {self.kernel}, {self.strides}")
        if self.kernel % 2 == 0 and set(self.strides) != {self.kernel}:
            raise ValueError(f"an even kernel needs strides equal to it, not {self.kernel}, {self.strides}")
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm must be 'group' or 'channel', not {self.norm!r}")
        if self.norm == "group" and any(channels % self.groups for channels in self.channels):
            raise ValueError(f"channels {self.channels} do not split into {self.groups} groups")


class ChannelNorm(nn.Module):
    """RMSNorm over the channels of (N, C, H, W), at every position by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, features: Tensor) -> Tensor:
        # The large epsilon keeps what is nearly black from being blown up.
        scale = (features.square().mean(1, keepdim=True) + 1e-3).rsqrt()
        return torch.addcmul(self.bias, features * scale, self.weight)


def _norm(config: ConvConfig, channels: int) -> nn.Module:
    return nn.GroupNorm(config.groups, channels) if config.norm == "group" else ChannelNorm(channels)


class Encoder(nn.Module):
    """Frames (N, C, H, W) uint8 to features (N, channels[-1], H', W')."""

    def __init__(self, config: ConvConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        grid_shape(config, observation_shape)
        layers: list[nn.Module] = []
        inputs = observation_shape[0]
        for outputs, stride in zip(config.channels, config.strides, strict=True):
            convolution = nn.Conv2d(inputs, outputs, config.kernel, stride, _padding(config.kernel), bias=False)
            layers += [convolution, _norm(config, outputs), nn.SiLU()]
            inputs = outputs
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        features: Tensor = self.layers(observations.to(dtype) / 255)
        return features


class Decoder(nn.Module):
    """Features (N, channels[-1], H', W') to frames (N, C, H, W), floats around [0, 1]."""

    def __init__(self, config: ConvConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        grid_shape(config, observation_shape)
        layers: list[nn.Module] = []
        inputs = config.channels[-1]
        for outputs, stride in zip(reversed(config.channels[:-1]), reversed(config.strides[1:]), strict=True):
            layers += [_upsample(inputs, outputs, stride, config.kernel, bias=False)]
            layers += [_norm(config, outputs), nn.SiLU()]
            inputs = outputs
        last = _upsample(inputs, observation_shape[0], config.strides[0], config.kernel, bias=True)
        assert last.bias is not None
        # An untrained decoder says nearly grey: with full weights its noise is all that the first updates unlearn.
        nn.init.constant_(last.bias, 0.5)
        last.weight.data.mul_(0.1)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, features: Tensor) -> Tensor:
        frames: Tensor = self.layers(features)
        return frames


def squared_error(pixels: Tensor, observations: Tensor) -> Tensor:
    """(N,) the squares of pixels - observations / 255, both (N, C, H, W), summed over each frame and not averaged."""
    return (pixels - observations.to(pixels.dtype) / 255).square().sum((1, 2, 3))


def _padding(kernel: int) -> int:
    """Around the frame: half of an odd kernel; none where even kernels tile it."""
    return kernel // 2 if kernel % 2 else 0


def _upsample(inputs: int, outputs: int, stride: int, kernel: int, bias: bool) -> nn.Conv2d | nn.ConvTranspose2d:
    """The mirror of one encoder layer."""
    if stride == 1:
        return nn.Conv2d(inputs, outputs, kernel, 1, _padding(kernel), bias=bias)
    # A transposed convolution multiplies kernel²/stride² times per output; nearest upsampling and a convolution of the
    # same reach multiply kernel² times, four times as often at stride 2, and took 2.6 to 4 times as long on a CPU.
    padding = _padding(kernel)
    extra = stride - kernel + 2 * padding  # for a frame that is `stride` times as large
    return nn.ConvTranspose2d(inputs, outputs, kernel, stride, padding, output_padding=extra, bias=bias)
