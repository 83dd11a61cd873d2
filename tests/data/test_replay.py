from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from dreamenvs.data import replay as replay_module
from dreamenvs.data import replay_storage as storage
from dreamenvs.data.episode import Episode
from dreamenvs.data.replay import Budget, Replay
from dreamenvs.data.segments import sample_segments
from dreamenvs.types import ContinuousActions, DiscreteActions, SourceEnv, WorldSpec

SPEC = WorldSpec(
    world="Toy",
    observation_shape=(3, 4, 5),
    actions=DiscreteActions(count=3),
    source=SourceEnv(id="Toy-v0", options={"size": 4, "sharp": True}),
)


def noise(steps: int, seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    ends = np.arange(steps) == steps - 1
    return Episode(
        observations=rng.integers(0, 256, (steps + 1, 4, 5, 3)).astype(np.uint8),
        actions=rng.integers(0, 3, steps),
        rewards=rng.normal(size=steps).astype(np.float32),
        terminated=ends,
        truncated=~ends & False,
    )


EPISODES = [noise(5, 1), noise(2, 2), noise(7, 3), noise(1, 4)]


def assert_same(before: Episode, after: Episode) -> None:
    for field in fields(Episode):
        np.testing.assert_array_equal(getattr(after, field.name), getattr(before, field.name))
        assert getattr(after, field.name).dtype == getattr(before, field.name).dtype


@pytest.mark.parametrize("shard_bytes", [1, 700, 2**20])
def test_episodes_come_back_as_they_were(shard_bytes: int, tmp_path: Path) -> None:
    replay = Replay.create(tmp_path / "deep" / "toy", SPEC, shard_bytes=shard_bytes)
    replay.append(iter(EPISODES[:3]), {"policy": "random", "seed": 3})
    replay.append(EPISODES[3:])
    for seen in (replay, Replay.open(tmp_path / "deep" / "toy")):
        assert len(seen) == 4
        assert seen.steps == 15
        assert seen.lengths.tolist() == [5, 2, 7, 1]
        assert seen.spec == SPEC
        assert seen.notes == [{"policy": "random", "seed": 3, "episodes": 3, "steps": 14}, {"episodes": 1, "steps": 1}]
        for before, after in zip(EPISODES, seen, strict=True):
            assert_same(before, after)


def test_shards_hold_whole_episodes_and_no_more_than_they_may(tmp_path: Path) -> None:
    size = {episode: sum(array.nbytes for array in vars(episode).values()) for episode in EPISODES}
    limit = size[EPISODES[0]] + size[EPISODES[1]]
    replay = Replay.create(tmp_path, SPEC, shard_bytes=limit)
    replay.append(EPISODES)
    files = sorted(path.name for path in tmp_path.glob("*-rewards.npy"))
    assert files == [f"00000{number}-rewards.npy" for number in range(3)]
    assert [len(np.load(tmp_path / name)) for name in files] == [7, 7, 1]


def test_an_episode_is_a_view_of_the_memory_map(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, SPEC)
    replay.append(EPISODES)
    frames = replay[2].observations
    base = frames
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not frames.flags.writeable
    assert np.shares_memory(frames, replay[2].observations)
    with pytest.raises(ValueError, match="read-only"):
        replay[2].rewards[0] = 1


def test_indices_and_slices_are_those_of_a_list(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, SPEC, shard_bytes=700)
    replay.append(EPISODES)
    assert_same(replay[-1], EPISODES[3])
    assert [len(episode) for episode in replay[1:3]] == [2, 7]
    assert [len(episode) for episode in replay[::-2]] == [1, 2]
    with pytest.raises(IndexError, match="episode 4 of 4"):
        replay[4]


def test_a_subset_stays_on_disk(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, SPEC)
    replay.append(EPISODES)
    subset = replay.subset([2, 0])
    assert subset.lengths.tolist() == [7, 5]
    assert_same(subset[1], EPISODES[0])
    assert [len(episode) for episode in subset[:1]] == [7]
    segment = sample_segments(subset, 20, 3, np.random.default_rng(0))
    expected = sample_segments([EPISODES[2], EPISODES[0]], 20, 3, np.random.default_rng(0))
    assert all((a == b).all() for a, b in zip(segment, expected, strict=True))


def test_few_shards_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "MAX_OPEN", 2)
    replay = Replay.create(tmp_path, SPEC, shard_bytes=1)
    replay.append(EPISODES)
    loaded: list[int] = []
    load_array = storage.load_array

    def counting(directory: Path, number: int, field: str, *rest: object) -> np.ndarray:
        loaded.extend([number] if field == "observations" else [])
        return load_array(directory, number, field, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "load_array", counting)
    assert loaded == []
    for index in (0, 1, 0, 2, 0, 1):
        assert_same(replay[index], EPISODES[index])
    assert loaded == [0, 1, 2, 1]


def test_the_budget_is_what_the_files_take(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, SPEC, shard_bytes=700)
    replay.append(EPISODES)
    budget = replay.budget()
    assert budget.disk_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 15 * 14 < budget.resident_bytes < 5000
    text = str(Budget(312, 61_204, 290 * 2**20, 2**20))
    assert text == "replay: 312 episodes, 61,204 steps, 290 MiB on disk, 1 MiB in memory"


def test_a_failed_append_changes_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Episode]:
        yield from EPISODES
        raise KeyboardInterrupt

    replay = Replay.create(tmp_path, SPEC, shard_bytes=1)
    replay.append(EPISODES[:1])
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        replay.append(interrupted())
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before
    assert len(replay) == 1
    replay.append(EPISODES[1:])
    assert len(Replay.open(tmp_path)) == 4


KILLED = """
import os, signal, sys
from dreamenvs.data import replay_storage as storage
from dreamenvs.data.replay import Replay
replay = Replay.open(sys.argv[1])
def episodes():
    yield from replay[:]
    yield replay[0]
    if sys.argv[2] == "between":
        os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "index":
    part = replay.directory / (storage.INDEX + ".part")
    storage.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL) if part.stat().st_size else None
replay.append(episodes())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("moment", ["between", "index"])
def test_a_killed_append_leaves_the_old_episodes_and_the_next_one_tidies_up(moment: str, tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, SPEC, shard_bytes=1)
    replay.append(EPISODES[:2])
    result = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), moment], timeout=60, check=False)
    assert result.returncode == -signal.SIGKILL
    assert (tmp_path / "000003-rewards.npy").exists()
    assert [len(episode) for episode in Replay.open(tmp_path)] == [5, 2]
    replay = Replay.open(tmp_path)
    replay.append(EPISODES[2:3])
    assert_same(Replay.open(tmp_path)[2], EPISODES[2])
    assert not (tmp_path / "000003-rewards.npy").exists()
    assert not (tmp_path / "index.json.part").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_only_one_can_append_at_a_time(tmp_path: Path) -> None:
    first = Replay.create(tmp_path, SPEC)
    second = Replay.open(tmp_path)

    def nested() -> Iterator[Episode]:
        yield EPISODES[0]
        with pytest.raises(BlockingIOError, match="another process is appending"):
            second.append(EPISODES)

    first.append(nested())
    # The one that was refused sees what the other appended as soon as it appends itself.
    second.append(EPISODES[1:])
    assert second.lengths.tolist() == [5, 2, 7, 1]
    assert len(first) == 1


def test_a_full_disk_is_named_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay.create(tmp_path, SPEC, shard_bytes=1)
    replay.append(EPISODES[:1])
    fsync, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"cannot write to {tmp_path}: No space left.* untouched"):
        replay.append(EPISODES[1:])
    assert [path.name for path in tmp_path.glob("*-rewards.npy")] == ["000000-rewards.npy"]
    assert_same(Replay.open(tmp_path)[0], EPISODES[0])


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"cannot write to {tmp_path}/file/replay"):
        Replay.create(tmp_path / "file" / "replay", SPEC)


def test_a_read_only_directory_is_found_out_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> Iterator[Episode]:
        raise AssertionError("the work began")
        yield

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    replay = Replay.create(tmp_path, SPEC)
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(OSError, match=f"cannot write to {tmp_path}: Read-only"):
        replay.append(never())


def test_errors_of_the_environment_are_not_called_errors_of_the_disk(tmp_path: Path) -> None:
    def broken() -> Iterator[Episode]:
        yield EPISODES[0]
        raise ConnectionResetError("the simulator is gone")

    with pytest.raises(ConnectionResetError, match="simulator"):
        Replay.create(tmp_path, SPEC).append(broken())


def test_a_replay_is_not_created_over_something_else(tmp_path: Path) -> None:
    Replay.create(tmp_path, SPEC)
    with pytest.raises(FileExistsError, match="not empty"):
        Replay.create(tmp_path, SPEC)


def test_a_killed_creation_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "index.json.part").write_text("{")
    Replay.create(tmp_path, SPEC).append(EPISODES)
    assert len(Replay.open(tmp_path)) == 4


def test_one_shard_at_most_is_held_in_memory(tmp_path: Path) -> None:
    alive: weakref.WeakSet[Episode] = weakref.WeakSet()
    most = 0

    def watched() -> Iterator[Episode]:
        nonlocal most
        for seed in range(40):
            episode = noise(5, seed)
            alive.add(episode)
            most = max(most, len(alive))
            yield episode
            del episode

    size = sum(array.nbytes for array in vars(noise(5)).values())
    Replay.create(tmp_path, SPEC, shard_bytes=4 * size).append(watched())
    assert len(list(tmp_path.glob("*-rewards.npy"))) == 10
    assert most <= 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.zeros((4, 5, 4, 3), np.uint8)}, r"observations are \(5, 4, 3\)"),
        ({"actions": np.zeros((3, 2), np.float32)}, r"actions are \(2,\) float32"),
        ({"actions": np.array([0, 3, 1])}, "actions from 0 to 3"),
    ],
)
def test_episodes_of_another_world_are_refused(change: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, SPEC)
    with pytest.raises(ValueError, match=message):
        replay.append([EPISODES[0], Episode(**{**vars(noise(3)), **change})])
    assert len(Replay.open(tmp_path)) == 0


def test_notes_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path) -> None:
    def never() -> Iterator[Episode]:
        raise AssertionError("the work began")
        yield

    replay = Replay.create(tmp_path, SPEC, {"made": "by hand"})
    for notes in ({"path": tmp_path}, {"seeds": [1, 2]}, {"loss": float("nan")}):
        with pytest.raises(ValueError, match="notes"):
            replay.append(never(), notes)  # type: ignore[arg-type]
    assert replay.notes == [{"made": "by hand"}]


def test_continuous_actions(tmp_path: Path) -> None:
    spec = replace(SPEC, actions=ContinuousActions(low=(-1.0, 0.0), high=(1.0, 0.3)))
    actions = np.linspace([-1, 0], [1, 0.3], 6, dtype=np.float32)
    episode = Episode(**{**vars(noise(6)), "actions": actions})
    replay = Replay.create(tmp_path, spec)
    replay.append([episode])
    assert_same(Replay.open(tmp_path)[0], episode)
    for beyond in (0.31, np.nan):
        wrong = actions.copy()
        wrong[4, 1] = beyond
        with pytest.raises(
            ValueError, match=rf"action {beyond} of step 4, dimension 1; those of .* are 0 to 0.3: clip"
        ):
            replay.append([Episode(**{**vars(episode), "actions": wrong})])
    assert len(Replay.open(tmp_path)) == 1


def test_what_was_appended_last_can_be_forgotten(tmp_path: Path) -> None:
    """A run that goes on from an earlier state has no use for what came later."""
    replay = Replay.create(tmp_path, SPEC, {"made": "by hand"})
    kept, lost = [noise(4, seed=1), noise(7, seed=2)], [noise(5, seed=3)]
    replay.append(kept, {"round": 0})
    replay.append(lost, {"round": 1})
    assert replay[2].observations.shape[0] == 6  # its shard is open
    with pytest.raises(ValueError, match="has 3 episodes, and no append ends with number 1"):
        replay.truncate(1)
    replay.truncate(2)
    for seen in (replay, Replay.open(tmp_path)):
        assert seen.lengths.tolist() == [4, 7]
        assert [note.get("round") for note in seen.notes] == [None, 0]
        assert np.array_equal(seen[1].observations, kept[1].observations)
    assert not list(tmp_path.glob("000001-*")), "its files are gone"
    other = noise(3, seed=9)
    replay.append([other])
    assert np.array_equal(replay[2].observations, other.observations), "and not those of before"
    replay.truncate(0)
    assert len(Replay.open(tmp_path)) == 0
    assert Replay.open(tmp_path).notes == [{"made": "by hand"}]
