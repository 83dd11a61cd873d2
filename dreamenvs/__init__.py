"""Learned environments for reinforcement learning: `import dreamenvs`, then `gymnasium.make` a dream by its id."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dreamenvs.checkpoints.library import DreamNotFoundError, locate
from dreamenvs.envs.registration import register, register_all
from dreamenvs.moved import install

if TYPE_CHECKING:
    from dreamenvs.agents.player import Player as Player
    from dreamenvs.agents.saving import load_agent as load_agent
    from dreamenvs.agents.saving import save_agent as save_agent
    from dreamenvs.checkpoints.shared_models import load as load
    from dreamenvs.checkpoints.world_model import CheckpointError as CheckpointError
    from dreamenvs.checkpoints.world_model import save_checkpoint as save
    from dreamenvs.worlds.real import make_real as make_real
    from dreamenvs.worlds.real import make_real_vec as make_real_vec

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "DreamNotFoundError",
    "Player",
    "load",
    "load_agent",
    "locate",
    "make_real",
    "make_real_vec",
    "register",
    "save",
    "save_agent",
]

install()
register_all()

_HOMES = {
    "CheckpointError": ("dreamenvs.checkpoints.world_model", "CheckpointError"),
    "Player": ("dreamenvs.agents.player", "Player"),
    "load": ("dreamenvs.checkpoints.shared_models", "load"),
    "load_agent": ("dreamenvs.agents.saving", "load_agent"),
    "make_real": ("dreamenvs.worlds.real", "make_real"),
    "make_real_vec": ("dreamenvs.worlds.real", "make_real_vec"),
    "save": ("dreamenvs.checkpoints.world_model", "save_checkpoint"),
    "save_agent": ("dreamenvs.agents.saving", "save_agent"),
}


def __getattr__(name: str) -> Any:
    # Everything that needs torch is imported when it is first asked for.
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
