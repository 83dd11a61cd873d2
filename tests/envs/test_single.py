"""DreamEnv on an analytic world."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from dreamenvs.envs.single import DreamEnv
from dreamenvs.envs.vector import DreamVectorEnv
from tests.toy_worlds import counting_checkpoint, point_checkpoint


def make(*, world: dict[str, Any] | None = None, **kwargs: Any) -> DreamEnv:
    return DreamEnv(checkpoint=counting_checkpoint(**(world or {})), **({"obs_type": "latent"} | kwargs))


def test_an_episode_from_start_to_end() -> None:
    env = make(world={"limit": 3})
    observation, info = env.reset(seed=0)
    assert observation.tolist() == [0, 0]
    assert info == {}
    observation, reward, terminated, truncated, info = env.step(2)
    assert observation.tolist() == [2, 2]
    assert (reward, terminated, truncated, info) == (2.0, False, False, {})
    assert type(terminated) is bool
    _, _, terminated, _, _ = env.step(np.int64(1))
    assert terminated is True
    with pytest.raises(ResetNeeded, match="have ended"):
        env.step(0)


@pytest.mark.parametrize("obs_type", ["rgb", "latent", "tokens"])
@pytest.mark.parametrize("checkpoint", [counting_checkpoint(limit=99, jitter=0.5), point_checkpoint()])
def test_gymnasiums_checker_has_nothing_to_say(
    obs_type: Any, checkpoint: Any, recwarn: pytest.WarningsRecorder
) -> None:
    gym.register("test/Checked-v0", entry_point=DreamEnv, kwargs={"obs_type": obs_type, "render_mode": "rgb_array"})
    try:
        env = gym.make("test/Checked-v0", checkpoint=checkpoint)
        check_env(env.unwrapped, skip_render_check=True)
    finally:
        gym.registry.pop("test/Checked-v0")
    assert [str(warning.message) for warning in recwarn] == []


def test_the_single_env_is_row_i_of_the_vector_env() -> None:
    world = {"jitter": 0.5, "starts": (0, 3, 5), "limit": 1000}
    envs = DreamVectorEnv(5, checkpoint=counting_checkpoint(**world), obs_type="tokens")
    first, _ = envs.reset(seed=10)
    walk = [first] + [envs.step(np.full(5, 1))[0] for _ in range(20)]
    for row in range(5):
        env = make(world=world, obs_type="tokens")
        observation, _ = env.reset(seed=10 + row)
        alone = [observation] + [env.step(1)[0] for _ in range(20)]
        assert np.array_equal(np.stack(alone), np.stack(walk)[:, row])


def test_snapshot_and_restore() -> None:
    env = make(world={"jitter": 0.5, "limit": 1000})
    env.reset(seed=1)
    snapshot = env.snapshot()
    future = [env.step(1)[0].tolist() for _ in range(8)]
    assert env.restore(snapshot).tolist() == [0, 0]
    assert [env.step(1)[0].tolist() for _ in range(8)] == future


def test_an_error_is_told_in_the_info() -> None:
    env = make(world={"broken_at": 2})
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(2)
    assert observation.tolist() == [0, 0]
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert "NaN or infinity" in info["error"]


def test_closing_twice_is_harmless() -> None:
    env = make()
    env.close()
    env.close()


def test_metadata_is_not_shared_between_instances() -> None:
    one, other = make(), make()
    one.metadata["autoreset_mode"] = "anything"
    assert "autoreset_mode" not in other.metadata


@pytest.mark.parametrize("action", [3, -1, 1.5, [1], None, "up"])
def test_bad_actions_are_refused(action: Any) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises((ValueError, TypeError), match="action"):
        env.step(action)


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError, match="wolrd"):
        DreamEnv(checkpoint=counting_checkpoint(), wolrd=1)  # type: ignore[call-arg]
