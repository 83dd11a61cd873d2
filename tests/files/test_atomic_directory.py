"""An artifact is the old one or the new one, whatever happens while it is written, read or copied."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dreamenvs.files import atomic_directory
from dreamenvs.files.atomic_directory import (
    ArtifactError,
    dump_json,
    is_artifact,
    parse_json,
    read_artifact,
    write_artifact,
)

LIMITS = {"a.bin": 1000, "b.bin": 1000}
OLD = {"a.bin": b"old a", "b.bin": b"old b"}
NEW = {"a.bin": b"new a, longer", "b.bin": b""}
CALLS = ("mkdir", "rename", "fsync", "unlink", "rmdir", "close", "scandir")


def leftovers(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir() if entry.name != path.name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dream"


def test_round_trip_and_replacement(path: Path) -> None:
    assert not is_artifact(path)
    assert write_artifact(path, OLD) == path.resolve()
    assert is_artifact(path)
    assert read_artifact(path, LIMITS) == OLD
    write_artifact(path, NEW)
    assert read_artifact(path, LIMITS) == NEW
    assert read_artifact(path, LIMITS, ["b.bin"]) == {"b.bin": b""}
    assert leftovers(path) == []


def interrupt(monkeypatch: pytest.MonkeyPatch, name: str, at: int, action: Callable[[], None]) -> list[int]:
    """Run `action` instead of the call number `at` of `os.<name>`; the list counts the calls."""
    original: Any = getattr(os, name)
    count = [0]

    def replacement(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == at:
            action()
        return original(*args, **kwargs)

    monkeypatch.setattr(os, name, replacement)
    return count


def save_in_child(path: Path, name: str, at: int) -> bool:
    """Save in a forked process that kills itself at one system call; whether it was killed."""
    child = os.fork()
    if child == 0:
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch, name, at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            write_artifact(path, NEW)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("replaces", [True, False])
def test_killed_at_any_moment(path: Path, name: str, replaces: bool) -> None:
    for at in range(1, 60):
        if replaces:
            write_artifact(path, OLD)
        else:
            shutil.rmtree(path, ignore_errors=True)
        killed = save_in_child(path, name, at)
        if replaces or is_artifact(path):
            assert read_artifact(path, LIMITS) in (OLD, NEW)
        if not killed:
            break
        # The next save starts from whatever the killed one left, and leaves nothing of it.
        write_artifact(path, NEW)
        assert read_artifact(path, LIMITS) == NEW
        assert leftovers(path) == []
    assert not killed
    assert at > 1 or name in ("unlink", "rmdir")


def test_killed_between_the_renames_the_old_one_is_found_aside(path: Path) -> None:
    write_artifact(path, OLD)
    assert save_in_child(path, "rename", 2)
    assert not path.exists()
    assert is_artifact(path)
    assert read_artifact(path, LIMITS) == OLD


def test_a_save_that_fails_after_a_killed_one_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_artifact(path, OLD)
    assert save_in_child(path, "rename", 2)

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            write_artifact(path, NEW)
    assert read_artifact(path, LIMITS) == OLD
    assert leftovers(path) == []


def test_everything_is_durable_before_it_is_renamed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_artifact(path, OLD)
    events: list[Any] = []
    sync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append(os.fstat(descriptor).st_ino), sync(descriptor)))
    monkeypatch.setattr(os, "rename", lambda *names: (events.append("rename"), rename(*names)))
    write_artifact(path, NEW)
    inodes = {file.stat().st_ino for file in (path, *path.iterdir())}
    assert set(events[: events.index("rename")]) == inodes
    assert events[events.index("rename") :] == ["rename", "rename", path.parent.stat().st_ino, "rename"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("name", ["mkdir", "rename", "fsync"])
def test_a_failed_save_raises_and_changes_nothing(
    path: Path, name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(code, os.strerror(code))

    write_artifact(path, OLD)
    with monkeypatch.context() as patch:
        calls = interrupt(patch, name, -1, fail)
        write_artifact(path, OLD)
    # The first mkdir is the parent's, which exists; the last rename clears away the old directory after success.
    for at in range(1 + (name == "mkdir"), calls[0] + (name != "rename")):
        with monkeypatch.context() as patch:
            interrupt(patch, name, at, fail)
            with pytest.raises(OSError, match=r"cannot save .*dream: .*; what was there") as caught:
                write_artifact(path, NEW)
        assert caught.value.errno == code
        assert read_artifact(path, LIMITS) == OLD
        assert leftovers(path) == []


def test_a_full_disk_while_a_file_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_artifact(path, OLD)
    original = open

    class Full:
        def __init__(self, *args: Any) -> None:
            self.file = original(*args)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *args: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(atomic_directory, "open", Full, raising=False)
        with pytest.raises(OSError, match="No space left") as caught:
            write_artifact(path, NEW)
    assert caught.value.errno == errno.ENOSPC
    assert read_artifact(path, LIMITS) == OLD
    assert leftovers(path) == []


def test_a_reader_beside_a_writer_never_sees_half(path: Path) -> None:
    write_artifact(path, OLD)
    stop = threading.Event()

    def save_again_and_again() -> None:
        while not stop.is_set():
            write_artifact(path, NEW)
            write_artifact(path, OLD)

    writer = threading.Thread(target=save_again_and_again)
    writer.start()
    try:
        seen = {read_artifact(path, LIMITS)["a.bin"] for _ in range(200)}
    finally:
        stop.set()
        writer.join()
    assert seen <= {OLD["a.bin"], NEW["a.bin"]}


def test_two_writers_do_not_remove_each_others_files(path: Path) -> None:
    errors: list[BaseException] = []

    def save(files: dict[str, bytes]) -> None:
        try:
            for _ in range(10):
                write_artifact(path, files)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=save, args=(files,)) for files in (OLD, NEW)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert errors == []
    assert read_artifact(path, LIMITS) in (OLD, NEW)
    assert leftovers(path) == []


@pytest.mark.parametrize(
    "names", [["notes.txt"], ["manifest.json", "notes.txt"], ["a.bin"], ["manifest.json", ".git/x"]]
)
def test_foreign_directories_are_not_replaced(path: Path, names: list[str]) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    with pytest.raises(FileExistsError, match="would be lost"):
        write_artifact(path, NEW)
    assert all((path / name).read_text() == "mine" for name in names)


def test_neighbours_are_left_alone(tmp_path: Path) -> None:
    neighbours = [".a.b.0123456789abcdef.tmp", ".a.old.txt", "a.tmp", ".a.xyz.tmp"]
    for name in neighbours:
        (tmp_path / name).mkdir()
    (tmp_path / ".a.0123456789abcdef.tmp").mkdir()
    write_artifact(tmp_path / "a", NEW)
    assert leftovers(tmp_path / "a") == sorted(neighbours)


def test_saving_through_a_link_replaces_what_it_points_to(tmp_path: Path) -> None:
    write_artifact(tmp_path / "step_1", OLD)
    (tmp_path / "latest").symlink_to("step_1")
    write_artifact(tmp_path / "latest", NEW)
    assert (tmp_path / "latest").is_symlink()
    assert read_artifact(tmp_path / "step_1", LIMITS) == NEW


def edit_manifest(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = parse_json((path / "manifest.json").read_bytes(), "manifest")
    edit(manifest)
    (path / "manifest.json").write_bytes(dump_json(manifest))


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda m: m.update(format=2), "upgrade dreamenvs"),
        (lambda m: m.update(format=True), "no format version"),
        (lambda m: m.pop("format"), "no format version"),
        (lambda m: m.pop("files"), "exactly the files a.bin, b.bin"),
        (lambda m: m["files"].update({"../../secret": m["files"]["a.bin"]}), "exactly the files"),
        (lambda m: m["files"].pop("a.bin"), "exactly the files"),
        (lambda m: m["files"]["a.bin"].update(bytes=10**12), "a.bin may have 1000 bytes at most"),
        (lambda m: m["files"]["a.bin"].update(bytes=-1), "a.bin may have"),
        (lambda m: m["files"]["a.bin"].update(bytes=4), "a.bin has 5 bytes, 4 were expected at most"),
        (lambda m: m["files"]["a.bin"].update(bytes=6), "a.bin has 5 bytes instead of 6"),
        (lambda m: m["files"]["a.bin"].update(bytes=5.0), "sha256 and the bytes of a.bin"),
        (lambda m: m["files"]["a.bin"].update(sha256="0" * 64), "differs from its SHA-256"),
        (lambda m: m["files"]["a.bin"].update(sha256=None), "differs from its SHA-256"),
    ],
)
def test_manifest_refusals(path: Path, edit: Callable[[dict[str, Any]], object], sentence: str) -> None:
    write_artifact(path, OLD)
    edit_manifest(path, edit)
    with pytest.raises(ArtifactError, match=sentence):
        read_artifact(path, LIMITS)


def link(file: Path, to: str) -> None:
    file.unlink()
    file.symlink_to(to)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda p: link(p / "a.bin", "/etc/hostname"), "not a regular file"),
        (lambda p: link(p / "a.bin", "b.bin"), "not a regular file"),
        (lambda p: link(p / "manifest.json", "/dev/zero"), "not a regular file"),
        (lambda p: pipe(p / "a.bin"), "not a regular file"),
        (lambda p: folder(p / "a.bin"), "not a regular file"),
        (lambda p: (p / "a.bin").unlink(), "a.bin cannot be read: No such file"),
        (lambda p: (p / "manifest.json").unlink(), "manifest.json cannot be read: No such file"),
        (lambda p: (p / "extra.py").write_text("x"), "extra.py does not belong there"),
        (lambda p: (p / "manifest.json").write_bytes(b"[" * 10**6), "no valid JSON: it is nested too deeply"),
        (lambda p: (p / "manifest.json").write_bytes(b" " * (2**20 + 1)), "expected at most"),
        (shutil.rmtree, "does not exist"),
        (lambda p: (shutil.rmtree(p), p.write_text("x")), "cannot be read: Not a directory"),
    ],
)
def test_damaged_directories(path: Path, damage: Callable[[Path], object], sentence: str) -> None:
    write_artifact(path, OLD)
    damage(path)
    with pytest.raises(ArtifactError, match=sentence):
        read_artifact(path, LIMITS)


def test_hidden_files_of_a_file_browser_are_ignored(path: Path) -> None:
    write_artifact(path, OLD)
    (path / ".DS_Store").write_text("x")
    assert read_artifact(path, LIMITS) == OLD
    write_artifact(path, NEW)
    assert read_artifact(path, LIMITS) == NEW


def test_an_unreadable_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_artifact(path, OLD)

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(ArtifactError, match="cannot be read: Permission denied"):
        read_artifact(path, LIMITS)


@pytest.mark.parametrize(
    "text",
    ["", "{", "NaN", "[1, Infinity]", "1e999", '{"a": 1, "a": 2}', "1" * 5000, "\\", "[1] 2", "'a'", "\ufeff{}"],
)
def test_json_refusals(text: str) -> None:
    with pytest.raises(ArtifactError, match=r"x\.json is no valid JSON") as caught:
        parse_json(text.encode(), "x.json")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_deep_json(opening: str) -> None:
    with pytest.raises(ArtifactError, match="nested too deeply"):
        parse_json((opening * 10**5).encode(), "x.json")


def test_json_must_be_utf8() -> None:
    with pytest.raises(ArtifactError, match="no valid JSON"):
        parse_json(b'"\xff"', "x.json")
