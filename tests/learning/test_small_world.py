"""Learning: jointly fitted on a small deterministic world, each family dreams what its simulator does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.fidelity import measure
from dreamenvs.fitting.fit import Fit
from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig, KLObjective
from dreamenvs.types import DiscreteActions, WorldSpec
from tests.small import CONFIGS

SPEC = WorldSpec(world="Block", observation_shape=(3, 8, 32), actions=DiscreteActions(count=3))
FAST = JointOptimization(tokenizer_rate=3e-3, dynamics_rate=3e-3, clip=100.0, rows=16, length=12, warmup=20)


def block_episode(seed: int, steps: int = 40) -> Episode:
    """A block on a line of eight places goes left, stays or goes right; the left wall rewards, the right one costs."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, 3, steps)
    places = [int(rng.integers(8))]
    for action in actions:
        places.append(int(np.clip(places[-1] + action - 1, 0, 7)))
    frames = np.zeros((steps + 1, 8, 8, 4, 3), np.uint8)
    frames[np.arange(steps + 1), :, places] = (255, 160, 40)
    after = np.array(places[1:])
    return Episode(
        observations=frames.reshape(steps + 1, 8, 32, 3),
        actions=actions,
        rewards=((after == 0).astype(np.float32) - (after == 7)).astype(np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
    )


def fit(config: Any, family: str, updates: int) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[family].build(replace(config, optimization=replace(FAST, updates=updates)), SPEC)
    losses = [metrics.loss for metrics in Fit(model, [block_episode(seed) for seed in range(60)]).run()]
    assert np.mean(losses[-20:]) < 0.2 * losses[0]
    return model.eval()


# A frame of this world holds about one nat of news, all of which the usual free bits would give away.
KL = FactorizedConfig(objective=KLObjective(free_bits=0.1))
STORM_KL = KLObjective(dynamics=0.5, free_bits=0.1)
CROSS_ENTROPY = FactorizedConfig(objective=CrossEntropyObjective())
CASES = {
    "STEPVQ": ("STEPVQ", replace(CONFIGS["STEPVQ"], prior=KL)),
    "STEPVQ-CE": ("STEPVQ", replace(CONFIGS["STEPVQ"], prior=CROSS_ENTROPY)),
    "STEPVQT": ("STEPVQT", replace(CONFIGS["STEPVQT"], prior=KL)),
    "CB": ("CB", CONFIGS["CB"]),
    "CBT": ("CBT", CONFIGS["CBT"]),
    "STORM": ("STORM", replace(CONFIGS["STORM"], prior=replace(CONFIGS["STORM"].prior, objective=STORM_KL))),
}


@pytest.mark.parametrize("case", list(CASES))
def test_the_dream_is_the_world(case: str) -> None:
    family, config = CASES[case]
    model = fit(config, family, 300)
    held_out = [block_episode(seed) for seed in range(1000, 1010)]
    result = measure(model, held_out, np.random.default_rng(0), horizon=5)
    assert result.psnr > max(result.copy_psnr_by_step) + 6
    assert result.all_events.rewards.model.recall > 0.9
    assert result.all_events.rewards.model.precision > 0.9
