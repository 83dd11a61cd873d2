"""Learned environments for reinforcement learning: fit a world model, and `gymnasium.make` its dream by an id.

>>> import dreamenvs, gymnasium, tempfile

Fit a dream on real experience: here on very little of it, so that it takes seconds.

>>> dream = dreamenvs.fit("MinAtar/Breakout-v1", steps=400, update_share=0.002, progress=False)

Train an agent in it without a real step, and see what it earns for real.

>>> agent = dreamenvs.train(dream, steps=2048, progress=False)
>>> result = dreamenvs.transfer(agent, dream, episodes=2, horizon=10, max_episode_steps=50, progress=False)
>>> fidelity = dreamenvs.evaluate(dream, steps=300, starts=4, horizon=3, progress=False)

Keep the dream, give it an id, and make it like any other environment.

>>> path = dream.save(tempfile.mkdtemp() + "/GRID-MinAtarBreakout-v7")
>>> dreamenvs.register(path)
'dreamenvs/GRID-MinAtarBreakout-v7'
>>> envs = gymnasium.make_vec("dreamenvs/GRID-MinAtarBreakout-v7", num_envs=8)
>>> envs.reset(seed=0)[0].shape
(8, 40, 40, 3)

`dreamenvs.available()` lists the dreams at hand; on the command line, `dreamenvs --help` shows the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dreamenvs.checkpoints.library import DreamNotFoundError, available, locate
from dreamenvs.envs.registration import register, register_all
from dreamenvs.moved import install

if TYPE_CHECKING:
    from dreamenvs.agents.player import Player as Player
    from dreamenvs.agents.saving import load_agent as load_agent
    from dreamenvs.agents.saving import save_agent as save_agent
    from dreamenvs.api import doctor as doctor
    from dreamenvs.api import evaluate as evaluate
    from dreamenvs.api import fit as fit
    from dreamenvs.api import register_family as register_family
    from dreamenvs.api import train as train
    from dreamenvs.api import transfer as transfer
    from dreamenvs.checkpoints.shared_models import load as load
    from dreamenvs.checkpoints.world_model import Checkpoint as Checkpoint
    from dreamenvs.checkpoints.world_model import CheckpointError as CheckpointError
    from dreamenvs.checkpoints.world_model import save_checkpoint as save
    from dreamenvs.envs.sb3 import DreamVecEnv as DreamVecEnv
    from dreamenvs.envs.single import DreamEnv as DreamEnv
    from dreamenvs.envs.vector import DreamVectorEnv as DreamVectorEnv
    from dreamenvs.models.family import Family as Family
    from dreamenvs.worlds.real import make_real as make_real
    from dreamenvs.worlds.real import make_real_vec as make_real_vec

__version__ = "0.2.0"
__all__ = [
    "Checkpoint",
    "CheckpointError",
    "DreamEnv",
    "DreamNotFoundError",
    "DreamVecEnv",
    "DreamVectorEnv",
    "Family",
    "Player",
    "available",
    "doctor",
    "evaluate",
    "fit",
    "load",
    "load_agent",
    "locate",
    "make_real",
    "make_real_vec",
    "register",
    "register_family",
    "save",
    "save_agent",
    "train",
    "transfer",
]

install()
register_all()

_HOMES = {
    "Checkpoint": ("dreamenvs.checkpoints.world_model", "Checkpoint"),
    "CheckpointError": ("dreamenvs.checkpoints.world_model", "CheckpointError"),
    "DreamEnv": ("dreamenvs.envs.single", "DreamEnv"),
    "DreamVecEnv": ("dreamenvs.envs.sb3", "DreamVecEnv"),
    "DreamVectorEnv": ("dreamenvs.envs.vector", "DreamVectorEnv"),
    "Family": ("dreamenvs.models.family", "Family"),
    "Player": ("dreamenvs.agents.player", "Player"),
    "doctor": ("dreamenvs.api", "doctor"),
    "evaluate": ("dreamenvs.api", "evaluate"),
    "fit": ("dreamenvs.api", "fit"),
    "load": ("dreamenvs.checkpoints.shared_models", "load"),
    "load_agent": ("dreamenvs.agents.saving", "load_agent"),
    "make_real": ("dreamenvs.worlds.real", "make_real"),
    "make_real_vec": ("dreamenvs.worlds.real", "make_real_vec"),
    "register_family": ("dreamenvs.api", "register_family"),
    "save": ("dreamenvs.checkpoints.world_model", "save_checkpoint"),
    "save_agent": ("dreamenvs.agents.saving", "save_agent"),
    "train": ("dreamenvs.api", "train"),
    "transfer": ("dreamenvs.api", "transfer"),
}


def __getattr__(name: str) -> Any:
    # Everything that needs torch is imported when it is first asked for.
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
