"""Minari both ways: what is written comes back bit for bit."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from dreamenvs.data.episode import Episode
from dreamenvs.data.minari import episodes_from_minari, spec_from_minari, to_minari
from dreamenvs.data.replay import Replay
from dreamenvs.types import ContinuousActions, DiscreteActions, SourceEnv, WorldSpec

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")

DETAILS = {"author": "somebody", "author_email": "somebody@example.org", "code_permalink": "https://example.org"}
DETAILS |= {"algorithm_name": "random", "description": "noise"}


@pytest.fixture(autouse=True)
def local_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def noise(steps: int, seed: int, *, vectors: bool = False) -> Episode:
    rng = np.random.default_rng(seed)
    return Episode(
        observations=rng.integers(0, 256, (steps + 1, 8, 6, 3)).astype(np.uint8),
        actions=rng.uniform((-1, 0.1), (1, 0.7), (steps, 2)).astype(np.float32)
        if vectors
        else rng.integers(0, 4, steps),
        rewards=rng.normal(size=steps).astype(np.float32),
        terminated=np.arange(steps) == (steps - 1 if seed % 2 else steps),
        truncated=np.arange(steps) == (steps if seed % 2 else steps - 1),
    )


@pytest.mark.parametrize("vectors", [False, True])
def test_a_replay_comes_back_bit_for_bit(vectors: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dreamenvs.data.minari._CHUNK", 2)
    actions = ContinuousActions(low=(-1.0, 0.1), high=(1.0, 0.7)) if vectors else DiscreteActions(count=4)
    source = SourceEnv(id="Toy-v0", preprocessing="pixels", options={"size": 8})
    spec = WorldSpec(world="Toy", observation_shape=(3, 8, 6), actions=actions, source=source)
    replay = Replay.create(tmp_path / "replay", spec)
    replay.append(noise(3 + seed, seed, vectors=vectors) for seed in range(5))
    to_minari(replay, "toy/noise-v0", **DETAILS)
    assert spec_from_minari("toy/noise-v0") == spec
    episodes = list(episodes_from_minari("toy/noise-v0"))
    assert len(episodes) == 5
    for before, after in zip(replay, episodes, strict=True):
        for field in fields(Episode):
            ours, theirs = getattr(before, field.name), getattr(after, field.name)
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    again = Replay.create(tmp_path / "again", spec_from_minari("toy/noise-v0"))
    again.append(episodes_from_minari("toy/noise-v0"))
    assert again.steps == replay.steps


def make_dataset(name: str, observations: Any, space: gymnasium.Space[Any], actions: Any, action_space: Any) -> Any:
    from minari.data_collector import EpisodeBuffer

    steps = len(actions)
    flags = [index == steps - 1 for index in range(steps)]
    buffer = EpisodeBuffer(
        observations=observations,
        actions=actions,
        rewards=[1.5] * steps,
        terminations=flags,
        truncations=[False] * steps,
    )
    return minari.create_dataset_from_buffers(
        name, [buffer], observation_space=space, action_space=action_space, jpeg_encoding=False, **DETAILS
    )


IMAGES = gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8)
FRAMES = np.random.default_rng(0).integers(0, 256, (4, 4, 5, 3)).astype(np.uint8)


def test_images_under_a_key_of_a_dict() -> None:
    space = gymnasium.spaces.Dict({"image": IMAGES, "speed": gymnasium.spaces.Box(-1, 1, (2,))})
    observations = {"image": FRAMES, "speed": np.zeros((4, 2), np.float32)}
    actions, action_space = np.array([5, 7, 6]), gymnasium.spaces.Discrete(3, start=5)
    dataset = make_dataset("cars/noise-v3", observations, space, actions, action_space)
    with pytest.raises(ValueError, match=r"H × W × C uint8 images.*image_key"):
        next(episodes_from_minari(dataset))
    with pytest.raises(ValueError, match="no observations under 'picture'"):
        spec_from_minari(dataset, image_key="picture")
    (episode,) = episodes_from_minari(dataset, image_key="image")
    np.testing.assert_array_equal(episode.observations, FRAMES)
    assert episode.actions.tolist() == [0, 2, 1]
    spec = spec_from_minari(dataset, image_key="image")
    expected = WorldSpec(world="carsnoise", observation_shape=(3, 4, 5), actions=DiscreteActions(count=3))
    assert spec == expected
    assert spec_from_minari(dataset, world="Cars", image_key="image").world == "Cars"


def test_what_is_no_image_or_no_known_action_is_refused() -> None:
    vectors = gymnasium.spaces.Box(-1, 1, (2,))
    zeros = np.zeros((4, 2), np.float32)
    dataset = make_dataset("toy/vectors-v0", zeros, vectors, np.zeros(3, int), gymnasium.spaces.Discrete(2))
    with pytest.raises(ValueError, match="H × W × C uint8 images, not Box"):
        spec_from_minari(dataset)
    many = gymnasium.spaces.MultiDiscrete([2, 2])
    dataset = make_dataset("toy/many-v0", FRAMES, IMAGES, np.zeros((3, 2), int), many)
    with pytest.raises(ValueError, match="actions must be Discrete"):
        next(episodes_from_minari(dataset))


def test_actions_beyond_their_bounds_are_put_on_them(tmp_path: Path) -> None:
    taken = np.array([[0.5], [-1.25], [1.0 + 1e-6]])
    dataset = make_dataset("toy/wild-v0", FRAMES, IMAGES, taken, gymnasium.spaces.Box(-1, 1, (1,), np.float64))
    (episode,) = episodes_from_minari(dataset)
    np.testing.assert_array_equal(episode.actions, np.float32([[0.5], [-1], [1]]))
    Replay.create(tmp_path / "replay", spec_from_minari(dataset)).append([episode])


def test_the_source_is_a_registered_id_or_nothing() -> None:
    dataset = make_dataset("toy/known-v0", FRAMES, IMAGES, np.zeros(3, int), gymnasium.spaces.Discrete(2))
    assert spec_from_minari(dataset).source is None
    dataset._env_spec = gymnasium.spec("CartPole-v1")
    assert spec_from_minari(dataset).source == SourceEnv(id="CartPole-v1")
    dataset._env_spec = gymnasium.envs.registration.EnvSpec("Nobody/Knows-v7", entry_point="os:system")
    assert spec_from_minari(dataset).source is None


def test_nothing_that_a_file_names_is_built(tmp_path: Path) -> None:
    make_dataset("toy/plain-v0", FRAMES, IMAGES, np.zeros(3, int), gymnasium.spaces.Discrete(2))
    path = tmp_path / "minari" / "toy" / "plain-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["observation_space"]
    path.write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="does not state its spaces"):
        spec_from_minari("toy/plain-v0")


def test_a_missing_data_set_is_not_downloaded() -> None:
    with pytest.raises(FileNotFoundError, match="minari download nobody/nothing-v0"):
        next(episodes_from_minari("nobody/nothing-v0"))
