"""Layers that the networks of VQGAN's kind share (Esser et al., 2021): frames in [-1, 1], halving, doubling."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn.layers import RowConv2d, row_silu

EPSILON = 1e-6


def check_groups(channels: Sequence[int], groups: int) -> None:
    """Refuse channels that GroupNorm cannot split."""
    if groups < 1 or any(count < 1 or count % groups for count in channels):
        raise ValueError(f"channels {tuple(channels)} do not split into {groups} groups")


def to_signed(observations: Tensor, like: Tensor) -> Tensor:
    """Bytes as numbers in [-1, 1], of the other tensor's dtype."""
    return observations.to(like.dtype) / 127.5 - 1


def from_signed(frames: Tensor) -> Tensor:
    """Numbers around [-1, 1] as numbers around [0, 1]."""
    return (frames + 1) / 2


class RowNormSiLU(nn.Module):
    """GroupNorm over the frame, then SiLU."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=EPSILON)

    def forward(self, features: Tensor) -> Tensor:
        # A frame is a row: it rounds alike in a batch of any size.
        return row_silu(self.norm(features).flatten(1)).view_as(features)


class Halve(nn.Module):
    """A 3×3 convolution of stride 2, with zeros on the right and below alone: position 0 sees pixels 0, 1 and 2."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = RowConv2d(inputs, outputs, 3, stride=2)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.conv(F.pad(features, (0, 1, 0, 1)))
        return result


class Double(nn.Module):
    """Every position four times, then a 3×3 convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = RowConv2d(inputs, outputs, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.conv(F.interpolate(features, scale_factor=2, mode="nearest-exact"))
        return result
