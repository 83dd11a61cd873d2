"""The replay's format on disk: shards of whole episodes as plain .npy files, and an index.json that lists them.

Files are named by the shard's number, never by the index. The index is replaced after the shards are durable, so that
killed at any moment it lists complete shards only; what a killed append leaves behind is removed by the next.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dreamenvs.config import check_json, from_json, to_json
from dreamenvs.data.episode import Episode
from dreamenvs.files.atomic_directory import ArtifactError, parse_json
from dreamenvs.types import DiscreteActions, Scalar, WorldSpec

if sys.platform != "win32":
    import fcntl

FORMAT = 2
INDEX = "index.json"
FIELDS = tuple(field.name for field in fields(Episode))
MAX_INDEX = 2**28
PART = INDEX + ".part"
"""A new index that has not taken over yet."""
_FILE = re.compile(rf"(\d{{6,}})-({'|'.join(FIELDS)})\.npy")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What the index knows of a shard: the steps of its episodes, and the size of each of its files."""

    lengths: tuple[int, ...]
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1 or set(self.sizes) != set(FIELDS):
            raise ValueError(f"a shard has episodes of at least one step and the files {', '.join(FIELDS)}")


@dataclass(frozen=True, kw_only=True)
class Index:
    """All that a replay is, besides the arrays."""

    spec: WorldSpec
    shard_bytes: int
    notes: tuple[Mapping[str, Scalar], ...] = ()
    shards: tuple[Shard, ...] = ()

    def __post_init__(self) -> None:
        if type(self.shard_bytes) is not int or self.shard_bytes < 1:
            raise ValueError(f"shard_bytes is a positive integer, not {self.shard_bytes!r}")
        for note in self.notes:
            check_json(dict(note), "notes")
            if any(isinstance(value, dict | list) for value in note.values()):
                raise ValueError(f"notes are numbers, strings, booleans and None, not {note}")


def shard_file(directory: Path, number: int, field: str) -> Path:
    """Where a shard keeps one of its arrays."""
    return directory / f"{number:06d}-{field}.npy"


def layout(spec: WorldSpec) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """The shape of one entry and the dtype of every array of a world's episodes."""
    channels, height, width = spec.observation_shape
    discrete = isinstance(spec.actions, DiscreteActions)
    size = () if isinstance(spec.actions, DiscreteActions) else (len(spec.actions.low),)
    return {
        "observations": ((height, width, channels), np.dtype(np.uint8)),
        "actions": (size, np.dtype(np.int64 if discrete else np.float32)),
        "rewards": ((), np.dtype(np.float32)),
        "terminated": ((), np.dtype(bool)),
        "truncated": ((), np.dtype(bool)),
    }


def check_episode(episode: Episode, spec: WorldSpec) -> None:
    """Refuse an episode of another world."""
    for field, (shape, dtype) in layout(spec).items():
        array: NDArray[Any] = getattr(episode, field)
        if array.shape[1:] != shape or array.dtype != dtype:
            raise ValueError(f"{field} are {array.shape[1:]} {array.dtype}; those of {spec.world} are {shape} {dtype}")
    if isinstance(spec.actions, DiscreteActions):
        low, high = episode.actions.min(), episode.actions.max()
        if low < 0 or high >= spec.actions.count:
            raise ValueError(f"actions from {low} to {high}; those of {spec.world} are 0 to {spec.actions.count - 1}")
        return
    lowest, highest = np.array(spec.actions.low, np.float32), np.array(spec.actions.high, np.float32)
    inside = (episode.actions >= lowest) & (episode.actions <= highest)  # NaN fails both
    if not inside.all():
        step, at = (int(index) for index in np.argwhere(~inside)[0])
        raise ValueError(
            f"action {episode.actions[step, at]:g} of step {step}, dimension {at}; those of {spec.world} are "
            f"{lowest[at]:g} to {highest[at]:g}: clip what is beyond"
        )


def write_shard(directory: Path, number: int, episodes: Sequence[Episode]) -> Shard:
    """Write whole episodes and make them durable; nothing refers to them before the index does."""
    sizes = {}
    for field in FIELDS:
        arrays: list[NDArray[Any]] = [getattr(episode, field) for episode in episodes]
        path = shard_file(directory, number, field)
        with open(path, "xb") as file:
            shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
            header = {"descr": np.lib.format.dtype_to_descr(arrays[0].dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for array in arrays:
                file.write(np.ascontiguousarray(array).data)
            file.flush()
            os.fsync(file.fileno())
            sizes[field] = file.tell()
    return Shard(lengths=tuple(map(len, episodes)), sizes=sizes)


def load_array(directory: Path, number: int, field: str, shard: Shard, spec: WorldSpec) -> NDArray[Any]:
    """One array of a shard: frames as a memory map, which holds a file open, and the small rest in memory."""
    path, frames = shard_file(directory, number, field), field == "observations"
    _check_file(path, shard.sizes[field])
    array: NDArray[Any] = np.load(path, mmap_mode="r" if frames else None, allow_pickle=False)
    shape, dtype = layout(spec)[field]
    expected = (sum(shard.lengths) + len(shard.lengths) * frames, *shape)
    if array.shape != expected or array.dtype != dtype or not array.flags.c_contiguous:
        raise ValueError(f"{path} holds {array.shape} {array.dtype}, not {expected} {dtype} as its index says")
    array.flags.writeable = False
    return array


def write_index(directory: Path, index: Index) -> None:
    """Put a new index in the place of the old one, in one step."""
    _sync(directory)
    temporary = directory / PART
    with open(temporary, "wb") as file:
        shards = [{"lengths": list(shard.lengths), "sizes": dict(shard.sizes)} for shard in index.shards]
        value = {"format": FORMAT, "spec": to_json(index.spec), "shard_bytes": index.shard_bytes}
        value |= {"notes": list(map(dict, index.notes)), "shards": shards}
        file.write(json.dumps(value, allow_nan=False).encode())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / INDEX)
    _sync(directory)


def read_index(directory: Path) -> Index:
    """The index of a directory, with the sizes of all its files checked."""
    path = directory / INDEX
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no replay here: collect one with dreamenvs collect", str(path))
    if path.stat().st_size > MAX_INDEX:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; an index has {MAX_INDEX} at most")
    try:
        value = parse_json(path.read_bytes(), str(path))
    except ArtifactError as error:
        raise ValueError(str(error)) from error
    version = value.get("format") if isinstance(value, dict) else None
    if version != FORMAT:
        old = " It was written by an earlier version: collect the episodes again." if version == 1 else ""
        raise ValueError(f"{path} has the format {version!r}; this version reads {FORMAT}.{old}")
    index = _decode_index(value, path)
    for number, shard in enumerate(index.shards):
        for field, size in shard.sizes.items():
            _check_file(shard_file(directory, number, field), size)
    return index


def _decode_index(value: dict[str, Any], path: Path) -> Index:
    try:
        notes, shards = value["notes"], value["shards"]
        if not all(isinstance(entry, dict) for entry in (*notes, *shards)):
            raise TypeError("notes and shards are lists of objects")
        return Index(
            spec=from_json(WorldSpec, value["spec"], "spec"),
            shard_bytes=value["shard_bytes"],
            notes=tuple(notes),
            shards=tuple(_decode_shard(entry) for entry in shards),
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is no valid index: {reason}") from error


def _decode_shard(entry: dict[str, Any]) -> Shard:
    lengths, sizes = entry["lengths"], entry["sizes"]
    if not all(type(number) is int for number in (*lengths, *sizes.values())):
        raise TypeError("lengths and sizes are integers")
    return Shard(lengths=tuple(lengths), sizes=dict(sizes))


def _check_file(path: Path, size: int) -> None:
    """Only regular files of the right size are opened: no links, no pipes."""
    try:
        info = os.lstat(path)
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing: the copy of the replay is incomplete") from error
    if not stat.S_ISREG(info.st_mode):
        raise ValueError(f"{path} is not a regular file: links, pipes and directories are refused")
    if info.st_size != size:
        raise ValueError(f"{path} has {info.st_size} bytes, not {size} as its index says: copy the replay again")


def prepare(directory: Path, shards: int) -> None:
    """Get ready for an append; a directory that cannot be written shows here, before hours are spent on episodes."""
    remove_orphans(directory, shards)
    (directory / PART).touch()


def remove_orphans(directory: Path, shards: int) -> None:
    """Remove what a killed append left: shards that the index does not list, and a new index that never took over."""
    for entry in list(os.scandir(directory)):
        match = _FILE.fullmatch(entry.name)
        if entry.name == PART or (match is not None and int(match[1]) >= shards):
            os.unlink(entry.path)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Let one process at a time append, where the system can; the lock ends with the process."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = f"another process is appending to {directory}; try again when it has finished"
            raise BlockingIOError(errno.EWOULDBLOCK, reason) from error
        except OSError:
            pass  # some network file systems cannot lock
        yield
    finally:
        os.close(descriptor)


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Name the directory that could not be written."""
    try:
        yield
    except OSError as error:
        reason = f"cannot write to {directory}: {error.strerror or error}; what was there before is untouched"
        raise OSError(error.errno or errno.EIO, reason) from error


def _sync(directory: Path) -> None:
    """Make the names in a directory durable."""
    if sys.platform == "win32":
        return  # Windows cannot open a directory to flush it
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
