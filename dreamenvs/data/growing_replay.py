"""Experience: what a loop that collects while it learns has seen so far, episodes that are still going on included.

Episodes stand in the order in which they began, so that none ever changes its place: samplers count by place. Finished
ones go to a replay on disk when `flush` is called; until then they are in memory, as are those that go on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dreamenvs.data.episode import Episode
from dreamenvs.data.replay import Replay
from dreamenvs.data.replay_storage import INDEX, layout
from dreamenvs.types import WorldSpec


class OpenEpisode:
    """An episode that is going on, in arrays that grow."""

    def __init__(self, spec: WorldSpec, first: NDArray[np.uint8]) -> None:
        fields = layout(spec)
        self.steps = 0
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.zeros((64, *fields[name][0]), fields[name][1]) for name in ("observations", "actions", "rewards")
        }
        self._arrays["observations"][0] = first
        self.terminated = self.truncated = False

    def add(self, action: Any, reward: float, frame: NDArray[np.uint8], terminated: bool, truncated: bool) -> None:
        """One more step."""
        if self.steps + 2 > len(self._arrays["observations"]):
            self._arrays = {name: np.concatenate([array, np.zeros_like(array)]) for name, array in self._arrays.items()}
        self._arrays["actions"][self.steps] = action
        self._arrays["rewards"][self.steps] = reward
        self.steps += 1
        self._arrays["observations"][self.steps] = frame
        self.terminated, self.truncated = terminated, truncated

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated

    @property
    def frames(self) -> NDArray[np.uint8]:
        """(T + 1, H, W, C), also where no step has been taken yet."""
        return self._arrays["observations"][: self.steps + 1]

    @property
    def actions(self) -> NDArray[Any]:
        """(T, …)."""
        return self._arrays["actions"][: self.steps]

    def episode(self) -> Episode:
        """What there is of it so far, in memory that it shares."""
        flags = np.zeros((2, self.steps), bool)
        flags[:, -1] = self.terminated, self.truncated
        return Episode(
            observations=self.frames,
            actions=self.actions,
            rewards=self._arrays["rewards"][: self.steps],
            terminated=flags[0],
            truncated=flags[1],
        )


class Experience(Sequence[Episode]):
    """Episodes by the order in which they began: on disk, finished but not flushed yet, or going on."""

    def __init__(self, replay: Replay, order: Sequence[int] = ()) -> None:
        """`order` are the numbers of the replay's episodes, each the place at which it began."""
        if len(order) != len(replay):
            raise ValueError(f"{replay.directory} holds {len(replay)} episodes, and {len(order)} were expected")
        self.replay = replay
        self._order = list(order)
        self._finished: list[Episode] = []
        self._places = {number: place for place, number in enumerate(self._order)}
        self._open: dict[int, OpenEpisode] = {}
        size = max(order, default=-1) + 1
        self._lengths = np.zeros(max(64, size), np.int64)
        self._lengths[self._order] = replay.lengths
        self.begun = size
        """How many episodes have begun."""

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the finished episodes, in the order in which they ended."""
        return tuple(self._order)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,), the steps of every episode."""
        return self._lengths[: len(self)]

    @property
    def steps(self) -> int:
        return int(self.lengths.sum())

    def begin(self, number: int, first: NDArray[np.uint8]) -> OpenEpisode:
        """A new episode; it is part of the experience once it has a step."""
        self.begun = max(self.begun, number + 1)
        if self.begun > len(self._lengths):
            self._lengths = np.concatenate([self._lengths, np.zeros_like(self._lengths)])
        self._open[number] = OpenEpisode(self.replay.spec, first)
        return self._open[number]

    def grow(self, number: int) -> None:
        """A step was added to an episode; if that ended it, it waits to be flushed."""
        episode = self._open[number]
        self._lengths[number] = episode.steps
        if episode.over:
            self._places[number] = len(self._order)
            self._order.append(number)
            self._finished.append(_own(episode.episode()))
            del self._open[number]

    def flush(self) -> None:
        """Put what is finished on disk."""
        if self._finished:
            self.replay.append(self._finished)
            self._finished = []

    def __len__(self) -> int:
        """Those that have a step; the ones without are the last that began."""
        used = np.flatnonzero(self._lengths[: self.begun])
        return int(used[-1]) + 1 if len(used) else 0

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...
    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)}")
        number = index % len(self)
        if number in self._open:
            return self._open[number].episode()
        place = self._places[number]
        return self.replay[place] if place < len(self.replay) else self._finished[place - len(self.replay)]


def open_experience(directory: str | os.PathLike[str], spec: WorldSpec, order: Sequence[int] = ()) -> Experience:
    """The experience of a run that had flushed the episodes of these numbers; what was flushed later is removed."""
    folder = Path(directory)
    replay = Replay.open(folder) if (folder / INDEX).exists() else Replay.create(folder, spec)
    if replay.spec != spec:
        raise ValueError(f"{folder} holds the episodes of another world or of other settings: {replay.spec.source}")
    if len(replay) != len(order):
        replay.truncate(len(order))
    return Experience(replay, order)


def _own(episode: Episode) -> Episode:
    """The episode in arrays of its own, no larger than they must be."""
    return Episode(**{name: getattr(episode, name).copy() for name in Episode.__dataclass_fields__})
