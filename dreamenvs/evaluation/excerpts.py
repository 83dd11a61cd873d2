"""Excerpts of held-out episodes: unlike a segment, with the frame that follows the last action."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dreamenvs.data.episode import Episode
from dreamenvs.types import Segment


class Place(NamedTuple):
    """Steps `begin` to `end` (not included) of an episode."""

    episode: int
    begin: int
    end: int
    counted: int
    """The first step that counts; those before it warm the model up."""


class Excerpts(NamedTuple):
    """Rows of real steps, zeros after their end; `observations[t + 1]` follows `actions[t]`."""

    observations: Tensor  # (B, T + 1, C, H, W) uint8
    actions: Tensor  # (B, T) int64 | (B, T, A) float32
    rewards: Tensor  # (B, T) float32
    terminated: Tensor  # (B, T) bool
    counted: Tensor  # (B, T) bool

    def context(self, length: int) -> Segment:
        """The first frames of every row, to be observed."""
        return Segment(
            observations=self.observations[:, :length],
            actions=self.actions[:, :length],
            rewards=self.rewards[:, :length],
            terminated=self.terminated[:, :length],
            valid=torch.ones_like(self.terminated[:, :length]),
        )


def batches(
    episodes: Sequence[Episode], places: Sequence[Place], rows: int, device: torch.device | str
) -> Iterator[Excerpts]:
    """The excerpts at all places, `rows` at a time and the longest first, so that little of a batch is padding."""
    ordered = sorted(places, key=lambda place: place.begin - place.end)
    for first in range(0, len(ordered), rows):
        yield cut(episodes, ordered[first : first + rows], device)


def cut(episodes: Sequence[Episode], places: Sequence[Place], device: torch.device | str = "cpu") -> Excerpts:
    """The excerpts at some places."""
    first = episodes[places[0].episode]
    rows, steps = len(places), max(place.end - place.begin for place in places)
    observations = np.zeros((rows, steps + 1, *first.observations.shape[1:]), np.uint8)
    actions = np.zeros((rows, steps, *first.actions.shape[1:]), first.actions.dtype)
    rewards = np.zeros((rows, steps), np.float32)
    terminated, counted = np.zeros((2, rows, steps), bool)
    for row, (index, begin, end, from_step) in enumerate(places):
        episode, size = episodes[index], end - begin
        observations[row, : size + 1] = episode.observations[begin : end + 1]
        actions[row, :size] = episode.actions[begin:end]
        rewards[row, :size] = episode.rewards[begin:end]
        terminated[row, :size] = episode.terminated[begin:end]
        counted[row, from_step - begin : size] = True
    frames = torch.from_numpy(observations).permute(0, 1, 4, 2, 3).contiguous()
    tensors = (frames, *map(torch.from_numpy, (actions, rewards, terminated, counted)))
    return Excerpts(*(tensor.to(device) for tensor in tensors))
