"""Whatever a dream can be fitted on, as episodes of one world: an id, an environment, a replay, a data set, episodes.

An environment is played at random, or by the scripted player of its world, and kept in a replay on disk meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np

from dreamenvs.data.collect import Policy, collect
from dreamenvs.data.episode import Episode
from dreamenvs.data.minari import episodes_from_minari, spec_from_minari
from dreamenvs.data.replay import Replay
from dreamenvs.evaluation.results import Progress
from dreamenvs.ids import world_name
from dreamenvs.types import ContinuousActions, DiscreteActions, SourceEnv, WorldSpec
from dreamenvs.workflows.collecting import build_policy, default_policy
from dreamenvs.workflows.fitting import FitData
from dreamenvs.worlds.rendered import Pixels, PixelsConfig
from dreamenvs.worlds.source import MODULES, PixelEnv, choose_source, describe, keeps_frames, make_source, plain_actions

Source = str | os.PathLike[str] | gymnasium.Env[Any, Any] | Callable[[], Any] | Replay | Sequence[Episode]


@contextmanager
def open_data(
    source: Source,
    steps: int,
    *,
    seed: int = 0,
    size: int | None = None,
    policy: Policy | None = None,
    progress: Progress | None = None,
) -> Iterator[FitData]:
    """The episodes behind a source; those that are played for it are on disk until the block is left."""
    if isinstance(source, Replay):
        yield FitData.of(source)
    elif isinstance(source, str | os.PathLike) and (Path(source) / "index.json").exists():
        yield FitData.of(Replay.open(source))
    elif isinstance(source, Sequence) and not isinstance(source, str):
        yield FitData(list(source), spec_of(source), [])
    else:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="dreamenvs-")))
            if isinstance(source, str) and not _is_env(source) and "/" in source:
                replay = _copy_dataset(directory / "replay", source)
            else:
                env, spec = _open_env(source, size)
                if not isinstance(source, gymnasium.Env):
                    stack.callback(env.close)
                replay = play_into(directory / "replay", env, spec, steps, seed, policy, progress)
            yield FitData.of(replay)


def _copy_dataset(directory: Path, dataset: str) -> Replay:
    """A replay of a local Minari data set."""
    try:
        replay = Replay.create(directory, spec_from_minari(dataset))
    except (ImportError, FileNotFoundError) as error:
        raise ValueError(f"{dataset} is neither a registered environment nor a data set at hand: {error}") from error
    replay.append(episodes_from_minari(dataset), {"dataset": dataset})
    return replay


def play_into(
    directory: Path,
    env: PixelEnv,
    spec: WorldSpec,
    steps: int,
    seed: int,
    policy: Policy | None,
    progress: Progress | None,
) -> Replay:
    """A new replay of `steps` real steps."""
    if steps < 1:
        raise ValueError(f"steps is the number of real steps to play, at least 1, not {steps}")
    name = type(policy).__name__
    if policy is None:
        env_id = spec.source.id if spec.source is not None else ""
        name = default_policy(env_id)
        policy = build_policy(name, env_id, env.action_space, seed, rows=env)
    replay = Replay.create(directory, spec)
    replay.append(_counted(collect(env, policy, steps, seed), steps, progress), {"policy": name, "seed": seed})
    return replay


def spec_of(episodes: Sequence[Episode], world: str = "Mine") -> WorldSpec:
    """The world that episodes show; actions are as many as occur, and continuous ones lie within what occurs."""
    if not episodes:
        raise ValueError("there are no episodes to fit on")
    height, width, channels = episodes[0].observations.shape[1:]
    taken = np.concatenate([episode.actions for episode in episodes])
    actions: DiscreteActions | ContinuousActions
    if taken.ndim == 1:
        actions = DiscreteActions(count=int(taken.max()) + 1)
    else:
        actions = ContinuousActions(low=tuple(taken.min(0).tolist()), high=tuple(taken.max(0).tolist()))
    return WorldSpec(world=world, observation_shape=(channels, height, width), actions=actions)


def _is_env(env_id: str) -> bool:
    return env_id in gymnasium.registry or env_id == "Crafter" or env_id.partition("/")[0] in MODULES


def _open_env(source: Any, size: int | None) -> tuple[PixelEnv, WorldSpec]:
    """The environment as a world model sees it, and what it is."""
    if isinstance(source, str):
        known = choose_source(source, size=size)
        env = make_source(known)
        return env, describe(env, world=world_name(source), source=known)
    made = isinstance(source, gymnasium.Env)
    own = source if made else source()
    if not isinstance(own, gymnasium.Env):
        raise TypeError(
            f"a dream is fitted on an environment id, an environment, a function that makes one, a replay, a Minari id "
            f"or episodes, not on {source!r:.80}"
        )
    env = plain_actions(own)
    pixels: PixelsConfig | None = None
    if size is not None or not keeps_frames(env.observation_space):
        if env.render_mode != "rgb_array":
            raise ValueError(
                f"observations are {env.observation_space}, not images of at most 96 × 96 whose sides are multiples of "
                "8: make the environment with render_mode='rgb_array', so that its pictures can be used"
            )
        pixels = PixelsConfig() if size is None else PixelsConfig(size=size)
        env = Pixels(env, pixels)
    known_source = _source_of(own, None if made else source, pixels)
    world = world_name(known_source.id if known_source is not None else type(own.unwrapped).__name__)
    return env, describe(env, world=world, source=known_source)


def _source_of(env: Any, make: Callable[[], Any] | None, pixels: PixelsConfig | None) -> SourceEnv | None:
    """How `make_real` finds the environment again, if an id and plain settings are enough for it.

    A function has its id in this process alone; another one registers the environment itself.
    """
    recipe: dict[str, Any] = {} if pixels is None else {"preprocessing": "pixels", "options": vars(pixels)}
    spec = env.spec
    if spec is not None:
        settings = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
        plain = all(isinstance(value, bool | int | float | str | None) for value in settings.values())
        return SourceEnv(id=spec.id, kwargs=settings, **recipe) if plain and not spec.additional_wrappers else None
    if make is None:
        return None
    env_id = re.sub(r"[^A-Za-z0-9]", "", type(env.unwrapped).__name__) + "-v0"
    entry = gymnasium.registry.get(env_id)
    if entry is not None and not getattr(entry.entry_point, "of_a_function", False):
        return None
    gymnasium.registry.pop(env_id, None)
    gymnasium.register(env_id, entry_point=_EntryPoint(make))
    return SourceEnv(id=env_id, **recipe)


class _EntryPoint:
    """A function without arguments, as Gymnasium calls what it registers."""

    of_a_function = True

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __call__(self, **_: Any) -> Any:
        return self.make()


def _counted(episodes: Iterator[Episode], steps: int, progress: Progress | None) -> Iterator[Episode]:
    done = 0
    for episode in episodes:
        done += len(episode)
        if progress is not None:
            progress(min(done, steps), steps)
        yield episode
