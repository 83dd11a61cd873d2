"""STORM's encoder and decoder of frames (GIT-STORM, tables 9 and 10): convolutions that halve, BatchNorm and ReLU.

While a model is used, BatchNorm is a fixed scale and shift for each channel, so that no frame depends on another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dreamenvs.nn.distributed_batch_norm import BatchNorm2d
from dreamenvs.nn.frame_networks.shapes import grid_shape
from dreamenvs.nn.layers import RowConv2d

KERNEL, STRIDE, PADDING = 4, 2, 1


@dataclass(frozen=True, kw_only=True)
class BatchConvConfig:
    """Channels after each halving of the frame; the decoder mirrors them. The defaults are the paper's."""

    channels: tuple[int, ...] = (32, 64, 128, 256)

    def __post_init__(self) -> None:
        if not self.channels or min(self.channels) < 1:
            raise ValueError(f"channels are one positive number or more, not {self.channels}")

    @property
    def strides(self) -> tuple[int, ...]:
        return (STRIDE,) * len(self.channels)


class BatchEncoder(nn.Module):
    """Frames (N, C, H, W) uint8 to features (N, channels[-1], H', W')."""

    def __init__(self, config: BatchConvConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        grid_shape(config, observation_shape)
        layers: list[nn.Module] = []
        inputs = observation_shape[0]
        for outputs in config.channels:
            # A bias would be taken away again by the norm.
            layers += [RowConv2d(inputs, outputs, KERNEL, STRIDE, PADDING, bias=False)]
            layers += [BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            inputs = outputs
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        features: Tensor = self.layers(observations.to(dtype) / 255)
        return features


class BatchDecoder(nn.Module):
    """Features (N, channels[-1], H', W') to frames (N, C, H, W), floats around [0, 1].

    The first norm, BN0, has a scale for each channel, as the published program has it, and not for each of the numbers
    that the linear layer before it gives: those would be averaged over the batch alone.
    """

    def __init__(self, config: BatchConvConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        grid_shape(config, observation_shape)
        inputs = config.channels[-1]
        layers: list[nn.Module] = [BatchNorm2d(inputs), nn.ReLU()]
        for outputs in reversed(config.channels[:-1]):
            layers += [nn.ConvTranspose2d(inputs, outputs, KERNEL, STRIDE, PADDING, bias=False)]
            layers += [BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            inputs = outputs
        last = nn.ConvTranspose2d(inputs, observation_shape[0], KERNEL, STRIDE, PADDING)
        assert last.bias is not None
        # An untrained decoder says nearly grey: with full weights its noise is all that the first updates unlearn.
        nn.init.constant_(last.bias, 0.5)
        last.weight.data.mul_(0.1)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, features: Tensor) -> Tensor:
        frames: Tensor = self.layers(features)
        return frames
