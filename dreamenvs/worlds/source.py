"""The real environments behind dreams, built from a `SourceEnv` with the preprocessing that its data was made with.

A SourceEnv may come from a stranger's checkpoint: its id is looked up and never imported, its values are scalars.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from dreamenvs.types import ContinuousActions, DiscreteActions, Scalar, SourceEnv, WorldSpec
from dreamenvs.worlds.atari import AtariConfig, AtariProtocol
from dreamenvs.worlds.crafter import CrafterConfig, CrafterEnv
from dreamenvs.worlds.dmc import CAMERAS, DMCConfig, DMCEnv, import_suite
from dreamenvs.worlds.minatar import GAMES, MinAtarConfig, MinAtarEnv
from dreamenvs.worlds.rendered import Pixels, PixelsConfig

PixelEnv = gymnasium.Env[NDArray[np.uint8], Any]
EXTRAS = {"ALE": "atari", "MinAtar": "minatar", "dm_control": "dmc", "Crafter": "crafter"}
"""The extra that brings each namespace."""
MODULES = {"ALE": "ale_py", "MinAtar": "minatar", "dm_control": "shimmy", "Crafter": "crafter"}

PATCH, LARGEST = 8, 96
"""Images of an environment of one's own are kept if their sides are multiples of the first, up to the second."""

_ID = re.compile(r"(?:[A-Za-z0-9_-]+/)?[A-Za-z0-9_.-]+")
_WORD = re.compile(r"[A-Za-z0-9_. +-]*")
_TASK = re.compile(r"dm_control/(?P<domain>[A-Za-z0-9_]+)-(?P<task>[A-Za-z0-9_]+)-v0")


def make_source(source: SourceEnv, observation_shape: tuple[int, int, int] | None = None, **kwargs: Scalar) -> PixelEnv:
    """The real environment of a dream; `kwargs`, such as `render_mode`, are added to the source's own.

    Actions are Discrete from 0 or a float32 Box. With `observation_shape` (C, H, W), another shape is refused.
    """
    check_source(source)
    options = dict(source.options)
    limit = options.pop("max_episode_steps", None)
    _import_namespace(source.id, source.preprocessing)
    try:
        env = PREPROCESSINGS[source.preprocessing](source.id, {**source.kwargs, **kwargs}, options)
    except TypeError as error:
        raise ValueError(f"{source.id} does not take these settings: {error}") from error
    if limit is not None:
        env = TimeLimit(env, int(limit))
    env = plain_actions(env)
    _check_observations(env, observation_shape)
    return env


def default_source(env_id: str) -> SourceEnv:
    """The usual preprocessing for an id, with every setting written out."""
    namespace = _namespace(env_id)
    if namespace == "ALE":
        return SourceEnv(
            id=env_id,
            kwargs={"frameskip": 1, "repeat_action_probability": 0.0, "full_action_space": False},
            preprocessing="atari",
            options=vars(AtariConfig()),
        )
    if namespace == "MinAtar":
        game = {"sticky_action_prob": 0.1, "difficulty_ramping": True}
        return SourceEnv(id=env_id, kwargs=game, preprocessing="minatar", options=vars(MinAtarConfig()))
    if namespace == "Crafter":
        return SourceEnv(id=env_id, preprocessing="crafter", options=vars(CrafterConfig()))
    if (task := _TASK.fullmatch(env_id)) is not None:
        options = vars(DMCConfig(camera=CAMERAS.get(task["domain"], 0)))
        return SourceEnv(id=env_id, preprocessing="dmc", options=options)
    if _shows_frames(env_id):
        return SourceEnv(id=env_id)
    return SourceEnv(id=env_id, preprocessing="pixels", options=vars(PixelsConfig()))


def keeps_frames(space: gymnasium.Space[Any]) -> bool:
    """Whether observations are images that a world model takes as they are: small ones, of whole patches of 8 × 8."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return False
    return all(PATCH <= side <= LARGEST and side % PATCH == 0 for side in space.shape[:2])


def _shows_frames(env_id: str) -> bool:
    """Whether an environment of somebody's own gives such images itself; what is not registered yet is drawn."""
    if env_id not in gymnasium.registry:
        return False
    env = gymnasium.make(env_id, disable_env_checker=True)
    try:
        return keeps_frames(env.observation_space)
    finally:
        env.close()


def describe(env: PixelEnv, *, world: str, source: SourceEnv | None) -> WorldSpec:
    """The WorldSpec of a real environment."""
    shape, space = env.observation_space.shape, env.action_space
    assert shape is not None
    height, width, channels = shape
    actions: DiscreteActions | ContinuousActions
    if isinstance(space, gymnasium.spaces.Discrete):
        actions = DiscreteActions(count=int(space.n))
    else:
        assert isinstance(space, gymnasium.spaces.Box)
        actions = ContinuousActions(low=tuple(space.low.tolist()), high=tuple(space.high.tolist()))
    return WorldSpec(world=world, observation_shape=(channels, height, width), actions=actions, source=source)


def choose_source(
    env_id: str,
    *,
    life_loss: bool = False,
    drawing: str | None = None,
    scale: int | None = None,
    repeat: int | None = None,
    quality: str | None = None,
    size: int | None = None,
) -> SourceEnv:
    """The usual preprocessing of an id, with these choices in it."""
    source = default_source(env_id)
    if size is not None and source.preprocessing == "none":
        source = SourceEnv(id=env_id, preprocessing="pixels", options=vars(PixelsConfig()))
    choices: dict[str, Scalar] = {"terminal_on_life_loss": life_loss or None, "drawing": drawing, "scale": scale}
    choices |= {"repeat": repeat, "quality": quality, "size": size}
    chosen = {name: value for name, value in choices.items() if value is not None}
    unknown = [name for name in chosen if name not in source.options]
    if unknown:
        raise SystemExit(f"{env_id} has no choice of {', '.join(unknown)}; it has {', '.join(source.options)}")
    return replace(source, options={**source.options, **chosen})


def check_source(source: SourceEnv) -> None:
    """Refuse what could import a module, open a file or call back into something else."""
    if not _ID.fullmatch(source.id):
        raise ValueError(f"{source.id!r} is no plain environment id; ids that name a module are not followed")
    if source.id.startswith("GymV"):
        raise ValueError(f"{source.id} builds other environments by name and is not followed")
    if source.preprocessing not in PREPROCESSINGS:
        raise ValueError(f"no preprocessing {source.preprocessing!r}; there are {', '.join(map(repr, PREPROCESSINGS))}")
    for name, value in (*source.kwargs.items(), *source.options.items()):
        if not isinstance(value, bool | int | float | str | None):
            raise ValueError(f"{name} of {source.id} must be a plain value, not {type(value).__name__}")
        if isinstance(value, str) and not _WORD.fullmatch(value):
            raise ValueError(f"{name} of {source.id} must be a plain word, not {value!r}")


def _namespace(env_id: str) -> str:
    return env_id.partition("/")[0]


def _import_namespace(env_id: str, preprocessing: str) -> None:
    """Register the ids of a known namespace; any other id must be registered already."""
    namespace = _namespace(env_id)
    if namespace not in MODULES:
        if env_id not in gymnasium.registry:
            raise ValueError(f"{env_id} is not registered; import its package first")
        return
    try:
        if namespace == "dm_control":
            import_suite()
            if preprocessing == "dmc":
                return  # builds its tasks itself; only the others need the ids that shimmy registers
        module = import_module(MODULES[namespace])
    except ImportError as error:
        raise ImportError(f'{env_id} needs an extra: pip install "dreamenvs[{EXTRAS[namespace]}]"') from error
    gymnasium.register_envs(module)


def _make_plain(env_id: str, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> PixelEnv:
    if options:
        raise TypeError(f"the preprocessing 'none' has no options: {', '.join(options)}")
    return gymnasium.make(env_id, **kwargs)


def _make_atari(env_id: str, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> PixelEnv:
    # The protocol skips frames itself, and the checker would look at every one of them.
    settings: dict[str, Any] = {"repeat_action_probability": 0.0, "full_action_space": False, **kwargs, "frameskip": 1}
    return AtariProtocol(gymnasium.make(env_id, disable_env_checker=True, **settings), AtariConfig(**options))


def _make_minatar(env_id: str, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> PixelEnv:
    match = re.fullmatch(rf"MinAtar/({'|'.join(GAMES)})-v([01])", env_id)
    if match is None:
        raise ValueError(f"{env_id} is no MinAtar game; there are {', '.join(GAMES)}, with -v0 or -v1")
    return MinAtarEnv(MinAtarConfig(**options), match[1], minimal=match[2] == "1", **kwargs)


def _make_crafter(env_id: str, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> PixelEnv:
    if env_id != "Crafter":
        raise ValueError(f"{env_id} is not Crafter")
    return CrafterEnv(CrafterConfig(**options), **kwargs)


def _make_dmc(env_id: str, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> PixelEnv:
    task = _TASK.fullmatch(env_id)
    if task is None:
        raise ValueError(f"{env_id} is no task of the DeepMind Control Suite, such as dm_control/walker-walk-v0")
    return DMCEnv(DMCConfig(**options), task["domain"], task["task"], **kwargs)


def _make_pixels(env_id: str, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> PixelEnv:
    config = PixelsConfig(**options)
    drawing: dict[str, Any] = {"render_mode": "rgb_array"}
    if _namespace(env_id) == "dm_control":
        drawing["render_kwargs"] = {"height": config.size, "width": config.size, "camera_id": config.camera_id}
    return Pixels(gymnasium.make(env_id, **{**kwargs, **drawing}), config)


def plain_actions(env: PixelEnv) -> PixelEnv:
    """Actions as the dream has them: Discrete from 0, or a float32 Box."""
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        if space.start == 0:
            return env
        start = int(space.start)
        return gymnasium.wrappers.TransformAction(
            env, lambda action: int(action) + start, gymnasium.spaces.Discrete(int(space.n))
        )
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise ValueError(f"a dream knows Discrete and one-dimensional Box actions, not {space}")
    if space.dtype == np.float32:
        return env
    low, high, dtype = space.low.astype(np.float32), space.high.astype(np.float32), space.dtype
    return gymnasium.wrappers.TransformAction(
        env, lambda action: np.asarray(action).astype(dtype), gymnasium.spaces.Box(low, high, dtype=np.float32)
    )


def _check_observations(env: PixelEnv, expected: tuple[int, int, int] | None) -> None:
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        raise ValueError(f"observations must be H × W × C uint8 images, not {space}; try the preprocessing 'pixels'")
    height, width, channels = space.shape
    if expected is not None and (channels, height, width) != tuple(expected):
        raise ValueError(f"observations are {(channels, height, width)} (C, H, W), not {tuple(expected)} as expected")


Preprocessing = Callable[[str, Mapping[str, Any], Mapping[str, Any]], PixelEnv]
PREPROCESSINGS: dict[str, Preprocessing] = {
    "none": _make_plain,
    "atari": _make_atari,
    "minatar": _make_minatar,
    "crafter": _make_crafter,
    "dmc": _make_dmc,
    "pixels": _make_pixels,
}
