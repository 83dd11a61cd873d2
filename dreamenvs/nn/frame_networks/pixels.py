"""Pixels as environments show them."""

from __future__ import annotations

import torch
from torch import Tensor


def to_bytes(pixels: Tensor) -> Tensor:
    """Frames (N, C, H, W) of floats around [0, 1] as uint8."""
    return (pixels * 255).round_().clamp_(0, 255).to(torch.uint8)
