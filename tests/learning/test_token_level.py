"""Learning: each token-level family overfits eight segments, and dreams them back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dreamenvs.evaluation.fidelity import measure
from dreamenvs.fitting.fit import Fit
from dreamenvs.models import FAMILIES
from dreamenvs.models.heads import HeadConfig
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from tests.learning.test_small_world import SPEC, block_episode
from tests.small import CONFIGS

FAST = TwoStageOptimization(
    tokenizer=StageConfig(rows=32, length=1, updates=250, rate=3e-3, warmup=10),
    dynamics=StageConfig(rows=8, length=12, updates=300, rate=5e-3, warmup=10),
)


EPISODES = [block_episode(seed, steps=11) for seed in range(8)]


def fitted(family: str, config: Any) -> Any:
    torch.manual_seed(0)
    sequence = replace(config.sequence, dropout=0.0)  # which is there to keep a model from learning by heart
    config = replace(config, sequence=sequence, head=HeadConfig(units=64), optimization=FAST)
    model = FAMILIES[family].build(config, SPEC)
    for _ in Fit(model, EPISODES).run():
        pass
    return model.eval()


@pytest.mark.parametrize("family", ["IRIS", "REM"])
def test_eight_segments_are_learned_by_heart(family: str) -> None:
    model = fitted(family, CONFIGS[family])
    result = measure(model, EPISODES, np.random.default_rng(0), horizon=5, context=2)
    assert result.one_step_tokens.accuracy > 0.95
    assert result.one_step_events.rewards.model.f1 == 1.0
