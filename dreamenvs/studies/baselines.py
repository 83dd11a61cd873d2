"""PPO of Stable-Baselines3, in a dream or not: the recipe that the commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from dreamenvs.checkpoints.shared_models import CheckpointLike
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.data.collect import EpsilonPolicy
from dreamenvs.envs.sb3 import DreamVecEnv
from dreamenvs.types import SourceEnv
from dreamenvs.worlds.source import make_source
from dreamenvs.worlds.watching import WatchingPolicy

NATURE = 36
"""The side of the smallest frame that the convolutions of Stable-Baselines3 take; smaller ones go to its MLP."""
EXPLORATION = (0.0, 0.02, 0.1, 0.25)
"""Shares of random moves in real episodes, one of which is drawn for each."""


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """How PPO learns, in a dream or not."""

    num_envs: int = 64
    """Episodes side by side."""
    n_steps: int = 64
    batch_size: int = 1024
    n_epochs: int = 4
    gamma: float = 0.98
    entropy: float = 0.01
    rate: float = 1e-3
    """The learning rate, which falls to nothing."""
    units: int = 128
    """Of each of the two layers of actor and critic."""


@dataclass(frozen=True, kw_only=True)
class PPOConfig(PPOSettings):
    """How a policy learns in a dream."""

    horizon: int = 100
    """Imagined steps of an episode: in long ones a policy learns to live off the dream's errors, in short ones it sees
    too little of what its actions lead to."""
    temperature: float = 1.0
    """Of the imagined frames. Below 1 the dream is more certain than it has reason to be, and hides chance from the
    policy: in MinAtar Breakout, whose actions stick at random, 0.5 gave worse real returns than 1."""


class PPOProgress(Protocol):
    """Called with the steps that are done and the mean return of the last episodes, where there are any."""

    def __call__(self, done: int, mean_return: float | None) -> None: ...


class PPOCallback(BaseCallback):
    """Reports progress to whoever asked for it."""

    def __init__(self, report: PPOProgress | None) -> None:
        super().__init__()
        self._report, self._done = report, 0

    def _on_step(self) -> bool:
        self._done += self.training_env.num_envs
        if self._report is not None:
            known = self.model.ep_info_buffer if self.n_calls % 50 == 0 else None
            self._report(self._done, float(np.mean([e["r"] for e in known])) if known else None)
        return True


def learn(
    checkpoint: CheckpointLike,
    steps: int,
    seed: int = 0,
    config: PPOConfig | None = None,
    *,
    progress: PPOProgress | None = None,
) -> PPO:
    """A policy on the dream's latent that learned from `steps` imagined steps, and from no real one."""
    config = config or PPOConfig()
    env = DreamVecEnv(
        checkpoint,
        num_envs=config.num_envs,
        obs_type="latent",
        horizon=config.horizon,
        temperature=config.temperature,
    )
    return learn_in(VecMonitor(env), "MlpPolicy", steps, seed, config, progress)


def learn_in(
    env: VecEnv, policy: str, steps: int, seed: int, config: PPOSettings, progress: PPOProgress | None = None
) -> PPO:
    """A policy that learned from `steps` steps of any environment."""
    settings: dict[str, Any] = {"net_arch": [config.units, config.units]}
    model = PPO(
        policy,
        env,
        learning_rate=lambda left: config.rate * left,
        n_steps=config.n_steps,
        batch_size=config.batch_size,
        n_epochs=config.n_epochs,
        gamma=config.gamma,
        ent_coef=config.entropy,
        policy_kwargs=settings,
        seed=seed,
        device="cpu",
    )
    return model.learn(steps, callback=PPOCallback(progress))


def learn_for_real(
    source: SourceEnv, steps: int, seed: int, config: PPOSettings, progress: PPOProgress | None = None
) -> PPO:
    """A policy that learned from `steps` real steps."""
    env = make_vec_env(lambda: make_source(source), config.num_envs, seed)
    shape = env.observation_space.shape
    assert shape is not None
    policy = "CnnPolicy" if min(shape[:2]) >= NATURE else "MlpPolicy"
    learned = learn_in(env, policy, steps, seed, config, progress)
    env.close()
    return learned


def explorer(
    policy: Any, checkpoint: Checkpoint, space: gymnasium.Space[Any], epsilons: tuple[float, ...], seed: int
) -> EpsilonPolicy:
    """A policy that learned in a dream, on real frames that its model watches, with a share of random moves."""
    return EpsilonPolicy(WatchingPolicy(policy, checkpoint.model, "latent"), space, epsilons, seed)
