"""Replay: real episodes on disk, of which only what is looked at comes into memory."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from dreamenvs.data import replay_storage as storage
from dreamenvs.data.episode import Episode
from dreamenvs.types import Scalar, WorldSpec

SHARD_BYTES = 64 * 2**20
MAX_OPEN = 128
"""Shards that are kept open, the latest used; each holds one file. At 64 MiB that is 8 GiB of frames."""


class Budget(NamedTuple):
    """What a replay takes; the pages of its memory maps belong to the system, which drops them when it needs to."""

    episodes: int
    steps: int
    disk_bytes: int
    resident_bytes: int
    """At most, when every shard that may be open is."""

    def __str__(self) -> str:
        disk, resident = (f"{-(-size // 2**20):,} MiB" for size in (self.disk_bytes, self.resident_bytes))
        return f"replay: {self.episodes:,} episodes, {self.steps:,} steps, {disk} on disk, {resident} in memory"


class Replay(Sequence[Episode]):
    """Episodes of one world in a directory of memory-mapped shards; `create` or `open` one.

    It sees what was there when it was opened and what it appended itself.
    """

    def __init__(self, directory: Path, index: storage.Index) -> None:
        self.directory = directory
        self._open: OrderedDict[int, dict[str, NDArray[Any]]] = OrderedDict()
        self._use(index)

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        spec: WorldSpec,
        notes: Mapping[str, Scalar] | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> Replay:
        """An empty replay in a new or empty directory; `notes`, if there are any, come before those of the appends."""
        folder = Path(directory)
        index = storage.Index(spec=spec, shard_bytes=shard_bytes, notes=(dict(notes),) if notes else ())
        with storage.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with storage.locked(folder):
            if any(path.name != storage.PART for path in folder.iterdir()):
                raise FileExistsError(f"{folder} is not empty; open the replay in it or choose another directory")
            with storage.writing(folder):
                storage.write_index(folder, index)
        return cls(folder, index)

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Replay:
        """An existing replay; its shards are opened when they are needed."""
        return cls(Path(directory), storage.read_index(Path(directory)))

    def append(self, episodes: Iterable[Episode], notes: Mapping[str, Scalar] | None = None) -> None:
        """Add episodes: all of them or, if anything fails, none. One shard at most is held in memory.

        `notes` say how they were made, such as the policy and the seed; the numbers of episodes and steps are added.
        """
        note = dict(notes or {})
        with storage.locked(self.directory):
            index = storage.read_index(self.directory)  # another process may have appended
            if index.spec != self.spec:
                raise ValueError(f"{self.directory} now holds the episodes of {index.spec.world}: open it again")
            replace(index, notes=(note,))  # refuses what cannot be written before hours are spent on the episodes
            with storage.writing(self.directory):
                storage.prepare(self.directory, len(index.shards))
            shards = self._write(_batches(episodes, index), len(index.shards))
            lengths = [length for shard in shards for length in shard.lengths]
            note |= {"episodes": len(lengths), "steps": sum(lengths)}
            index = replace(index, shards=(*index.shards, *shards), notes=(*index.notes, note))
            with storage.writing(self.directory):
                storage.write_index(self.directory, index)
        self._use(index)

    def truncate(self, episodes: int) -> None:
        """Forget all but the first `episodes`, which end with an append; what follows is removed from disk."""
        with storage.locked(self.directory):
            index = storage.read_index(self.directory)
            ends = np.cumsum([0, *(len(shard.lengths) for shard in index.shards)]).tolist()
            if episodes not in ends:
                raise ValueError(f"{self.directory} has {ends[-1]} episodes, and no append ends with number {episodes}")
            shards = ends.index(episodes)
            counts = np.cumsum([0, *(int(note.get("episodes") or 0) for note in index.notes)]).tolist()
            notes = index.notes[: max(i for i, count in enumerate(counts) if count <= episodes)]
            with storage.writing(self.directory):
                storage.write_index(self.directory, replace(index, shards=index.shards[:shards], notes=notes))
                storage.remove_orphans(self.directory, shards)
        for number in [number for number in self._open if number >= shards]:
            del self._open[number]
        self._use(storage.read_index(self.directory))

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> Subset:
        """Some of the episodes, which stay on disk."""
        return Subset(self, np.asarray(indices, np.int64))

    @property
    def spec(self) -> WorldSpec:
        """The world that the episodes come from."""
        return self._index.spec

    @property
    def notes(self) -> list[dict[str, Scalar]]:
        """How the episodes were made, one dict for each append."""
        return [dict(note) for note in self._index.notes]

    @property
    def steps(self) -> int:
        """The steps of all episodes."""
        return int(self.lengths.sum())

    def budget(self) -> Budget:
        """What the replay takes on disk and in memory."""
        shards = self._index.shards
        small = sorted((sum(shard.sizes.values()) - shard.sizes["observations"] for shard in shards), reverse=True)
        disk = sum(sum(shard.sizes.values()) for shard in shards) + (self.directory / storage.INDEX).stat().st_size
        tables = sum(table.nbytes for table in (self.lengths, self._shards, self._places, self._offsets))
        return Budget(len(self), self.steps, disk, sum(small[:MAX_OPEN]) + tables)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...
    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        """An episode whose frames are a view of the memory map, or a list of them."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)}")
        arrays = self._load(int(self._shards[index]))
        start, steps, place = int(self._offsets[index]), int(self.lengths[index]), int(self._places[index])
        frames = arrays["observations"][start + place : start + place + steps + 1]
        rest = {field: array[start : start + steps] for field, array in arrays.items() if field != "observations"}
        return Episode(observations=frames, **rest)

    def _use(self, index: storage.Index) -> None:
        counts = np.array([len(shard.lengths) for shard in index.shards], np.int64)
        self._index = index
        self.lengths = np.array([length for shard in index.shards for length in shard.lengths], np.int64)
        """(N,), the steps of every episode."""
        self._shards = np.repeat(np.arange(len(counts)), counts)
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        self._places = np.arange(len(self.lengths)) - firsts
        before = np.cumsum(self.lengths) - self.lengths
        self._offsets = before - before[firsts]

    def _load(self, number: int) -> dict[str, NDArray[Any]]:
        if number not in self._open:
            shard = self._index.shards[number]
            self._open[number] = {
                field: storage.load_array(self.directory, number, field, shard, self.spec) for field in storage.FIELDS
            }
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        return self._open[number]

    def _write(self, batches: Iterable[list[Episode]], first: int) -> list[storage.Shard]:
        shards: list[storage.Shard] = []
        try:
            for batch in batches:
                with storage.writing(self.directory):
                    shards.append(storage.write_shard(self.directory, first + len(shards), batch))
                batch.clear()  # or it would stay in memory while the next one is gathered
        except BaseException:
            with suppress(OSError):  # what cannot be removed now, the next append removes
                storage.remove_orphans(self.directory, first)
            raise
        return shards


class Subset(Sequence[Episode]):
    """Some episodes of a replay, in any order."""

    def __init__(self, replay: Replay, indices: NDArray[np.int64]) -> None:
        self.replay, self.indices = replay, indices
        self.lengths = replay.lengths[indices]
        """(N,), the steps of every episode."""

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...
    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        if isinstance(index, slice):
            return [self.replay[int(i)] for i in self.indices[index]]
        return self.replay[int(self.indices[index])]


def _batches(episodes: Iterable[Episode], index: storage.Index) -> Iterator[list[Episode]]:
    """Whole episodes, as many as fit into a shard."""
    batch: list[Episode] = []
    size = 0
    for episode in episodes:
        storage.check_episode(episode, index.spec)
        more = sum(getattr(episode, field).nbytes for field in storage.FIELDS)
        if batch and size + more > index.shard_bytes:
            yield batch
            batch, size = [], 0
        batch.append(episode)
        size += more
    if batch:
        yield batch
