"""make_real: the dream's own view of a real environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import dreamenvs
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.envs.vector import DreamVectorEnv
from dreamenvs.types import Segment, WorldSpec
from dreamenvs.worlds.source import default_source, describe, make_source
from tests.small import CONFIGS, build_small, random_segment

SOURCE = default_source("MinAtar/Breakout-v1")
SPEC = describe(make_source(SOURCE), world="MinAtarBreakout", source=SOURCE)


def checkpoint(family: str = "STEPVQ", spec: WorldSpec = SPEC) -> Checkpoint:
    return Checkpoint(
        model=build_small(family, spec),
        contexts=random_segment(spec),
        family=family,
        config=CONFIGS[family],
        card={},
        path=Path(family),
    )


@pytest.mark.parametrize("obs_type", ["rgb", "latent", "tokens"])
def test_the_real_env_has_the_dreams_spaces(obs_type: Any) -> None:
    world = checkpoint()
    real = dreamenvs.make_real(world, obs_type=obs_type)
    dream = DreamVectorEnv(1, checkpoint=world, obs_type=obs_type)
    assert real.observation_space == dream.single_observation_space
    assert real.action_space == dream.single_action_space
    check_env(real, skip_render_check=True, skip_close_check=True)


@torch.no_grad()
@pytest.mark.parametrize("family", list(CONFIGS))
def test_the_model_sees_every_frame_and_action(family: str) -> None:
    world = checkpoint(family)
    frames_env, features_env = dreamenvs.make_real(world), dreamenvs.make_real(world, obs_type="latent")
    frame, _ = frames_env.reset(seed=3)
    frames, actions = [frame], [1, 2, 0, 2]
    features, _ = features_env.reset(seed=3)
    for action in actions:
        frames.append(frames_env.step(action)[0])
        features, *_ = features_env.step(action)
    steps = len(frames)
    segment = Segment(
        observations=torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)[None].repeat(8, 1, 1, 1, 1),
        actions=torch.tensor([[*actions, 0]]).repeat(8, 1),
        rewards=torch.zeros(8, steps),
        terminated=torch.zeros(8, steps, dtype=torch.bool),
        valid=torch.ones(8, steps, dtype=torch.bool),
    )
    expected = world.model.features(world.model.observe(segment))[0]
    assert np.allclose(features, expected.numpy(), atol=1e-4)


def test_a_reset_forgets_the_episode_before() -> None:
    env = dreamenvs.make_real(checkpoint(), obs_type="latent")
    first, _ = env.reset(seed=3)
    for _ in range(5):
        env.step(1)
    again, _ = env.reset(seed=3)
    assert np.array_equal(first, again)


def test_what_cannot_be_built_is_said() -> None:
    nowhere = WorldSpec(world="Nowhere", observation_shape=SPEC.observation_shape, actions=SPEC.actions)
    with pytest.raises(ValueError, match="does not say which real environment"):
        dreamenvs.make_real(checkpoint(spec=nowhere))
    with pytest.raises(ValueError, match="'pixels'"):
        dreamenvs.make_real(checkpoint(), obs_type="pixels")  # type: ignore[arg-type]


def test_wrappers_compose() -> None:
    env = gym.wrappers.TimeLimit(dreamenvs.make_real(checkpoint(), obs_type="tokens"), 3)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_real_rows_have_the_dreams_spaces_and_can_be_cut() -> None:
    world = checkpoint()
    envs = dreamenvs.make_real_vec(world, 3, max_episode_steps=2)
    assert envs.observation_space == DreamVectorEnv(3, checkpoint=world).observation_space
    frames, _ = envs.reset(seed=4)
    single, _ = dreamenvs.make_real(world).reset(seed=5)
    assert np.array_equal(frames[1], single)
    envs.step(np.zeros(3, np.int64))
    assert envs.step(np.zeros(3, np.int64))[3].all()
    with pytest.raises(ValueError, match="num_envs must be at least 1, not 0"):
        dreamenvs.make_real_vec(world, 0)


def test_a_wrong_action_leaves_the_real_env_as_it_was() -> None:
    world = checkpoint()
    env, other = (dreamenvs.make_real(world, obs_type="latent") for _ in range(2))
    env.reset(seed=3)
    other.reset(seed=3)
    with pytest.raises(ValueError, match="action 9"):
        env.step(9)
    assert np.array_equal(env.step(1)[0], other.step(1)[0])
