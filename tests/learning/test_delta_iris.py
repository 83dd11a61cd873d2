"""Learning: Δ-IRIS learns by heart what chance did in eight episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.one_step import predict_steps
from dreamenvs.fitting.fit import Fit
from dreamenvs.models import FAMILIES
from dreamenvs.models.heads import HeadConfig
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.types import DiscreteActions, WorldSpec
from tests.small import CONFIGS

SPEC = WorldSpec(world="Lamp", observation_shape=(3, 8, 32), actions=DiscreteActions(count=3))
FAST = TwoStageOptimization(
    tokenizer=StageConfig(rows=8, length=10, updates=120, rate=3e-3, clip=10.0, warmup=20),
    dynamics=StageConfig(rows=8, length=10, updates=250, rate=5e-3, clip=10.0, warmup=20),
)


def lamp_episode(seed: int, steps: int = 10) -> Episode:
    """A block on a line obeys its actions; beside it a lamp goes on and off by chance, and lit it rewards."""
    rng = np.random.default_rng(seed)
    actions, lit = rng.integers(0, 3, steps), rng.random(steps + 1) < 0.5
    places = [int(rng.integers(7))]
    for action in actions:
        places.append(int(np.clip(places[-1] + action - 1, 0, 6)))
    frames = np.zeros((steps + 1, 8, 8, 4, 3), np.uint8)
    frames[np.arange(steps + 1), :, places] = (255, 160, 40)
    frames[:, :, 7] = np.where(lit, 255, 0)[:, None, None, None]
    return Episode(
        observations=frames.reshape(steps + 1, 8, 32, 3),
        actions=actions,
        rewards=lit[:-1].astype(np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
    )


def fit(episodes: list[Episode], optimization: TwoStageOptimization) -> Any:
    torch.manual_seed(0)
    model = FAMILIES["DeltaIRIS"].build(
        replace(CONFIGS["DeltaIRIS"], head=HeadConfig(units=64), optimization=optimization), SPEC
    )
    for _ in Fit(model, episodes).run():
        pass
    return model.eval()


def test_eight_segments_are_learned_by_heart() -> None:
    episodes = [lamp_episode(seed) for seed in range(8)]
    model = fit(episodes, FAST)
    result = predict_steps(model, episodes, context=1, warmup=10, rows=8, device="cpu", progress=lambda count: None)
    # Steps come in order: the frames after the last actions, eight of them, are in no segment.
    assert result.accuracy[:-8].mean() > 0.95
    assert np.abs(result.rewards - result.real_rewards).max() < 0.2
    assert (result.histogram.sum(0) > 0).sum() >= 2  # the lamp is in the tokens
