"""Environments over real networks of every family: determinism, batch independence, conformance."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.envs.conformance import check_vector_env
from dreamenvs.envs.single import DreamEnv
from dreamenvs.envs.vector import DreamVectorEnv
from dreamenvs.types import WorldSpec
from tests.small import CONFIGS, CONTINUOUS, DISCRETE, build_small, random_segment

pytestmark = pytest.mark.portable

families = pytest.mark.parametrize("family", list(CONFIGS))


def checkpoint(family: str, spec: WorldSpec = DISCRETE) -> Checkpoint:
    return Checkpoint(
        model=build_small(family, spec),
        contexts=random_segment(spec, rows=11),
        family=family,
        config=CONFIGS[family],
        card={},
        path=Path(family),
    )


def roll(envs: DreamVectorEnv, steps: int, seed: int = 7) -> np.ndarray:
    """Tokens of a walk in which row i always plays the same actions, whatever the number of rows."""
    observation, _ = envs.reset(seed=seed)
    walk = [observation]
    for step in range(steps):
        actions = (np.arange(envs.num_envs) + step) % 4
        walk.append(envs.step(actions)[0])
    return np.stack(walk, 1)


@families
def test_rows_do_not_depend_on_the_number_of_rows(family: str) -> None:
    world = checkpoint(family)
    wide = roll(DreamVectorEnv(64, checkpoint=world, obs_type="tokens", horizon=13), 40)
    for num_envs in (1, 2, 3, 8, 21):
        envs = DreamVectorEnv(num_envs, checkpoint=world, obs_type="tokens", horizon=13)
        assert np.array_equal(roll(envs, 40), wide[:num_envs])
    env = DreamEnv(checkpoint=world, obs_type="tokens", horizon=10**6)
    observation, _ = env.reset(seed=7 + 5)
    alone = [observation]
    for step in range(12):
        observation, _, terminated, _, _ = env.step((5 + step) % 4)
        alone.append(observation)
        if terminated:
            break
    assert np.array_equal(np.stack(alone), wide[5, : len(alone)])


@families
@pytest.mark.parametrize("obs_type", ["rgb", "latent"])
def test_pixels_and_features_are_equal_to_the_bit_too(family: str, obs_type: Any, frames_agree: Any) -> None:
    world = checkpoint(family)
    wide = roll(DreamVectorEnv(16, checkpoint=world, obs_type=obs_type), 20)
    for num_envs in (1, 3, 5):
        few = roll(DreamVectorEnv(num_envs, checkpoint=world, obs_type=obs_type), 20)
        assert frames_agree(torch.from_numpy(few), torch.from_numpy(wide[:num_envs]))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["STEPVQ", "CBT"])
def test_the_same_seed_is_bit_equal_over_a_thousand_steps(family: str) -> None:
    world = checkpoint(family)
    walks = [roll(DreamVectorEnv(2, checkpoint=world, obs_type="latent", horizon=300), 1000) for _ in range(2)]
    assert np.array_equal(*walks)
    assert not np.array_equal(walks[0][0], walks[0][1])


@families
@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_families_conform_in_every_mode(family: str, spec: WorldSpec) -> None:
    world = checkpoint(family, spec)
    for obs_type in ("rgb", "latent", "tokens"):
        kwargs: Any = {"checkpoint": world, "horizon": 4, "obs_type": obs_type}
        check_vector_env(partial(DreamVectorEnv, **kwargs), partial(DreamEnv, **kwargs), steps=10)  # two episodes end


@families
def test_a_branch_repeats_its_future_past_the_window(family: str) -> None:
    envs = DreamVectorEnv(9, checkpoint=checkpoint(family), obs_type="latent", horizon=10**6)
    roll(envs, 15)
    snapshot = envs.snapshot()
    futures = []
    for _ in range(2):
        futures.append(np.stack([envs.step(np.arange(9) % 4)[0] for _ in range(15)]))
        envs.restore(snapshot)
    assert np.array_equal(*futures)
    envs.restore(snapshot, rows=[0, 1], source=[8, 8])
    actions = np.arange(9) % 4
    actions[:2] = actions[8]
    branched = np.stack([envs.step(actions)[0] for _ in range(15)])
    assert np.array_equal(branched[:, 0], futures[0][:, 8])
    assert np.array_equal(branched[:, 1], futures[0][:, 8])


@families
def test_poisoned_weights_end_rows_and_reach_nobody(family: str) -> None:
    world = checkpoint(family)
    envs = DreamVectorEnv(4, checkpoint=world, obs_type="latent")
    envs.reset(seed=0)
    with torch.no_grad():
        list(world.model.outcomes.reward.parameters())[-1][0] = float("nan")  # type: ignore[attr-defined]
    observation, rewards, _, truncated, infos = envs.step(np.zeros(4, dtype=np.int64))
    assert truncated.all()
    assert np.isfinite(observation).all()
    assert (rewards == 0).all()
    assert infos["_error"].all()
