"""DreamVectorEnv on an analytic world: every array is known beforehand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from dreamenvs.envs.vector import DreamVectorEnv
from tests.toy_worlds import counting_checkpoint, point_checkpoint


def make(num_envs: int = 3, *, world: dict[str, Any] | None = None, **kwargs: Any) -> DreamVectorEnv:
    kwargs = {"obs_type": "latent", "horizon": 100} | kwargs
    return DreamVectorEnv(num_envs, checkpoint=counting_checkpoint(**(world or {})), **kwargs)


def counts(observation: Any) -> list[float]:
    return [row[0] for row in observation.tolist()]


def test_next_step_mode_gives_the_final_frame_and_then_resets() -> None:
    envs = make(world={"limit": 3})
    envs.reset(seed=0)
    envs.step(np.array([0, 1, 2]))
    observation, rewards, terminated, truncated, infos = envs.step(np.array([0, 1, 2]))
    assert counts(observation) == [0, 2, 4]
    assert rewards.tolist() == [0, 1, 2]
    assert terminated.tolist() == [False, False, True]
    assert truncated.tolist() == [False, False, False]
    assert infos == {}
    observation, rewards, terminated, truncated, infos = envs.step(np.array([1, 1, 2]))
    assert counts(observation) == [1, 3, 0]
    assert rewards.tolist() == [1, 1, 0]
    assert terminated.tolist() == [False, True, False]
    observation, *_ = envs.step(np.array([1, 1, 2]))
    assert counts(observation) == [2, 0, 2]


def test_same_step_mode_gives_the_reset_frame_and_keeps_the_final_one() -> None:
    envs = make(world={"limit": 3}, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    envs.step(np.array([0, 1, 2]))
    observation, rewards, terminated, _, infos = envs.step(np.array([0, 1, 2]))
    assert counts(observation) == [0, 2, 0]
    assert rewards.tolist() == [0, 1, 2]
    assert terminated.tolist() == [False, False, True]
    assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [False, False, True]
    assert infos["final_obs"][0] is None
    assert infos["final_obs"][2].tolist() == [4, 2]
    assert infos["final_info"] == {}
    observation, *_ = envs.step(np.array([0, 0, 1]))
    assert counts(observation) == [0, 2, 1]


def test_disabled_mode_refuses_ended_rows_until_they_are_reset() -> None:
    envs = make(world={"limit": 3}, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step(np.array([0, 1, 2]))
    observation, _, terminated, _, _ = envs.step(np.array([0, 1, 2]))
    assert counts(observation) == [0, 2, 4]
    with pytest.raises(ResetNeeded, match=r"rows \[2\]"):
        envs.step(np.array([0, 0, 0]))
    options = {"reset_mask": terminated}
    observation, _ = envs.reset(options=options)
    assert counts(observation) == [0, 2, 0]
    assert options["reset_mask"] is terminated
    observation, *_ = envs.step(np.array([1, 0, 1]))
    assert counts(observation) == [1, 2, 1]


def test_each_row_is_truncated_at_its_own_horizon() -> None:
    envs = make(2, horizon=3, autoreset_mode="Disabled")
    envs.reset(seed=0)
    envs.step(np.array([1, 1]))
    envs.reset(options={"reset_mask": np.array([False, True])})
    envs.step(np.array([1, 1]))
    *_, truncated, _ = envs.step(np.array([1, 1]))
    assert truncated.tolist() == [True, False]
    envs.reset(options={"reset_mask": np.array([True, False])})
    *_, truncated, _ = envs.step(np.array([1, 1]))
    assert truncated.tolist() == [False, True]


def test_max_episode_steps_and_horizon_the_smaller_counts() -> None:
    assert make(horizon=5, max_episode_steps=3).dream.horizon == 3
    assert make(horizon=3, max_episode_steps=5).dream.horizon == 3


def test_a_partial_reset_keeps_the_statistics_of_the_other_rows() -> None:
    envs = RecordEpisodeStatistics(make(2, autoreset_mode=AutoresetMode.DISABLED))
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(np.array([1, 1]))
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.episode_lengths.tolist() == [0, 5]


def test_observations_of_every_type() -> None:
    rgb, _ = make(2, world={"starts": (12,)}, obs_type="rgb").reset(seed=0)
    assert rgb.shape == (2, 4, 6, 3)
    assert rgb.dtype == np.uint8
    assert (rgb == 12).all()
    tokens, _ = make(2, world={"starts": (12,)}, obs_type="tokens").reset(seed=0)
    assert tokens.tolist() == [[1, 2], [1, 2]]
    assert tokens.dtype == np.int64
    latent, _ = make(2, world={"starts": (12,)}, obs_type="latent").reset(seed=0)
    assert latent.tolist() == [[12, 0], [12, 0]]
    assert latent.dtype == np.float32


def test_torch_output_is_tensors_that_autograd_can_use() -> None:
    envs = make(2, output="torch", world={"limit": 2}, autoreset_mode=AutoresetMode.SAME_STEP)
    observation, _ = envs.reset(seed=0)
    observation, rewards, terminated, truncated, infos = envs.step(torch.tensor([1, 2]))
    assert all(isinstance(part, torch.Tensor) for part in (observation, rewards, terminated, truncated))
    assert infos["final_obs"][1].tolist() == [2, 2]
    assert infos["_final_obs"].tolist() == [False, True]
    weights = torch.ones(2, 2, requires_grad=True)
    ((observation @ weights).sum() * rewards.sum()).backward()
    assert weights.grad is not None
    assert weights.grad.abs().sum() > 0


def test_the_callers_actions_are_left_alone() -> None:
    envs = make(8, output="torch", world={"limit": 2}, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    actions = torch.tensor([2] * 8)
    envs.step(actions)
    assert actions.tolist() == [2] * 8


def test_rendering_gives_one_frame_a_row() -> None:
    envs = make(2, world={"starts": (7,)}, render_mode="rgb_array")
    envs.reset(seed=0)
    frames = envs.render()
    assert frames is not None
    assert len(frames) == 2
    assert frames[0].shape == (4, 6, 3)
    assert (frames[1] == 7).all()
    assert make(2).render() is None


def test_row_i_under_seed_s_is_row_zero_under_seed_s_plus_i() -> None:
    world = {"jitter": 0.5, "limit": 60, "starts": (0, 5, 9)}
    walks = {}
    for num_envs in (1, 2, 3, 8, 64):
        envs = make(num_envs, world=world, obs_type="tokens", horizon=9)
        observation, _ = envs.reset(seed=40)
        walk = [observation]
        for step in range(30):
            walk.append(envs.step(np.full(num_envs, step % 3))[0])
        walks[num_envs] = np.stack(walk)
    for num_envs, walk in walks.items():
        assert np.array_equal(walk, walks[64][:, :num_envs])
    envs = make(1, world=world, obs_type="tokens", horizon=9)
    observation, _ = envs.reset(seed=45)
    alone = [observation] + [envs.step(np.array([step % 3]))[0] for step in range(30)]
    assert np.array_equal(np.stack(alone)[:, 0], walks[8][:, 5])


def test_an_unseeded_reset_goes_on_with_the_rows_own_randomness() -> None:
    def episode_starts() -> list[list[float]]:
        envs = make(4, world={"starts": tuple(range(9))})
        return [counts(envs.reset(seed=3)[0])] + [counts(envs.reset()[0]) for _ in range(5)]

    first = episode_starts()
    assert first == episode_starts()
    assert len({tuple(starts) for starts in first}) > 1


def test_seeds_as_a_list_with_gaps() -> None:
    envs = make(3, world={"starts": tuple(range(9))})
    by_number, _ = envs.reset(seed=3)
    by_list, _ = envs.reset(seed=[3, 4, None])
    assert by_number[:2].tolist() == by_list[:2].tolist()
    with pytest.raises(ValueError, match="2 entries for num_envs=3"):
        envs.reset(seed=[1, 2])


def test_a_partial_reset_seeds_only_its_rows() -> None:
    envs = make(2, world={"starts": tuple(range(9)), "jitter": 0.5, "limit": 1000})
    envs.reset(seed=0)
    envs.reset(seed=[50, 51], options={"reset_mask": np.array([False, True])})
    fresh = make(2, world={"starts": tuple(range(9)), "jitter": 0.5, "limit": 1000})
    fresh.reset(seed=[0, 51])
    for _ in range(10):
        assert counts(envs.step(np.array([1, 1]))[0]) == counts(fresh.step(np.array([1, 1]))[0])


def test_snapshot_and_restore_repeat_the_future_exactly() -> None:
    envs = make(3, world={"jitter": 0.5, "limit": 8}, horizon=6)
    envs.reset(seed=0)
    envs.step(np.array([1, 2, 0]))
    snapshot = envs.snapshot()
    future = [envs.step(np.array([2, 1, 1])) for _ in range(12)]
    restored = envs.restore(snapshot)
    assert counts(restored)[0] >= 1
    for expected in future:
        for one, other in zip(expected[:4], envs.step(np.array([2, 1, 1]))[:4], strict=True):
            assert np.array_equal(one, other)


def test_one_row_branches_into_others() -> None:
    envs = make(3, world={"jitter": 0.5, "limit": 1000})
    envs.reset(seed=0)
    for _ in range(4):
        envs.step(np.array([0, 1, 2]))
    snapshot = envs.snapshot()
    observation = envs.restore(snapshot, rows=[0, 1], source=[2, 2])
    assert len(set(counts(observation))) == 1
    for _ in range(10):
        observation, *_ = envs.step(np.array([1, 1, 1]))
    assert len(set(counts(observation))) == 1
    with pytest.raises(ValueError, match="beyond the 3 rows"):
        envs.restore(snapshot, rows=[0], source=[3])


def test_a_snapshot_is_not_changed_by_later_steps() -> None:
    envs = make(2, world={"limit": 1000})
    envs.reset(seed=0)
    snapshot = envs.snapshot()
    envs.step(np.array([2, 2]))
    envs.reset()
    assert snapshot.rows.state.count.tolist() == [0, 0]
    assert snapshot.rows.ages.tolist() == [0, 0]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_non_finite_row_ends_with_an_error_and_leaves_the_others_running(mode: AutoresetMode) -> None:
    envs = make(3, world={"broken_at": 4}, autoreset_mode=mode)
    envs.reset(seed=0)
    envs.step(np.array([0, 2, 1]))
    observation, rewards, terminated, truncated, infos = envs.step(np.array([0, 2, 1]))
    same_step = mode is AutoresetMode.SAME_STEP
    assert counts(observation) == [0, 0 if same_step else 2, 2]
    assert rewards.tolist() == [0, 0, 1]
    assert terminated.tolist() == [False, False, False]
    assert truncated.tolist() == [False, True, False]
    errors = infos["final_info"] if same_step else infos
    assert errors["_error"].tolist() == [False, True, False]
    assert "NaN or infinity at imagined step 2" in errors["error"][1]
    if mode is AutoresetMode.DISABLED:
        envs.reset(options={"reset_mask": truncated})
    observation, *_ = envs.step(np.array([1, 1, 1]))
    assert counts(observation)[0::2] == [1, 3]
    assert np.isfinite(observation).all()


def test_returned_arrays_are_nobodys_buffers() -> None:
    for obs_type in ("rgb", "latent", "tokens"):
        envs = make(2, obs_type=obs_type, world={"limit": 50})
        first, _ = envs.reset(seed=0)
        kept = first.copy()
        first[:] = 99
        second, *rest = envs.step(np.array([1, 1]))
        assert not np.shares_memory(first, second)
        third, *_ = envs.step(np.array([0, 0]))
        for part in rest[:3]:
            part[:] = 1
        assert not (third == 99).any()
        assert kept.shape == third.shape


def test_continuous_actions() -> None:
    envs = DreamVectorEnv(2, checkpoint=point_checkpoint(), obs_type="latent")
    assert envs.single_action_space == gym.spaces.Box(-1, 1, (2,), np.float32)
    start, _ = envs.reset(seed=0)
    observation, *_ = envs.step(np.array([[1, 0], [0, -1]], dtype=np.float32))
    assert np.allclose(observation - start, [[0.1, 0], [0, -0.1]], atol=0.006)
    with pytest.raises(ValueError, match=r"1\.5"):
        envs.step(np.array([[1.5, 0], [0, 0]], dtype=np.float32))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_envs": 0}, "num_envs must be a whole number, at least 1, not 0"),
        ({"num_envs": 2.5}, "not 2.5"),
        ({"horizon": 0}, "horizon must be a whole number of steps, at least 1, not 0"),
        ({"obs_type": "pixels"}, "obs_type must be one of 'rgb', 'latent', 'tokens', not 'pixels'"),
        ({"output": "jax"}, "output must be one of 'numpy', 'torch', not 'jax'"),
        ({"render_mode": "human"}, "not 'human'"),
        ({"temperature": -1.0}, "not -1.0"),
        ({"autoreset_mode": "sometimes"}, "sometimes"),
        ({"device": "nowhere"}, "device='nowhere' cannot be used here"),
    ],
)
def test_bad_arguments_are_named(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make(**kwargs)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.array([0, 1]), "2"),
        (np.array([0, 1, 3]), "3"),
        (np.array([0, -1, 1]), "-1"),
        (np.array([0.0, 1.0, 1.0]), "float"),
        (np.array([[0], [1], [1]]), "3, 1"),
    ],
)
def test_bad_actions_are_named(actions: Any, message: str) -> None:
    envs = make(3)
    envs.reset(seed=0)
    with pytest.raises((ValueError, TypeError), match=message):
        envs.step(actions)


def test_everything_asks_for_a_reset_first() -> None:
    envs = make(2, render_mode="rgb_array")
    for call in (lambda: envs.step(np.array([0, 0])), envs.render, envs.snapshot):
        with pytest.raises(ResetNeeded, match="call reset"):
            call()
    with pytest.raises(ResetNeeded, match="without a reset_mask"):
        envs.reset(options={"reset_mask": np.array([True, False])})


@pytest.mark.parametrize("mask", [[True, False], np.array([1, 0]), np.array([True]), np.array([False, False])])
def test_bad_reset_masks_are_refused(mask: Any) -> None:
    envs = make(2)
    envs.reset(seed=0)
    with pytest.raises((TypeError, ValueError), match="reset_mask"):
        envs.reset(options={"reset_mask": mask})
