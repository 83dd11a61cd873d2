"""Segments out of episodes: what world models are fitted on, and what dreams start from.

A step t is valid if its observation, action, reward and flag are all real: an episode of T steps gives T valid steps.
Reward and termination at t follow from frames up to t, so those of the last step can be learned; the next-frame loss at
t needs valid[t + 1]. The frame after the last action has no action and is no step: it appears, if it is asked for, in
the first place of the padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs import tree
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
    episodes: Sequence[Episode],
    count: int,
    length: int,
    rng: np.random.Generator,
    *,
    beginnings: float = 0.0,
    padded: bool = False,
) -> Segment:
    """Segments for dreams to start from: uniform over all the places where one fits.

    A share `beginnings` of them are the first steps of episodes, where a policy that acts for real will start. With
    `padded`, a dream may start at any frame, the first one included: what is not there before it is padded on the left.
    """
    if not 0 <= beginnings <= 1:
        raise ValueError(f"beginnings is a share from 0 to 1, not {beginnings}")
    if padded:
        chosen, lasts = uniform_places(episode_lengths(episodes), count, rng)
        lasts[: round(count * beginnings)] = 0
        return cut_contexts(episodes, chosen, lasts, length)
    places = np.maximum(episode_lengths(episodes) - length + 1, 0)
    if not places.any():
        raise ValueError(f"no episode has {length} steps for a start context")
    chosen, starts = uniform_places(places, count, rng)
    first = round(count * beginnings)
    chosen[:first] = rng.choice(np.flatnonzero(places), first)
    starts[:first] = 0
    return cut_segments(episodes, chosen, starts, length)


def cut_contexts(
    episodes: Sequence[Episode], chosen: NDArray[np.int64], lasts: NDArray[np.int64], length: int
) -> Segment:
    """Excerpts of up to `length` steps that end with the steps `lasts` (B,) of the chosen (B,), padded on the left."""
    starts = np.maximum(lasts - length + 1, 0)
    sizes = torch.from_numpy(lasts - starts + 1)
    segment = cut_segments(episodes, chosen, starts, length)
    # What was cut goes to the end, and what follows the last step into the padding.
    places = (torch.arange(length) - (length - sizes)[:, None]) % length
    rows = torch.arange(len(chosen))[:, None]
    moved = tree.map(lambda part: part[rows, places], segment)
    valid = torch.arange(length) >= (length - sizes)[:, None]
    return tree.map(lambda part: _blank(part, ~valid), moved)._replace(valid=valid)


def _blank(values: Tensor, where: Tensor) -> Tensor:
    """Values (B, T, …) with zeros where (B, T) says so."""
    return values.masked_fill(where.view(*where.shape, *[1] * (values.dim() - 2)), 0)


def episode_lengths(episodes: Sequence[Episode]) -> NDArray[np.int64]:
    """The steps of every episode (N,); a replay knows them without opening its shards."""
    if not len(episodes):
        raise ValueError("there are no episodes to take segments from")
    known: NDArray[np.int64] | None = getattr(episodes, "lengths", None)
    return np.array([len(episode) for episode in episodes], np.int64) if known is None else known


def whole_segment(episode: Episode) -> Segment:
    """An episode as a segment of one row, with its final frame."""
    zeros = np.zeros(1, np.int64)
    return cut_segments([episode], zeros, zeros, len(episode) + 1, final=True)


def cut_segments(
    episodes: Sequence[Episode],
    chosen: NDArray[np.int64],
    starts: NDArray[np.int64],
    length: int,
    *,
    final: bool = False,
) -> Segment:
    """Excerpts of `length` steps of the chosen (B,) episodes from their starts (B,) on, padded on the right.

    With `final`, the first padded place shows the frame after the last step.
    """
    first, shape = episodes[0], (len(chosen), length)
    observations = np.zeros((*shape, *first.observations.shape[1:]), np.uint8)
    actions = np.zeros((*shape, *first.actions.shape[1:]), first.actions.dtype)
    rewards, flags = np.zeros(shape, np.float32), np.zeros((2, *shape), bool)
    for row, (index, start) in enumerate(zip(chosen.tolist(), starts.tolist(), strict=True)):
        episode = episodes[index]
        end = min(start + length, len(episode))
        size = end - start
        shown = min(size + final, length)
        observations[row, :shown] = episode.observations[start : start + shown]
        actions[row, :size] = episode.actions[start:end]
        rewards[row, :size] = episode.rewards[start:end]
        flags[0, row, :size] = episode.terminated[start:end]
        flags[1, row, :size] = True
    frames = torch.from_numpy(observations).permute(0, 1, 4, 2, 3).contiguous()
    terminated, valid = torch.from_numpy(flags)
    return Segment(frames, torch.from_numpy(actions), torch.from_numpy(rewards), terminated, valid)
