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
from dreamenvs.data.samplers import Sampler, UniformSampler, uniform_places
from dreamenvs.types import Segment


def sample_segments(
    episodes: Sequence[Episode], rows: int, length: int, rng: np.random.Generator, sampler: Sampler | None = None
) -> Segment:
    """Excerpts that stay inside one episode; an episode shorter than `length` is padded on the right.

    The sampler chooses them, by default a `UniformSampler`.
    """
    chosen, starts = (sampler or UniformSampler()).draw(episode_lengths(episodes), rows, length, rng)
    return cut_segments(episodes, chosen, starts, length)


def start_contexts(
    episodes: Sequence[Episode], count: int, length: int, rng: np.random.Generator, *, beginnings: float = 0.0
) -> Segment:
    """Segments without padding for dreams to start from: uniform over all the places where one fits.

    A share `beginnings` of them are the first steps of episodes, where a policy that acts for real will start.
    """
    if not 0 <= beginnings <= 1:
        raise ValueError(f"beginnings is a share from 0 to 1, not {beginnings}")
    places = np.maximum(episode_lengths(episodes) - length + 1, 0)
    if not places.any():
        raise ValueError(f"no episode has {length} steps for a start context")
    chosen, starts = uniform_places(places, count, rng)
    first = round(count * beginnings)
    chosen[:first] = rng.choice(np.flatnonzero(places), first)
    starts[:first] = 0
    return cut_segments(episodes, chosen, starts, length)


def episode_lengths(episodes: Sequence[Episode]) -> NDArray[np.int64]:
    """The steps of every episode (N,); a replay knows them without opening its shards."""
    if not len(episodes):
        raise ValueError("there are no episodes to take segments from")
    known: NDArray[np.int64] | None = getattr(episodes, "lengths", None)
    return np.array([len(episode) for episode in episodes], np.int64) if known is None else known


def cut_segments(
    episodes: Sequence[Episode], chosen: NDArray[np.int64], starts: NDArray[np.int64], length: int
) -> Segment:
    """Excerpts of `length` steps of the chosen (B,) episodes from their starts (B,) on, padded on the right."""
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
