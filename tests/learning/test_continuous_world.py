"""Learning: a world that continuous actions push about is dreamed with what each of them does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.fidelity import measure
from dreamenvs.fitting.fit import Fit
from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.types import ContinuousActions, WorldSpec
from tests.small import CONFIGS

ACTIONS = ContinuousActions(low=(-4.0, 0.0), high=(2.0, 0.5))
SPEC = WorldSpec(world="Push", observation_shape=(3, 8, 32), actions=ACTIONS)
FAST = JointOptimization(tokenizer_rate=3e-3, dynamics_rate=3e-3, clip=100.0, rows=16, length=12, warmup=20)


def push_episode(seed: int, steps: int = 40) -> Episode:
    """The first dimension, compared with the middle of its bounds, moves a block left or right; the second is reward.

    Every step has a reward, and only the action tells it.
    """
    rng = np.random.default_rng(seed)
    actions = rng.uniform(ACTIONS.low, ACTIONS.high, (steps, 2)).astype(np.float32)
    places = [int(rng.integers(8))]
    for push in actions[:, 0]:
        places.append(int(np.clip(places[-1] + (1 if push > -1 else -1), 0, 7)))
    frames = np.zeros((steps + 1, 8, 8, 4, 3), np.uint8)
    frames[np.arange(steps + 1), :, places] = (255, 160, 40)
    return Episode(
        observations=frames.reshape(steps + 1, 8, 32, 3),
        actions=actions,
        rewards=4 * actions[:, 1],
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
    )


def test_the_dream_does_what_the_actions_say() -> None:
    torch.manual_seed(0)
    model = FAMILIES["CBT"].build(replace(CONFIGS["CBT"], optimization=replace(FAST, updates=300)), SPEC)
    for _ in Fit(model, [push_episode(seed) for seed in range(60)]).run():
        pass
    held_out = [push_episode(seed) for seed in range(1000, 1010)]
    result = measure(model.eval(), held_out, np.random.default_rng(0), horizon=5)
    errors = result.one_step_reward_errors
    assert errors.mean == pytest.approx(0.5, abs=0.05)  # uniform from 0 to 2, guessed to be 1
    assert errors.model < 0.3 * errors.mean
    assert result.reward_errors[4].model < 0.3 * result.reward_errors[4].copy
    assert result.one_step_tokens.accuracy > result.one_step_tokens.copy_accuracy + 0.05
    assert result.psnr > max(result.copy_psnr_by_step) + 3
