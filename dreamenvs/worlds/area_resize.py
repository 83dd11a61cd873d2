"""Resizing by area averaging, exact: every output pixel is the rounded mean of the area it covers.

The weights are whole numbers and no sum outgrows the mantissa of the dtype, so that the result is the same on every
machine, whatever the order in which its BLAS adds.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray


def area_weights(old: int, new: int) -> NDArray[np.int64]:
    """(new, old) overlaps of pixels along one axis, in the largest unit that makes them whole; rows have equal sums."""
    unit_old, unit_new = new // gcd(old, new), old // gcd(old, new)
    starts, ends = np.arange(old) * unit_old, np.arange(1, old + 1) * unit_old
    lows, highs = np.arange(new)[:, None] * unit_new, np.arange(1, new + 1)[:, None] * unit_new
    overlaps: NDArray[np.int64] = np.clip(np.minimum(ends, highs) - np.maximum(starts, lows), 0, None)
    return overlaps


class AreaResize:
    """Resizes uint8 images of one size to another."""

    def __init__(self, old: tuple[int, int], new: tuple[int, int]) -> None:
        rows, columns = area_weights(old[0], new[0]), area_weights(old[1], new[1])
        self._total = int(rows[0].sum() * columns[0].sum())
        self._dtype = np.float32 if 255 * self._total < 2**24 else np.float64
        self._rows, self._columns = rows.astype(self._dtype), columns.astype(self._dtype)

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(new H, new W, C) of an image (H, W, C); a new array."""
        height, width, channels = image.shape
        lines = self._rows @ image.reshape(height, width * channels).astype(self._dtype)
        sums = np.matmul(self._columns, lines.reshape(-1, width, channels)).astype(np.int64)
        means: NDArray[np.uint8] = ((sums + self._total // 2) // self._total).astype(np.uint8)
        return means
