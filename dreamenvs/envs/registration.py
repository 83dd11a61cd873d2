"""The ids of every family on every world of the papers. Entry points are strings, so registering imports no torch."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import gymnasium as gym

from dreamenvs.checkpoints.library import NAMESPACE, DreamNotFoundError, locate, shelved
from dreamenvs.ids import WORLDS, is_name, names


def register_all() -> None:
    """Register the papers' families on the papers' worlds, and every dream on a shelf; `import dreamenvs` calls it."""
    for name in names():
        _register(NAMESPACE + name, name)
    for world in WORLDS:
        _register(f"DreamEnv-{world}-v0", f"DreamEnv-{world}-v0")
    for name in shelved():
        if NAMESPACE + name not in gym.registry:
            _register(NAMESPACE + name, name)


def register_names(family: str) -> None:
    """Register a family on the papers' worlds, as those of the package are."""
    for world in WORLDS:
        gym.registry.pop(f"{NAMESPACE}{family}-{world}-v0", None)
        _register(f"{NAMESPACE}{family}-{world}-v0", f"{family}-{world}-v0")


def register(path: str | os.PathLike[str], id: str | None = None) -> str:  # noqa: A002 (Gymnasium's own word)
    """Give a checkpoint directory an environment id, and return the id.

    By default the id is the directory's name where that is one of a dream, else that of its family and world, such as
    `dreamenvs/STEPVQ-Pong-v0`; it then means this checkpoint until the process ends, and a warning says so if it meant
    another one. A dream in the user's directory or on `DREAMENVS_PATH` has its id in every process, without this.

    >>> import dreamenvs
    >>> dreamenvs.register(dreamenvs.locate("dreamenvs/STEPVQ-Pong-v0"), id="my/Pong-v0")
    'my/Pong-v0'
    """
    directory = locate(path).resolve()
    if id is None:
        from dreamenvs.checkpoints.world_model import read_identity

        family, world = read_identity(directory)
        id = NAMESPACE + (directory.name if is_name(directory.name) else f"{family}-{world}-v0")  # noqa: A001
    hidden = _meaning(id)
    if hidden is not None and hidden != directory:
        warnings.warn(f"{id} now means {directory}, and no longer {hidden}", stacklevel=2)
    gym.registry.pop(id, None)
    _register(id, str(directory))
    return id


def _meaning(id: str) -> Path | None:  # noqa: A002
    """The checkpoint that an id stands for."""
    try:
        return locate(id).resolve()
    except DreamNotFoundError:
        return None


def _register(id: str, checkpoint: str) -> None:  # noqa: A002
    gym.register(
        id,
        entry_point="dreamenvs.envs.single:DreamEnv",
        vector_entry_point="dreamenvs.envs.vector:DreamVectorEnv",
        kwargs={"checkpoint": checkpoint},
    )
