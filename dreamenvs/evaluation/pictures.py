"""Pictures of what a model sees: appendix G of the STEP-VQ paper, PNG files without another package, and GIFs."""

from __future__ import annotations

import colorsys
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.protocols import Tokenizer

Image = NDArray[np.uint8]  # (H, W, 3)
Frames = NDArray[np.uint8]  # (T, H, W, 3)
_RED = np.array([255, 0, 0], dtype=np.float32)


class GridTokenizer(Tokenizer, Protocol):
    """A tokenizer whose tokens lie on a grid over the frame."""

    @property
    def grid(self) -> tuple[int, int]: ...


@torch.no_grad()
def code_figure(tokenizer: GridTokenizer, frames: Tensor, scale: int = 2, gap: int = 4) -> Image:
    """The paper's figures 7 to 10 for frames (T, C, H, W) uint8 in temporal order.

    Rows, from the top: the frames; their codes, one colour a code; in red over grey, the patches whose code differs
    from the frame before; the frames as the decoder gives them back.
    """
    if frames.dim() != 4 or frames.dtype != torch.uint8:
        raise ValueError(f"code_figure takes frames (T, C, H, W) of uint8, not {tuple(frames.shape)} of {frames.dtype}")
    tokens = tokenizer.encode(frames)
    pixels = tokenizer.decode(tokenizer.embed(tokens))
    restored = (pixels * 255).round().clamp(0, 255).to(torch.uint8)
    height, width = frames.shape[2:]
    grid = tokens.cpu().numpy().reshape(-1, *tokenizer.grid)
    codes = palette(tokenizer.vocabulary)[grid]
    changed = np.zeros(grid.shape, dtype=bool)
    changed[1:] = grid[1:] != grid[:-1]
    originals = colour(frames)
    rows = [originals, _enlarge(codes, height, width), _mark(originals, changed), colour(restored)]
    return mosaic([np.repeat(np.repeat(row, scale, axis=1), scale, axis=2) for row in rows], gap)


def palette(count: int) -> Image:
    """`count` distinct colours (count, 3); neighbouring numbers get unlike hues, by the golden ratio."""
    colours = [
        colorsys.hsv_to_rgb(0.618033988749895 * i % 1.0, 0.55 + 0.4 * (i % 2), 0.95 - 0.25 * (i % 3))
        for i in range(count)
    ]
    return (np.array(colours) * 255).astype(np.uint8)


def mosaic(rows: Sequence[NDArray[np.uint8]], gap: int = 4) -> Image:
    """One white-gapped picture from rows of images, each (N, H, W, 3)."""
    count, height, width, _ = rows[0].shape
    picture = np.full((len(rows) * (height + gap) + gap, count * (width + gap) + gap, 3), 255, dtype=np.uint8)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = gap + i * (height + gap), gap + j * (width + gap)
            picture[top : top + height, left : left + width] = image
    return picture


def write_png(path: str | os.PathLike[str], image: Image) -> Path:
    """Write an H×W×3 uint8 image as a PNG file."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(f"a picture is H×W×3 uint8, not {image.shape} of {image.dtype}")
    height, width, _ = image.shape
    lines = np.zeros((height, 1 + width * 3), dtype=np.uint8)  # each line begins with its filter, 0 for none
    lines[:, 1:] = image.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, data in chunks:
            file.write(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))
    return Path(path)


def side_by_side(real: Frames, imagined: Frames, *, scale: int = 4, gap: int = 4) -> Frames:
    """Reality on the left and the dream on the right, frame by frame, enlarged `scale` times."""
    if real.shape != imagined.shape or real.ndim != 4 or real.shape[3] != 3:
        raise ValueError(f"side_by_side takes frames (T, H, W, 3) twice, not {real.shape} and {imagined.shape}")
    large = [frames.repeat(scale, axis=1).repeat(scale, axis=2) for frames in (real, imagined)]
    space = np.full((len(real), large[0].shape[1], gap, 3), 255, dtype=np.uint8)
    return np.concatenate([large[0], space, large[1]], axis=2)


def write_gif(path: str | os.PathLike[str], frames: Frames, fps: float = 15.0) -> Path:
    """Write frames (T, H, W, 3) uint8 as an endless GIF."""
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or len(frames) == 0:
        raise ValueError(f"a GIF is made of frames (T, H, W, 3) of uint8, not {frames.shape} of {frames.dtype}")
    if not 1 <= fps <= 50:
        raise ValueError(f"fps={fps}: viewers show GIFs at 1 to 50 frames a second")
    try:
        from PIL import Image as Pictures
    except ImportError as error:
        raise ImportError('writing a GIF needs pillow: pip install "dreamenvs[train]"') from error
    # One palette for all frames, or the colours would flicker.
    first = Pictures.fromarray(frames.reshape(-1, *frames.shape[2:])).quantize(256)
    first, *others = (
        Pictures.fromarray(frame).quantize(palette=first, dither=Pictures.Dither.NONE) for frame in frames
    )
    first.save(path, format="GIF", save_all=True, append_images=others, duration=round(1000 / fps), loop=0)
    return Path(path)


def colour(frames: Tensor) -> Frames:
    """Frames (T, C, H, W) as (T, H, W, 3): RGB as it is, the mean of any other number of channels as grey."""
    images = frames.permute(0, 2, 3, 1).cpu().numpy()
    if images.shape[-1] != 3:
        images = np.repeat(images.mean(-1, keepdims=True), 3, axis=-1)
    return images.astype(np.uint8)


def _enlarge(cells: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    rows, columns = cells.shape[1:3]
    return np.repeat(np.repeat(cells, height // rows, axis=1), width // columns, axis=2)


def _mark(images: NDArray[np.uint8], changed: NDArray[np.bool_]) -> NDArray[np.uint8]:
    height, width = images.shape[1:3]
    grey = np.repeat(images.mean(-1, keepdims=True), 3, axis=-1)
    mask = _enlarge(changed[..., None].astype(np.uint8), height, width).astype(bool)
    return np.where(mask, 0.4 * grey + 0.6 * _RED, grey).astype(np.uint8)
