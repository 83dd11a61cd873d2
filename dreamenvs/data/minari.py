"""Minari data sets as episodes, and a replay as a Minari data set. The only module that imports minari.

Minari compresses images with JPEG unless it is told not to; what is written here is stored as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dreamenvs.config import from_json, to_json
from dreamenvs.data.episode import Episode
from dreamenvs.data.replay import Replay
from dreamenvs.types import ContinuousActions, DiscreteActions, SourceEnv, WorldSpec

if TYPE_CHECKING:
    from minari import MinariDataset

SPEC_KEY = "dreamenvs_spec"
"""Where a data set's metadata keep the whole spec, which Minari's own fields cannot hold."""
_CHUNK = 64  # episodes that are handed to Minari at once


def episodes_from_minari(dataset: MinariDataset | str, *, image_key: str | None = None) -> Iterator[Episode]:
    """The episodes of a data set, or of the local one with this id, one after the other.

    Observations are H × W × C uint8 images, or `image_key` names those among the entries of a Dict. Continuous actions
    beyond their bounds, which some data sets have, are put on them, as simulators do.
    """
    opened = _open(dataset)
    _image_space(opened, image_key)
    actions = _actions(opened)
    start = int(opened.action_space.start) if isinstance(actions, DiscreteActions) else 0
    for data in opened.iterate_episodes():
        observations = data.observations if image_key is None else data.observations[image_key]
        taken: NDArray[Any] = np.asarray(data.actions)
        yield Episode(
            observations=np.asarray(observations),
            actions=taken.astype(np.int64) - start if isinstance(actions, DiscreteActions) else _inside(taken, actions),
            rewards=np.asarray(data.rewards, np.float32),
            terminated=np.asarray(data.terminations, bool),
            truncated=np.asarray(data.truncations, bool),
        )


def spec_from_minari(
    dataset: MinariDataset | str, *, world: str | None = None, image_key: str | None = None
) -> WorldSpec:
    """The world of a data set; `world` is its name in dream ids, by default made from the data set's id."""
    opened = _open(dataset)
    kept = opened.storage.metadata.get(SPEC_KEY)
    if kept is not None and world is None and image_key is None:
        return from_json(WorldSpec, json.loads(kept), SPEC_KEY)
    height, width, channels = _image_space(opened, image_key).shape
    return WorldSpec(
        world=world or re.sub(r"-v\d+$|[^A-Za-z0-9]", "", opened.spec.dataset_id),
        observation_shape=(channels, height, width),
        actions=_actions(opened),
        source=_source(opened) if image_key is None else None,
    )


def to_minari(replay: Replay, dataset_id: str, **details: Any) -> MinariDataset:
    """Write a replay as the local data set `dataset_id`, such as `pong/random-v0`, bit for bit.

    `details` are further arguments of `minari.create_dataset_from_buffers`, such as `author` and `description`.
    """
    minari = _minari()
    from minari.data_collector import EpisodeBuffer

    if not len(replay):
        raise ValueError(f"{replay.directory} has no episodes to write")

    def buffers(first: int) -> list[Any]:
        return [
            EpisodeBuffer(
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=episode.terminated,
                truncations=episode.truncated,
            )
            for episode in replay[first : first + _CHUNK]
        ]

    spaces = {"observation_space": _frame_space(replay.spec), "action_space": _action_space(replay.spec)}
    dataset = minari.create_dataset_from_buffers(dataset_id, buffers(0), **spaces, jpeg_encoding=False, **details)
    for first in range(_CHUNK, len(replay), _CHUNK):
        dataset.update_dataset_from_buffer(buffers(first))
    dataset.storage.update_metadata({SPEC_KEY: json.dumps(to_json(replay.spec))})
    return dataset


def _minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise ImportError('Minari data sets need an extra: pip install "dreamenvs[minari]"') from error
    return minari


def _open(dataset: MinariDataset | str) -> Any:
    minari = _minari()
    if not isinstance(dataset, str):
        return dataset
    from minari.dataset.minari_storage import MinariStorage
    from minari.storage import get_dataset_path

    path = get_dataset_path(dataset) / "data"
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist; download the data set first: minari download {dataset}")
    # Without its spaces Minari would build the environment that the file names, and so run code that it names.
    if not {"observation_space", "action_space"} <= set(MinariStorage.read_raw_metadata(path)):
        raise ValueError(f"the data set {dataset} does not state its spaces; open it with minari and pass that instead")
    return minari.load_dataset(dataset)


def _image_space(dataset: Any, key: str | None) -> gymnasium.spaces.Box:
    space = dataset.observation_space
    if key is not None:
        if not isinstance(space, gymnasium.spaces.Dict) or key not in space.spaces:
            raise ValueError(f"{dataset.spec.dataset_id} has no observations under {key!r}; they are {space}")
        space = space.spaces[key]
    if isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3:
        return space
    hint = (
        "name the entry with the images: image_key" if isinstance(space, gymnasium.spaces.Dict) else "draw them first"
    )
    raise ValueError(f"{dataset.spec.dataset_id}: observations must be H × W × C uint8 images, not {space}; {hint}")


def _actions(dataset: Any) -> DiscreteActions | ContinuousActions:
    space = dataset.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return DiscreteActions(count=int(space.n))
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        return ContinuousActions(low=tuple(low.tolist()), high=tuple(high.tolist()))
    raise ValueError(f"{dataset.spec.dataset_id}: actions must be Discrete or a one-dimensional Box, not {space}")


def _inside(actions: NDArray[Any], kind: ContinuousActions) -> NDArray[np.float32]:
    low, high = np.array(kind.low, np.float32), np.array(kind.high, np.float32)
    clipped: NDArray[np.float32] = np.clip(actions.astype(np.float32), low, high)
    return clipped


def _source(dataset: Any) -> SourceEnv | None:
    """The environment that made the data, if an id and plain settings are enough to build it."""
    spec = dataset.spec.env_spec
    if spec is None or spec.id not in gymnasium.registry or spec.additional_wrappers:
        return None
    if not all(isinstance(value, bool | int | float | str | None) for value in spec.kwargs.values()):
        return None
    return SourceEnv(id=spec.id, kwargs=dict(spec.kwargs))


def _frame_space(spec: WorldSpec) -> gymnasium.spaces.Box:
    channels, height, width = spec.observation_shape
    return gymnasium.spaces.Box(0, 255, (height, width, channels), np.uint8)


def _action_space(spec: WorldSpec) -> gymnasium.Space[Any]:
    if isinstance(spec.actions, DiscreteActions):
        return gymnasium.spaces.Discrete(spec.actions.count)
    return gymnasium.spaces.Box(np.array(spec.actions.low, np.float32), np.array(spec.actions.high, np.float32))
