"""The shape of the grid that an encoder makes of a frame."""

from __future__ import annotations

from math import prod
from typing import Protocol


class Strided(Protocol):
    """Whatever makes frames smaller."""

    @property
    def strides(self) -> tuple[int, ...]: ...


def grid_shape(config: Strided, observation_shape: tuple[int, int, int]) -> tuple[int, int]:
    """Height and width (H', W') of the encoder's output."""
    stride = prod(config.strides)
    _, height, width = observation_shape
    if height % stride or width % stride:
        raise ValueError(
            f"observations of shape {observation_shape} (channels, height, width) do not divide by the total stride "
            f"{stride} of strides {config.strides}: height and width must be multiples of {stride}"
        )
    return height // stride, width // stride
