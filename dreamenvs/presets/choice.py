"""Which small preset suits what episodes show: cells of one colour, sprites made of patches, or any pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dreamenvs import families
from dreamenvs.data.episode import Episode
from dreamenvs.presets.world_models import EXACT_PATCHES
from dreamenvs.tokenizers.patches import PatchTokenizer

CELL, COLOURS, FRAMES = 4, 16, 32
"""The preset `cells` has a code for each of 16 colours and a token for each patch of 4 × 4 pixels."""
STRANGE = 0.005
"""The most of a frame's places that may look like no kept patch, where frames are called made of patches."""


def choose_preset(family: str, episodes: Sequence[Episode]) -> str:
    """The preset of a family that suits what episodes show; where none was made for it, the family's first.

    `cells` where frames are made of patches of one colour each. Of GRID, the first whose patches are enough for frames
    that they were not taken from, and `vq`, whose patches are learned, where none are.
    """
    presets = families.FAMILIES[family].presets
    if "vq" in presets:
        return next((preset for preset in presets if share_of_strange(episodes, preset) <= STRANGE), "vq")
    return "cells" if "cells" in presets and made_of_cells(episodes) else presets[0]


def share_of_strange(episodes: Sequence[Episode], preset: str) -> float:
    """The share of places that look like no patch of a preset, in frames that its patches were not taken from."""
    config = EXACT_PATCHES.get(preset)
    frames = torch.from_numpy(some_frames(episodes)).permute(0, 3, 1, 2)
    if config is None or any(side % config.size for side in frames.shape[2:]):
        return 1.0
    tokenizer = PatchTokenizer(config, (frames.shape[1], frames.shape[2], frames.shape[3]))
    tokenizer.grow(frames[::2])
    return tokenizer.share_of_strange(frames[1::2])


def some_frames(episodes: Sequence[Episode]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Frames (N, H, W, C) from all over the data."""
    chosen = [episodes[index] for index in np.linspace(0, len(episodes) - 1, min(FRAMES, len(episodes))).astype(int)]
    each = max(4, 256 // len(chosen))
    return np.concatenate([episode.observations[:: max(1, len(episode) // each)] for episode in chosen])


def made_of_cells(episodes: Sequence[Episode]) -> bool:
    """Whether every patch of 4 × 4 pixels holds one colour, and there are few of them; some frames are looked at."""
    frames = some_frames(episodes)
    count, height, width, channels = frames.shape
    if height % CELL or width % CELL:
        return False
    patches = frames.reshape(count, height // CELL, CELL, width // CELL, CELL, channels)
    corners = patches[:, :, :1, :, :1]
    return bool((patches == corners).all()) and len(np.unique(corners.reshape(-1, channels), axis=0)) <= COLOURS
