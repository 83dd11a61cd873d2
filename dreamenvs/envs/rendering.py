"""Frames that a screen can show, whatever the number of channels of an observation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def to_rgb(frames: NDArray[Any]) -> NDArray[np.uint8]:
    """Pictures (N, H, W, 3) of observations (N, H, W, C): RGB as it is, grey repeated, other channels coloured."""
    channels = frames.shape[-1]
    if channels == 3:
        return frames.astype(np.uint8)
    if channels == 1:
        return np.repeat(frames, 3, axis=-1).astype(np.uint8)
    hues = np.arange(channels) / channels
    palette = 0.5 + 0.5 * np.cos(2 * np.pi * (hues[:, None] + np.array([0.0, 1 / 3, 2 / 3])))
    # Each pixel takes the colour of its strongest channel, so that overlapping channels do not wash out to white.
    strongest = frames.argmax(-1)
    coloured: NDArray[np.uint8] = (palette[strongest] * frames.max(-1, keepdims=True)).astype(np.uint8)
    return coloured
