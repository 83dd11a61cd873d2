"""REM's encoder and decoder (table 4): VQGAN's without residual blocks and attention.

Two convolutions follow each other in every block with nothing between them; that is the paper's table.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dreamenvs.nn.frame_networks.resampling import Double, Halve, RowNormSiLU, check_groups, from_signed, to_signed
from dreamenvs.nn.frame_networks.shapes import grid_shape
from dreamenvs.nn.layers import RowConv2d


@dataclass(frozen=True, kw_only=True)
class PlainNetworkConfig:
    """How often a frame is halved, and the channels at its full size; the defaults are the paper's."""

    channels: int = 32
    """At the frame's full size; every halving doubles them."""
    halvings: int = 3
    """3 make an 8×8 grid of a 64×64 frame; 4 make the 4×4 grid of the paper's ablation, with 512 channels there."""
    groups: int = 8
    """Groups of every GroupNorm."""

    def __post_init__(self) -> None:
        if self.halvings < 1:
            raise ValueError(f"halvings must be at least 1, not {self.halvings}")
        check_groups((self.channels,), self.groups)

    @property
    def strides(self) -> tuple[int, ...]:
        return (2,) * self.halvings

    @property
    def features(self) -> int:
        """Channels of the encoder's grid."""
        return self.channels << self.halvings


class REMEncoder(nn.Module):
    """Frames (N, C, H, W) uint8 to features (N, `features`, H', W')."""

    def __init__(self, config: PlainNetworkConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        grid_shape(config, observation_shape)
        width = config.channels
        layers: list[nn.Module] = [RowConv2d(observation_shape[0], width, 3, padding=1)]
        for _ in range(config.halvings):
            layers += [RowNormSiLU(width, config.groups), Halve(width, 2 * width)]
            width *= 2
            layers += [RowConv2d(width, width, 3, padding=1)]
        layers += [RowNormSiLU(width, config.groups), RowConv2d(width, width, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: Tensor) -> Tensor:
        features: Tensor = self.layers(to_signed(observations, next(self.parameters())))
        return features


class REMDecoder(nn.Module):
    """Features (N, `features`, H', W') to frames (N, C, H, W), floats around [0, 1]."""

    def __init__(self, config: PlainNetworkConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        grid_shape(config, observation_shape)
        width = config.features
        layers: list[nn.Module] = [RowConv2d(width, width, 3, padding=1)]
        for _ in range(config.halvings):
            layers += [RowNormSiLU(width, config.groups), Double(width, width // 2)]
            width //= 2
            layers += [RowConv2d(width, width, 3, padding=1)]
        layers += [RowNormSiLU(width, config.groups), RowConv2d(width, observation_shape[0], 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        return from_signed(self.layers(features))
