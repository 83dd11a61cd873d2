"""Files that are complete or absent, even after a power cut."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write or replace a file: aside, made durable, then renamed."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, beginning a new one where a power cut left half of one."""
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def sync(directory: Path) -> None:
    """Make what was renamed in a directory durable."""
    if sys.platform == "win32":
        return  # Windows cannot open a directory to flush it
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
