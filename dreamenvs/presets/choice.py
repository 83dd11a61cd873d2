"""Which small preset suits what episodes show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dreamenvs import families
from dreamenvs.data.episode import Episode

CELL, COLOURS, FRAMES = 4, 16, 32
"""The preset `cells` has a code for each of 16 colours and a token for each patch of 4 × 4 pixels."""


def choose_preset(family: str, episodes: Sequence[Episode]) -> str:
    """`cells` where a family has it and frames are made of patches of one colour each; else the family's first."""
    presets = families.FAMILIES[family].presets
    return "cells" if "cells" in presets and made_of_cells(episodes) else presets[0]


def made_of_cells(episodes: Sequence[Episode]) -> bool:
    """Whether every patch of 4 × 4 pixels holds one colour, and there are few of them; some frames are looked at."""
    chosen = [episodes[index] for index in np.linspace(0, len(episodes) - 1, min(FRAMES, len(episodes))).astype(int)]
    frames = np.concatenate([episode.observations[:: max(1, len(episode) // 4)] for episode in chosen])
    count, height, width, channels = frames.shape
    if height % CELL or width % CELL:
        return False
    patches = frames.reshape(count, height // CELL, CELL, width // CELL, CELL, channels)
    corners = patches[:, :, :1, :, :1]
    return bool((patches == corners).all()) and len(np.unique(corners.reshape(-1, channels), axis=0)) <= COLOURS
