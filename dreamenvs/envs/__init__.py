"""Dreams as environments: vectorised, single, for Stable-Baselines3, and their real counterparts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dreamenvs.envs.single import DreamEnv as DreamEnv
    from dreamenvs.envs.vector import DreamVectorEnv as DreamVectorEnv

_HOMES = {"DreamEnv": "dreamenvs.envs.single", "DreamVectorEnv": "dreamenvs.envs.vector"}


def __getattr__(name: str) -> Any:
    # Registering ids imports this package, and must not import torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
