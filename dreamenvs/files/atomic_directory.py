"""A directory of files that is complete or absent: written aside, made durable, swapped in by renaming.

The manifest finds damage, not malice: whoever can write the files can write it too. Hence every size is bounded, only
regular files with expected names are opened, and nothing that is read is executed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

if sys.platform != "win32":
    import fcntl

MANIFEST = "manifest.json"
FORMAT = 1
MAX_JSON = 2**20
_ATTEMPTS = 8
_REMEDY = "the copy is incomplete or damaged, so copy or download it again"


class ArtifactError(Exception):
    """A directory that is missing, damaged or not what it claims to be; the message names the file."""


class _Place(NamedTuple):
    """A directory at one moment: saving changes at least one of these."""

    path: Path
    device: int
    inode: int
    modified: int


def write_artifact(path: str | os.PathLike[str], files: Mapping[str, bytes]) -> Path:
    """Write or replace the directory; killed at any moment, `read_artifact` finds the old files or all the new ones."""
    target = Path(os.path.realpath(path))
    entries = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}
    contents = {**files, MANIFEST: dump_json({"format": FORMAT, "files": entries})}
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent):
            _tidy(target)
            _check_replaceable(target, contents)
            try:
                _write(temporary, contents)
                _swap(temporary, target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        reason = f"cannot save {target}: {error.strerror or error}; what was there before is untouched"
        raise OSError(error.errno or errno.EIO, reason) from error
    return target


def is_artifact(path: str | os.PathLike[str]) -> bool:
    """Whether a directory looks like one; whether it is a sound one is for `read_artifact` to say."""
    with suppress(ArtifactError):
        place = _find(Path(os.path.realpath(path)))
        return place is not None and (place.path / MANIFEST).is_file()
    return False


def read_artifact(
    path: str | os.PathLike[str], limits: Mapping[str, int], names: Iterable[str] | None = None
) -> dict[str, bytes]:
    """The verified bytes of all files, or of `names`; the directory holds those in `limits`, each at most so large."""
    target = Path(os.path.realpath(path))
    for attempt in range(_ATTEMPTS):
        place = _find(target)
        if place is None:
            raise ArtifactError(f"{target} does not exist")
        try:
            return _read(place.path, limits, tuple(limits if names is None else names))
        except ArtifactError:
            # A save that replaced the directory meanwhile is no damage: read the new one.
            if attempt + 1 == _ATTEMPTS or _find(target) == place:
                raise
    raise AssertionError("the last attempt returns or raises")


def dump_json(value: object) -> bytes:
    """JSON text that `parse_json` and people can read."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def parse_json(data: bytes, name: str) -> Any:
    """Strict JSON: no NaN, no infinity, no duplicate keys; `name` is what messages call the file."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ArtifactError(f"{name} is no valid JSON: {reason}") from error


def check_format(value: object, name: str, newest: int = FORMAT) -> None:
    """Refuse a file that a later format version than `newest` wrote, or none."""
    found = value.get("format") if isinstance(value, dict) else None
    if type(found) is not int or found < 1:
        raise ArtifactError(f"{name} has no format version: it was not written by dreamenvs")
    if found > newest:
        raise ArtifactError(f"{name} has format {found}, this version reads up to {newest}: upgrade dreamenvs")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one process at a time save in a directory, where the system can; the lock ends with the process."""
    if sys.platform == "win32":
        yield
    else:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            # Some network file systems cannot lock; saving there is still atomic for readers.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def _tidy(target: Path) -> None:
    """Finish what a killed save left: put the old directory back if nothing took its place, remove the rest."""
    aside = _aside(target)
    if aside.exists():
        # Renaming before removing: what bears the aside name is always complete.
        leftover = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        os.rename(aside, leftover if target.exists() else target)
    stale = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.tmp")
    for entry in list(os.scandir(target.parent)):
        if stale.fullmatch(entry.name):
            shutil.rmtree(entry.path, ignore_errors=True)


def _check_replaceable(target: Path, names: Mapping[str, bytes]) -> None:
    """Replacing deletes, so refuse a directory that holds anything else than an artifact."""
    if not target.exists():
        return
    entries = list(os.scandir(target))
    # Hidden files are what file browsers leave behind; a hidden directory may be somebody's repository.
    foreign = [e.name for e in entries if e.name not in names and (not e.name.startswith(".") or e.is_dir())]
    if foreign:
        raise FileExistsError(errno.EEXIST, f"it holds {foreign[0]!r}, which would be lost")
    if entries and not (target / MANIFEST).exists():
        raise FileExistsError(errno.EEXIST, f"it holds files but no {MANIFEST}, and they would be lost")


def _write(directory: Path, contents: Mapping[str, bytes]) -> None:
    os.mkdir(directory)
    for name, data in contents.items():
        with open(directory / name, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    _sync(directory)


def _swap(temporary: Path, target: Path) -> None:
    """Put `temporary` in the place of `target`, which ends as `temporary`; a failure puts everything back."""
    aside = _aside(target)
    replaces = target.exists()
    if replaces:
        os.rename(target, aside)
    try:
        os.rename(temporary, target)
        _sync(target.parent)
    except BaseException:
        with suppress(OSError):  # if this fails too, readers and the next save find the old directory aside
            if target.exists():
                os.rename(target, temporary)
            if replaces:
                os.rename(aside, target)
        raise
    if replaces:
        with suppress(OSError):  # the new directory stands; the next save removes the old one
            os.rename(aside, temporary)


def _sync(directory: Path) -> None:
    if sys.platform == "win32":
        return  # Windows cannot open a directory to flush it
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _find(target: Path) -> _Place | None:
    # The target twice: a save may have ended between looking for it and looking aside.
    for path in (target, _aside(target), target):
        try:
            info = os.stat(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path} cannot be read: {error}") from error
        return _Place(path, info.st_dev, info.st_ino, info.st_mtime_ns)
    return None


def _read(directory: Path, limits: Mapping[str, int], names: tuple[str, ...]) -> dict[str, bytes]:
    try:
        present = sorted(os.listdir(directory))
        foreign = [name for name in present if name not in limits and name != MANIFEST and not name.startswith(".")]
        if foreign:
            raise ArtifactError(f"{directory / foreign[0]} does not belong there: remove it")
        manifest = parse_json(_read_file(directory / MANIFEST, MAX_JSON), str(directory / MANIFEST))
        entries = _check_manifest(manifest, directory / MANIFEST, limits)
        return {name: _read_verified(directory / name, entries[name]) for name in names}
    except OSError as error:
        raise ArtifactError(f"{error.filename or directory} cannot be read: {error.strerror or error}") from error


def _check_manifest(manifest: object, path: Path, limits: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    check_format(manifest, str(path))
    entries = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(entries, dict) or set(entries) != set(limits):
        raise ArtifactError(f"{path} must list exactly the files {', '.join(limits)}")
    for name, entry in entries.items():
        if not isinstance(entry, dict) or set(entry) != {"sha256", "bytes"} or type(entry["bytes"]) is not int:
            raise ArtifactError(f"{path} must give a sha256 and the bytes of {name}")
        if not 0 <= entry["bytes"] <= limits[name]:
            raise ArtifactError(f"{path.parent / name} may have {limits[name]} bytes at most")
    return entries


def _read_verified(path: Path, entry: dict[str, Any]) -> bytes:
    data = _read_file(path, entry["bytes"])
    if len(data) != entry["bytes"]:
        raise ArtifactError(f"{path} has {len(data)} bytes instead of {entry['bytes']}: {_REMEDY}")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ArtifactError(f"{path} differs from its SHA-256 in {MANIFEST}: {_REMEDY}")
    return data


def _read_file(path: Path, limit: int) -> bytes:
    # Looked at before it is opened, since opening a device or a pipe has effects, and again after: it may have changed.
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ArtifactError(f"{path} is not a regular file: links, pipes and directories are refused")
    with open(path, "rb", opener=_open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ArtifactError(f"{path} has {size} bytes, {limit} were expected at most: {_REMEDY}")
        return file.read(size)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor
