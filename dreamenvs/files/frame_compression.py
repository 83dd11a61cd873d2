"""Frames packed by zlib, lossless: most of a game's screen stays as it is, and hundreds of start contexts take the room
of a few. Unpacking is bounded by the size that is asked for, so that a small hostile file cannot fill the memory."""

from __future__ import annotations

import zlib
from math import prod

import torch
from torch import Tensor


def deflate(frames: Tensor) -> Tensor:
    """The bytes (M,) uint8 that frames (…) uint8 are stored as."""
    packed = zlib.compress(frames.cpu().contiguous().numpy().tobytes(), 9)
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def inflate(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The frames of that shape; `ValueError` for bytes that are no such frames."""
    if packed.dtype != torch.uint8 or packed.ndim != 1:
        raise ValueError(f"packed frames are bytes in a row, not {tuple(packed.shape)} {packed.dtype}")
    size = prod(shape)
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed.numpy().tobytes(), size + 1)  # 0 would mean without bound
    except zlib.error as error:
        raise ValueError(f"packed frames are damaged: {error}") from error
    if len(data) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"packed frames do not unpack to exactly {size} bytes, as {shape} takes")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(shape)
