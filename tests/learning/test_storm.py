"""Learning: STORM and GIT-STORM overfit eight segments, all of it at once, and dream them back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dreamenvs.evaluation.fidelity import measure
from dreamenvs.fitting.fit import Fit
from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.models.storm import StormConfig
from dreamenvs.priors.factorized import KLObjective
from tests.learning.test_small_world import SPEC, block_episode
from tests.small import CONFIGS

EPISODES = [block_episode(seed, steps=11) for seed in range(8)]
FAST = JointOptimization(tokenizer_rate=3e-3, dynamics_rate=3e-3, rows=8, length=12, updates=300, warmup=10, decay=0.1)


@pytest.mark.parametrize("family", ["STORM", "GITSTORM"])
def test_eight_segments_are_learned_by_heart(family: str) -> None:
    torch.manual_seed(0)
    small: StormConfig = CONFIGS[family]
    config = replace(
        small,
        sequence=replace(small.sequence, dropout=0.0, window=12),
        prior=replace(small.prior, objective=KLObjective(dynamics=0.5, free_bits=0.1)),
        head=replace(small.head, units=64),
        optimization=FAST,
    )
    model = FAMILIES[family].build(config, SPEC)
    for _ in Fit(model, EPISODES).run():
        pass
    result = measure(model.eval(), EPISODES, np.random.default_rng(0), horizon=5, context=2)
    assert result.psnr > max(result.copy_psnr_by_step) + 6
    assert result.one_step_events.rewards.model.f1 == 1.0
