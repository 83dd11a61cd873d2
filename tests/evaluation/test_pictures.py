"""Pictures."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dreamenvs.evaluation.pictures import code_figure, mosaic, palette, side_by_side, write_gif, write_png


class Thirds:
    """A tokenizer on a 2×3 grid whose code is the patch's first pixel; it gives back flat patches."""

    grid = (2, 3)
    num_tokens, vocabulary, latent_width = 6, 4, 6

    def encode(self, observations: Tensor) -> Tensor:
        return observations[:, 0, ::4, ::4].flatten(1).long() // 64

    def embed(self, tokens: Tensor) -> Tensor:
        return tokens.float()

    def decode(self, latent: Tensor) -> Tensor:
        patches = (latent.reshape(-1, 1, 2, 3) * 64 / 255).expand(-1, 3, -1, -1)
        return patches.repeat_interleave(4, 2).repeat_interleave(4, 3)


def test_the_code_figure_has_the_papers_four_rows() -> None:
    frames = torch.zeros(2, 3, 8, 12, dtype=torch.uint8)
    frames[1, :, 4:, 8:] = 128  # one patch changes
    picture = code_figure(Thirds(), frames, scale=1, gap=1)  # type: ignore[arg-type]
    assert picture.shape == (4 * 9 + 1, 2 * 13 + 1, 3)
    rows = [picture[1 + 9 * i : 9 + 9 * i, 14:26] for i in range(4)]
    colours = palette(4)
    assert (rows[0][4:, 8:] == 128).all()
    assert (rows[1][4:, 8:] == colours[2]).all()
    assert (rows[1][:4] == colours[0]).all()
    red, green, _ = rows[2][6, 10]
    assert red > 150 > green
    assert (rows[2][:4, :, 0] == rows[2][:4, :, 1]).all()
    assert (rows[3][4:, 8:] == 128).all()
    unchanged = picture[19:27, 1:13]
    assert (unchanged == 0).all()  # the first frame has none before it


def test_the_code_figure_refuses_other_things_than_frames() -> None:
    with pytest.raises(ValueError, match=r"\(T, C, H, W\) of uint8"):
        code_figure(Thirds(), torch.zeros(3, 8, 12))  # type: ignore[arg-type]


def test_colours_are_distinct() -> None:
    assert len({tuple(colour) for colour in palette(64).tolist()}) == 64


def test_a_png_holds_the_pixels(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    data = io.BytesIO(write_png(tmp_path / "a.png", image).read_bytes())
    assert data.read(8) == b"\x89PNG\r\n\x1a\n"
    chunks = {}
    while header := data.read(8):
        length, name = struct.unpack(">I4s", header)
        chunks[name] = data.read(length)
        assert struct.unpack(">I", data.read(4))[0] == zlib.crc32(name + chunks[name])
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (7, 5)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(5, 22)
    assert np.array_equal(lines[:, 1:].reshape(5, 7, 3), image)
    with pytest.raises(ValueError, match="H×W×3 uint8"):
        write_png(tmp_path / "b.png", image[..., 0])


def test_a_mosaic_has_white_gaps() -> None:
    picture = mosaic([np.zeros((2, 3, 3, 3), np.uint8)] * 2, gap=1)
    assert picture.shape == (9, 9, 3)
    assert (picture[0] == 255).all()
    assert (picture[4] == 255).all()


def test_reality_stands_left_of_the_dream() -> None:
    real, imagined = np.zeros((2, 3, 5, 3), np.uint8), np.full((2, 3, 5, 3), 7, np.uint8)
    picture = side_by_side(real, imagined, scale=2, gap=4)
    assert picture.shape == (2, 6, 24, 3)
    assert (picture[:, :, :10] == 0).all()
    assert (picture[:, :, 10:14] == 255).all()
    assert (picture[:, :, 14:] == 7).all()
    with pytest.raises(ValueError, match="twice"):
        side_by_side(real, imagined[:1])


def test_a_gif_plays_the_frames(tmp_path: Path) -> None:
    frames = np.zeros((3, 8, 8, 3), np.uint8)
    frames[0, ..., 0], frames[1, ..., 1], frames[2, ..., 2] = 255, 255, 255
    path = write_gif(tmp_path / "a.gif", frames, fps=10)
    with Image.open(path) as picture:
        assert (picture.n_frames, picture.info["duration"], picture.info["loop"]) == (3, 100, 0)  # type: ignore[attr-defined]
        for number, frame in enumerate(frames):
            picture.seek(number)
            assert np.array_equal(np.asarray(picture.convert("RGB")), frame)
    with pytest.raises(ValueError, match="uint8"):
        write_gif(path, frames.astype(np.float32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fps=500"):
        write_gif(path, frames, fps=500)


def test_without_pillow_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install"):
        write_gif(tmp_path / "a.gif", np.zeros((1, 4, 4, 3), np.uint8))
