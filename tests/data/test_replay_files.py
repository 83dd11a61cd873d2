"""Replays whose files are wrong, missing or somebody else's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dreamenvs.data import replay_storage as storage
from dreamenvs.data.replay import Replay
from tests.data.test_replay import SPEC, noise


def change_index(directory: Path, **changes: object) -> None:
    index = json.loads((directory / "index.json").read_text())
    (directory / "index.json").write_text(json.dumps({**index, **changes}))


def shard(lengths: list[object]) -> dict[str, object]:
    return {"lengths": lengths, "sizes": dict.fromkeys(storage.FIELDS, 200)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 1}, "format 1; this version reads 2.*collect the episodes again"),
        ({"format": 3}, "format 3"),
        ({"spec": {"world": "Toy"}}, "no valid index: spec"),
        ({"shards": [shard([3.5])]}, "no valid index.*integers"),
        ({"shards": [shard([3, 0])]}, "no valid index.*at least one step"),
        ({"shards": [{"lengths": [3], "sizes": {"../../etc/passwd": 3}}]}, "no valid index"),
        ({"shards": [{"lengths": [3]}]}, "'sizes' is missing"),
        ({"shards": [7]}, "lists of objects"),
        ({"notes": [{"policy": {}}]}, "no valid index: notes"),
        ({"shard_bytes": "many"}, "shard_bytes"),
        ({"shards": [shard([3]), shard([3])]}, "000000-observations.npy has"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    Replay.create(tmp_path, SPEC).append([noise(3)])
    change_index(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        Replay.open(tmp_path)


def test_missing_cut_and_linked_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="collect one"):
        Replay.open(tmp_path / "nothing")
    Replay.create(tmp_path, SPEC).append([noise(3)])
    path = tmp_path / "000000-actions.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(ValueError, match="bytes, not"):
        Replay.open(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="missing"):
        Replay.open(tmp_path)
    (tmp_path / "elsewhere").write_bytes(data)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="not a regular file"):
        Replay.open(tmp_path)


def test_arrays_that_differ_from_the_index_and_pickles_are_refused(tmp_path: Path) -> None:
    Replay.create(tmp_path, SPEC).append([noise(3)])
    index = json.loads((tmp_path / "index.json").read_text())
    path = tmp_path / "000000-rewards.npy"
    for array, message in ((np.zeros(3, np.int32), "holds .* int32"), (np.array([{}], object), "allow_pickle")):
        np.save(path, array)
        index["shards"][0]["sizes"]["rewards"] = path.stat().st_size
        (tmp_path / "index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match=message):
            Replay.open(tmp_path)[0]
