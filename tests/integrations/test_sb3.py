"""Dreams in Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import VecMonitor

from dreamenvs.envs.sb3 import DreamVecEnv
from dreamenvs.envs.single import DreamEnv
from tests.toy_worlds import counting_checkpoint, point_checkpoint


def make(num_envs: int = 3, **kwargs: Any) -> DreamVecEnv:
    world = kwargs.pop("world", {})
    return DreamVecEnv(counting_checkpoint(**world), num_envs=num_envs, **({"obs_type": "latent"} | kwargs))


@pytest.mark.parametrize("obs_type", ["rgb", "latent", "tokens"])
def test_sb3s_checker_has_nothing_to_say(obs_type: Any, recwarn: pytest.WarningsRecorder) -> None:
    check_env(DreamEnv(checkpoint=counting_checkpoint(limit=99), obs_type=obs_type, render_mode="rgb_array"))
    check_env(DreamEnv(checkpoint=point_checkpoint(), obs_type=obs_type))
    # SB3 says of any image smaller than 36 by 36 that its CNN cannot take it; the analytic frames are 4 by 6.
    assert [text for warning in recwarn if "minimal resolution" not in (text := str(warning.message))] == []


def test_ended_rows_give_their_terminal_observation_and_go_on() -> None:
    env = make(world={"limit": 3}, horizon=4)
    env.seed(0)
    assert env.reset()[:, 0].tolist() == [0, 0, 0]
    env.step(np.array([0, 1, 2]))
    observations, rewards, dones, infos = env.step(np.array([0, 1, 2]))
    assert observations[:, 0].tolist() == [0, 2, 0]
    assert rewards.dtype == np.float32
    assert dones.tolist() == [False, False, True]
    assert infos[2]["terminal_observation"].tolist() == [4, 2]
    assert [info["TimeLimit.truncated"] for info in infos] == [False, False, False]
    env.step(np.array([0, 0, 0]))
    _, _, dones, infos = env.step(np.array([0, 0, 0]))
    assert dones.tolist() == [True, True, False]
    assert [info["TimeLimit.truncated"] for info in infos] == [True, True, False]


def test_an_end_at_the_horizon_is_a_termination_first() -> None:
    env = make(1, world={"limit": 2}, horizon=1)
    env.reset()
    _, _, dones, infos = env.step(np.array([2]))
    assert dones.tolist() == [True]
    assert infos[0]["TimeLimit.truncated"] is False


def test_seeds_are_used_once() -> None:
    env = make(world={"starts": tuple(range(30))})
    env.seed(5)
    first = env.reset()
    env.seed(5)
    assert np.array_equal(first, env.reset())
    assert not np.array_equal(first, env.reset())


def test_ppo_learns_to_count_quickly() -> None:
    env = VecMonitor(make(8, world={"limit": 10_000}, horizon=16))
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, learning_rate=1e-2, seed=0, device="cpu")
    model.learn(4096)
    env.seed(0)
    observations, total = env.reset(), 0.0
    for _ in range(16):
        actions, _ = model.predict(observations, deterministic=True)
        observations, rewards, _, _ = env.step(actions)
        total += float(rewards.mean())
    assert total > 28  # 32 is the best, a random policy gets 16


def returns_of(model: Any, env: Any, steps: int) -> float:
    """The mean return of deterministic episodes."""
    env.seed(0)
    observations, total = env.reset(), 0.0
    for _ in range(steps):
        observations, rewards, _, _ = env.step(model.predict(observations, deterministic=True)[0])
        total += float(rewards.mean())
    return total


def test_ppo_learns_continuous_actions() -> None:
    env = VecMonitor(DreamVecEnv(point_checkpoint(), num_envs=8, obs_type="latent", horizon=16))
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, learning_rate=5e-3, seed=0, device="cpu")
    before = returns_of(model, env, 16)
    model.learn(4096)
    assert before < -8
    assert returns_of(model, env, 16) > -6  # -2 is the best: five steps to the middle, then rest


def test_sac_learns_continuous_actions() -> None:
    env = VecMonitor(DreamVecEnv(point_checkpoint(), num_envs=4, obs_type="latent", horizon=16))
    model = SAC(
        "MlpPolicy",
        env,
        learning_starts=200,
        gradient_steps=2,
        batch_size=64,
        learning_rate=3e-3,
        gamma=0.9,
        ent_coef=0.02,
        policy_kwargs={"net_arch": [32, 32]},
        seed=0,
        device="cpu",
    )
    before = returns_of(model, env, 16)
    model.learn(1600)
    assert before < -8
    assert returns_of(model, env, 16) > -4
    assert model.replay_buffer is not None
    assert model.replay_buffer.actions.dtype == np.float32


def test_attributes_methods_and_images() -> None:
    env = make(2, render_mode="rgb_array")
    env.reset()
    assert env.get_attr("obs_type") == ["latent", "latent"]
    assert env.env_is_wrapped(VecMonitor) == [False, False]
    assert env.get_images()[0].shape == (4, 6, 3)
    assert len(env.env_method("snapshot", indices=[0])) == 1
    env.set_attr("marker", 3)
    assert env.get_attr("marker", indices=1) == [3]
    with pytest.raises(ValueError, match="share their attributes"):
        env.set_attr("marker", 3, indices=[0])


@pytest.mark.parametrize("kwargs", [{"output": "torch"}, {"autoreset_mode": "NextStep"}])
def test_arguments_that_sb3_decides_are_refused(kwargs: dict[str, str]) -> None:
    with pytest.raises(TypeError, match=next(iter(kwargs))):
        make(**kwargs)
