"""Frames as tokens, computed once before a stage: episodes whose images are the bytes of int16 tokens.

In memory they take 2·K bytes for each frame: 13 MB for 100,000 frames of 64 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.data.episode import Episode
from dreamenvs.types import Segment

BATCH = 256
"""Frames that are prepared at once."""


@torch.no_grad()
def prepare_episodes(
    prepare: Callable[[Tensor], Tensor], episodes: Sequence[Episode], device: torch.device | str = "cpu"
) -> list[Episode]:
    """The same episodes with tokens in the place of pixels; the same weights give the same tokens, bit for bit."""
    prepared = []
    for group in _groups(episodes):
        frames = torch.from_numpy(np.concatenate([episode.observations for episode in group])).permute(0, 3, 1, 2)
        parts = (frames[start : start + BATCH].contiguous().to(device) for start in range(0, len(frames), BATCH))
        tokens = torch.cat([prepare(part).cpu() for part in parts])
        if int(tokens.max()) >= 2**15:
            raise ValueError(f"token {int(tokens.max())} is too large: prepared tokens are kept as int16")
        ends = np.cumsum([len(episode.observations) for episode in group])[:-1]
        for episode, own in zip(group, np.split(_to_bytes(tokens), ends), strict=True):
            prepared.append(replace(episode, observations=own))
    return prepared


def unpack_tokens(segment: Segment) -> Segment:
    """A segment of prepared episodes, with its bytes as tokens (B, T, K) int64."""
    return segment._replace(observations=segment.observations.flatten(2).contiguous().view(torch.int16).long())


def _to_bytes(tokens: Tensor) -> NDArray[np.uint8]:
    """Tokens (N, K) as images (N, 1, 1, 2·K)."""
    return tokens.to(torch.int16).contiguous().numpy().view(np.uint8)[:, None, None]


def _groups(episodes: Sequence[Episode]) -> Iterator[list[Episode]]:
    """Neighbouring episodes that fill a batch together, for short ones alone would waste most of it."""
    group: list[Episode] = []
    frames = 0
    for episode in episodes:
        group.append(episode)
        frames += len(episode.observations)
        if frames >= BATCH:
            yield group
            group, frames = [], 0
    if group:
        yield group
