"""The vector-environment checker: it passes what is right, and names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamenvs.envs.conformance import ConformanceError, check_vector_env
from dreamenvs.envs.single import DreamEnv
from dreamenvs.envs.vector import DreamVectorEnv
from tests.toy_worlds import counting_checkpoint, point_checkpoint

WORLD = counting_checkpoint(starts=(0, 3, 6), jitter=0.4, limit=14)


def make_env(**kwargs: Any) -> gym.Env[Any, Any]:
    return DreamEnv(checkpoint=WORLD, horizon=9, **kwargs)


@pytest.mark.parametrize("obs_type", ["rgb", "latent", "tokens"])
def test_dreams_conform_in_every_mode(obs_type: Any) -> None:
    make_vec = partial(DreamVectorEnv, checkpoint=WORLD, horizon=9, obs_type=obs_type)
    check_vector_env(make_vec, partial(make_env, obs_type=obs_type), steps=60)


def test_dreams_with_errors_and_continuous_actions_conform() -> None:
    broken = counting_checkpoint(broken_at=5)
    check_vector_env(
        partial(DreamVectorEnv, checkpoint=broken, horizon=9), partial(DreamEnv, checkpoint=broken, horizon=9), steps=40
    )
    point = point_checkpoint()
    check_vector_env(
        partial(DreamVectorEnv, checkpoint=point, horizon=9), partial(DreamEnv, checkpoint=point, horizon=9), steps=20
    )


def test_gymnasiums_own_vector_environment_conforms() -> None:
    def make_vec(num_envs: int, autoreset_mode: AutoresetMode) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs, autoreset_mode=autoreset_mode)

    check_vector_env(make_vec, lambda: gym.make("CartPole-v1"))


def test_the_single_environment_is_found_through_the_spec() -> None:
    def make_vec(num_envs: int, autoreset_mode: AutoresetMode) -> Any:
        kwargs = {"autoreset_mode": autoreset_mode}
        return gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync", vector_kwargs=kwargs)

    check_vector_env(make_vec)


class Alias(DreamVectorEnv):
    """Returns one buffer again and again."""

    def step(self, actions: Any) -> Any:
        observation, *rest = super().step(actions)
        if not hasattr(self, "buffer"):
            self.buffer = observation
        self.buffer[:] = observation
        return self.buffer, *rest


class LateReward(DreamVectorEnv):
    """Gives the reward of the step before."""

    last = 0.0

    def step(self, actions: Any) -> Any:
        observation, rewards, *rest = super().step(actions)
        rewards, self.last = np.full_like(rewards, self.last), rewards[0]
        return observation, rewards, *rest


class NoMask(DreamVectorEnv):
    """Forgets the masks of its infos."""

    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        return *rest, {key: value for key, value in infos.items() if not key.startswith("_")}


class OneSeed(DreamVectorEnv):
    """Seeds every row alike."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=[seed] * self.num_envs if isinstance(seed, int) else seed, options=options)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Alias, "seen again after later steps"),
        (LateReward, "rewards is"),
        (NoMask, "infos has the keys"),
        (OneSeed, "observation of row 1"),
    ],
)
def test_mistakes_are_found_and_named(broken: Callable[..., DreamVectorEnv], message: str) -> None:
    with pytest.raises(ConformanceError, match=message):
        check_vector_env(partial(broken, checkpoint=WORLD, horizon=9), make_env, steps=40)


def test_a_walk_without_an_end_proves_nothing_and_is_refused() -> None:
    with pytest.raises(ValueError, match="no episode ended within 5 steps"):
        check_vector_env(partial(DreamVectorEnv, checkpoint=WORLD, horizon=99), make_env, steps=5)


def test_a_vector_environment_without_a_spec_needs_its_single_one() -> None:
    with pytest.raises(ValueError, match="pass make_env"):
        check_vector_env(partial(DreamVectorEnv, checkpoint=WORLD, horizon=9))
