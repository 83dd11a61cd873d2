"""Loads a dream once per process and shares it between environments: the model, and the states where episodes start."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from dreamenvs import tree
from dreamenvs.checkpoints.library import locate
from dreamenvs.checkpoints.world_model import Checkpoint, load_checkpoint
from dreamenvs.dream import observe_contexts
from dreamenvs.protocols import WorldModel

_PROCESS = os.getpid()

CheckpointLike = str | os.PathLike[str] | Checkpoint


class World(NamedTuple):
    """What environments share."""

    model: WorldModel[Any]
    starts: Any
    """The states after each start context, one a row."""
    name: str


def load(id_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Checkpoint:
    """Load a dream: its model, start contexts and card.

    >>> import dreamenvs
    >>> dream = dreamenvs.load("dreamenvs/STEPVQ-Pong-v0")
    >>> dream.model.spec.world
    'Pong'
    """
    return load_checkpoint(locate(id_or_path), device=device)


def open_world(checkpoint: CheckpointLike, device: str | torch.device = "cpu") -> World:
    """The shared world behind an id, a path or a loaded checkpoint."""
    if os.getpid() != _PROCESS:
        # In a forked process, as of AsyncVectorEnv, the threads of the parent do not exist, and waiting for them hangs.
        torch.set_num_threads(1)
    _check_device(device)
    if isinstance(checkpoint, Checkpoint):
        contexts = tree.to(checkpoint.contexts, device)
        return World(checkpoint.model, observe_contexts(checkpoint.model, contexts), checkpoint.family)
    path = locate(checkpoint).resolve()
    manifest = path / "manifest.json"
    # While a checkpoint is being replaced its directory is aside for a moment, and loading waits for it.
    written = manifest.stat().st_mtime_ns if manifest.exists() else 0
    return _open_path(str(path), written, str(device))


def _check_device(device: str | torch.device) -> None:
    """Refuse a device that is not there, naming it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device={str(device)!r} cannot be used here ({error}); device='cpu' always can") from error


@lru_cache(maxsize=4)
def _open_path(path: str, written: int, device: str) -> World:
    # `written` is part of the key, so a checkpoint that was fitted on in the meantime is loaded anew.
    loaded = load_checkpoint(path, device=device)
    starts = observe_contexts(loaded.model, tree.to(loaded.contexts, device))
    return World(loaded.model, starts, os.path.basename(path))
