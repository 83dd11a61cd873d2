from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from dreamenvs.data.episode import Episode
from dreamenvs.data.storage import load_episodes, load_notes, load_spec, save_episodes
from dreamenvs.types import DiscreteActions, SourceEnv, WorldSpec

SPEC = WorldSpec(
    world="Toy",
    observation_shape=(3, 4, 4),
    actions=DiscreteActions(count=3),
    source=SourceEnv(id="Toy-v0", options={"size": 4, "sharp": True}),
)


def random_episode(steps: int, seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    ends = np.arange(steps) == steps - 1
    return Episode(
        observations=rng.integers(0, 256, (steps + 1, 4, 4, 3)).astype(np.uint8),
        actions=rng.integers(0, 3, steps),
        rewards=rng.normal(size=steps).astype(np.float32),
        terminated=ends,
        truncated=~ends & False,
    )


def test_episodes_come_back_as_they_were(tmp_path: Path) -> None:
    episodes = [random_episode(5, 1), random_episode(2, 2)]
    save_episodes(tmp_path / "toy", iter(episodes), SPEC, {"policy": "random", "seed": 3})
    loaded = load_episodes(tmp_path / "toy")
    assert len(loaded) == 2
    for before, after in zip(episodes, loaded, strict=True):
        for field in fields(Episode):
            np.testing.assert_array_equal(getattr(after, field.name), getattr(before, field.name))
            assert getattr(after, field.name).dtype == getattr(before, field.name).dtype
    assert load_spec(tmp_path / "toy") == SPEC
    assert load_notes(tmp_path / "toy") == {"policy": "random", "seed": 3}


def test_loading_stops_at_the_limit(tmp_path: Path) -> None:
    save_episodes(tmp_path / "toy", (random_episode(5, seed) for seed in range(4)), SPEC)
    assert len(load_episodes(tmp_path / "toy", limit=6)) == 2


def test_an_interrupted_collection_does_not_load(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Episode]:
        yield random_episode(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_episodes(tmp_path / "toy", interrupted(), SPEC)
    with pytest.raises(FileNotFoundError, match="interrupted"):
        load_episodes(tmp_path / "toy")


def test_episodes_are_not_written_over_others(tmp_path: Path) -> None:
    save_episodes(tmp_path, [random_episode(3)], SPEC)
    with pytest.raises(FileExistsError, match="not empty"):
        save_episodes(tmp_path, [random_episode(3)], SPEC)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 2}, "format 2"), ({"episodes": [{"file": "../x.npz", "steps": 3}]}, "outside")],
)
def test_a_wrong_index_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    save_episodes(tmp_path, [random_episode(3)], SPEC)
    index = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps({**index, **change}))
    with pytest.raises(ValueError, match=message):
        load_episodes(tmp_path)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    save_episodes(tmp_path, [random_episode(3)], SPEC)
    arrays = {field.name: np.array([{"a": 1}], dtype=object) for field in fields(Episode)}
    np.savez(tmp_path / "000000.npz", **arrays)
    with pytest.raises(ValueError, match="pickle"):
        load_episodes(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.zeros((3, 4, 4, 3), np.uint8)}, "3 actions need 4 images"),
        ({"rewards": np.zeros(2, np.float32)}, "rewards must have"),
        ({"rewards": np.zeros(3)}, "float64"),
        ({"actions": np.zeros(3, np.float32)}, "1-d float32"),
        ({"terminated": np.array([True, False, False])}, "ends with its last step"),
    ],
)
def test_an_episode_that_does_not_fit_together_is_refused(change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Episode(**{**vars(random_episode(3)), **change})
