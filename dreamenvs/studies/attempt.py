"""One attempt at a run: its scripts as subprocesses in its directory, with a log; the same here and on another machine.

Two processes never work in one directory: a lock is handed down to the scripts, so that it is held as long as any of
them lives, whatever becomes of the process that started them.
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal, NamedTuple

from dreamenvs.checkpoints.library import user_directory
from dreamenvs.files.atomic_directory import ArtifactError, parse_json
from dreamenvs.files.atomic_files import write_file

if sys.platform != "win32":
    import fcntl

TETHER = Path(__file__).resolve().parent / "child_process.py"
MAX_RESULTS = 2**26
GRACE = 300.0
"""Seconds that a script has to save and to end."""
TAIL = 20
"""Lines of the log that are kept with an attempt."""
POLL = 0.1


class Task(NamedTuple):
    """What an attempt needs to know; plain values, since it may cross machines."""

    key: str
    place: str
    """The run's directory. Where it is not there, the machine is another one with a disk of its own."""
    work: str
    """Below it, where the scripts leave their results."""
    commands: tuple[tuple[str, ...], ...]
    """Each what Python is given: the path of a script or -m and a module, and the words."""
    threads: int = 1
    seconds: float | None = None


class Attempt(NamedTuple):
    """How it went."""

    outcome: Literal["finished", "failed", "stopped"]
    reason: str = ""
    exit_code: int | None = None
    """Of the last script; a negative one is the signal that ended it."""
    seconds: float = 0.0
    lost: int = 0
    """Attempts before this one of which nothing was heard: somebody killed them, or the power went."""
    host: str = ""
    tail: tuple[str, ...] = ()
    results: bytes | None = None


class Orders:
    """What the scripts are told meanwhile: to end when they have saved, or at once."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.kill = threading.Event()


def attempt(task: Task, orders: Orders) -> Attempt:
    """Run the scripts of a run, or go on where they stopped."""
    begun = time.monotonic()
    place = Path(task.place)
    if not place.is_dir():
        place = user_directory() / "suite" / task.key
        place.mkdir(parents=True, exist_ok=True)
    with _lock(place, orders) as lock:
        if lock is None:
            return Attempt("stopped", host=platform.node())
        lost = _count_begun(place)
        result = _finished(place, place / task.work) or _run_all(task, place, orders, lock)
        (place / "begun").unlink(missing_ok=True)
    seconds = round(time.monotonic() - begun, 2)
    return result._replace(seconds=seconds, lost=lost, host=platform.node(), tail=tail(place / "log.txt"))


def tail(path: Path, lines: int = TAIL) -> tuple[str, ...]:
    """The last lines of a log; of a progress bar, only what it came to."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    shown = (line.rstrip("\r").rpartition("\r")[2][:400] for line in text.split("\n"))
    # A terminal obeys control characters, wherever they come from.
    plain = ("".join(letter if letter.isprintable() else " " for letter in line).rstrip() for line in shown)
    return tuple(line for line in plain if line)[-lines:]


@contextmanager
def _lock(place: Path, orders: Orders) -> Iterator[int | None]:
    """The descriptor of the directory's lock, once nobody else holds it; None if told to stop meanwhile."""
    descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while sys.platform != "win32":
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if orders.stop.wait(POLL):
                yield None
                return
        yield descriptor
    finally:
        os.close(descriptor)


def _count_begun(place: Path) -> int:
    """Note that an attempt begins; how many have that did not end."""
    note = place / "begun"
    try:
        lost = int(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        lost = 0
    write_file(note, str(lost + 1).encode())
    return lost


def _finished(place: Path, work: Path) -> Attempt | None:
    """The results of an attempt that finished, though nobody came to fetch them."""
    try:
        digest = (place / "finished").read_text(encoding="utf-8")
        results = (work / "results.json").read_bytes()
    except OSError:
        return None
    return Attempt("finished", results=results) if hashlib.sha256(results).hexdigest() == digest else None


def _run_all(task: Task, place: Path, orders: Orders, lock: int) -> Attempt:
    deadline = None if task.seconds is None else time.monotonic() + task.seconds
    (place / task.work).mkdir(parents=True, exist_ok=True)
    code = 0
    with (place / "log.txt").open("ab") as log:
        for command in task.commands:
            log.write(f"\n$ python {' '.join(command)}\n".encode())
            log.flush()
            code, late = _run(command, place, log, environment(task.threads), lock, orders, deadline)
            if late:
                return Attempt("failed", f"it took longer than {task.seconds:.0f} seconds", code)
            if orders.stop.is_set() and (code or command is not task.commands[-1]):
                return Attempt("stopped", exit_code=code)
            if code:
                ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return Attempt("failed", f"{_name(command)} {ended}", code)
    try:
        results = _read_results(place / task.work / "results.json")
    except (OSError, ArtifactError) as error:
        return Attempt("stopped" if orders.stop.is_set() else "failed", f"there are no results: {error}", code)
    write_file(place / "finished", hashlib.sha256(results).hexdigest().encode())
    return Attempt("finished", exit_code=code, results=results)


def _name(command: tuple[str, ...]) -> str:
    """What a command runs, for people."""
    return command[1] if command[0] == "-m" else Path(command[0]).name


def _read_results(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_RESULTS + 1)
    if len(data) > MAX_RESULTS:
        raise ArtifactError(f"{path} has more than {MAX_RESULTS} bytes")
    if not isinstance(parse_json(data, str(path)), dict):
        raise ArtifactError(f"{path} holds no object")
    return data


def _run(
    command: tuple[str, ...],
    place: Path,
    log: IO[bytes],
    variables: Mapping[str, str],
    lock: int,
    orders: Orders,
    deadline: float | None,
) -> tuple[int, bool]:
    """The exit code of a script, and whether it took too long."""
    # A session of its own: Ctrl-C in the terminal is for the suite, which passes it on once.
    process = subprocess.Popen(
        [sys.executable, str(TETHER), str(os.getpid()), *command] if os.name == "posix" else [sys.executable, *command],
        cwd=place,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=(lock,) if os.name == "posix" else (),
    )
    asked, late = None, False
    try:
        while True:
            try:
                return process.wait(POLL), late
            except subprocess.TimeoutExpired:
                pass
            except KeyboardInterrupt:  # how Ray cancels a task
                orders.stop.set()
            late = late or (deadline is not None and time.monotonic() > deadline)
            if asked is None and (orders.stop.is_set() or late):
                asked = time.monotonic()
                process.send_signal(signal.SIGINT)
            if orders.kill.is_set() or (asked is not None and time.monotonic() > asked + GRACE):
                _kill(process)
    finally:
        if process.poll() is None:
            _kill(process)
            process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a script and what it started."""
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def environment(threads: int) -> dict[str, str]:
    """Of the scripts: so many threads, whatever library counts them; module paths that hold in another directory."""
    count = str(threads)
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count)
    paths = [os.path.abspath(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    variables |= {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return os.environ | variables
