"""Segments out of episodes: what world models are fitted on, and what dreams start from.

A step t is valid if its observation, action, reward and flag are all real: an episode of T steps gives T valid steps.
Reward and termination at t follow from frames up to t, so those of the last step can be learned; the next-frame loss at
t needs valid[t + 1]. The frame after the last action has no action and is no step: it never appears in a segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dreamenvs.data.episode import Episode
from dreamenvs.types import Segment


def sample_segments(episodes: Sequence[Episode], rows: int, length: int, rng: np.random.Generator) -> Segment:
    """Excerpts that stay inside one episode; an episode shorter than `length` is padded on the right.

    A step is drawn uniformly from all steps and falls on a uniformly drawn place of the segment, which is then moved
    inside its episode. With uniform starts instead, the last step, the only one that terminates, would come up in one
    segment of an episode where a middle step comes up in `length` of them.
    """
    lengths = _lengths(episodes)
    chosen, steps = _draw(lengths, rows, rng)
    last = np.maximum(lengths[chosen] - length, 0)
    starts = np.clip(steps - rng.integers(length, size=rows), 0, last)
    return _cut(episodes, chosen, starts, length)


def start_contexts(episodes: Sequence[Episode], count: int, length: int, rng: np.random.Generator) -> Segment:
    """Segments without padding for dreams to start from, uniform over all the places where one fits."""
    places = np.maximum(_lengths(episodes) - length + 1, 0)
    if not places.any():
        raise ValueError(f"no episode has {length} steps for a start context")
    chosen, starts = _draw(places, count, rng)
    return _cut(episodes, chosen, starts, length)


def _lengths(episodes: Sequence[Episode]) -> NDArray[np.int64]:
    if not episodes:
        raise ValueError("there are no episodes to take segments from")
    return np.array([len(episode) for episode in episodes], np.int64)


def _draw(
    places: NDArray[np.int64], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(count,) episodes and places in them, uniform over all places of all episodes."""
    ends = np.cumsum(places)
    drawn = rng.integers(ends[-1], size=count)
    chosen = np.searchsorted(ends, drawn, side="right")
    return chosen, drawn - (ends - places)[chosen]


def _cut(episodes: Sequence[Episode], chosen: NDArray[np.int64], starts: NDArray[np.int64], length: int) -> Segment:
    first, shape = episodes[0], (len(chosen), length)
    observations = np.zeros((*shape, *first.observations.shape[1:]), np.uint8)
    actions = np.zeros((*shape, *first.actions.shape[1:]), first.actions.dtype)
    rewards, flags = np.zeros(shape, np.float32), np.zeros((2, *shape), bool)
    for row, (index, start) in enumerate(zip(chosen.tolist(), starts.tolist(), strict=True)):
        episode = episodes[index]
        end = min(start + length, len(episode))
        size = end - start
        observations[row, :size] = episode.observations[start:end]
        actions[row, :size] = episode.actions[start:end]
        rewards[row, :size] = episode.rewards[start:end]
        flags[0, row, :size] = episode.terminated[start:end]
        flags[1, row, :size] = True
    frames = torch.from_numpy(observations).permute(0, 1, 4, 2, 3).contiguous()
    terminated, valid = torch.from_numpy(flags)
    return Segment(frames, torch.from_numpy(actions), torch.from_numpy(rewards), terminated, valid)
