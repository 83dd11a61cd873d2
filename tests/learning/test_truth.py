"""Truth: in a world with one player and sticky actions, frames that are drawn jointly show one player."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dreamenvs.data.episode import Episode
from dreamenvs.data.segments import start_contexts
from dreamenvs.dream import Dream, observe_contexts
from dreamenvs.fitting.fit import Fit
from dreamenvs.models import FAMILIES
from dreamenvs.models.actions import sample_actions
from dreamenvs.models.grid import GridConfig
from dreamenvs.models.outcomes import TransitionConfig
from dreamenvs.models.two_stage import DynamicsOptimization, StageConfig
from dreamenvs.priors.raster import RasterConfig
from dreamenvs.sequence.conv_gru import ConvGRUConfig
from dreamenvs.tokenizers.patches import PatchesConfig
from dreamenvs.types import DiscreteActions, WorldSpec

GRID = (5, 5)
STICKY = 0.1
MOVES = np.array([(0, 0), (0, -1), (-1, 0), (0, 1), (1, 0)])
SPEC = WorldSpec(world="Player", observation_shape=(3, 20, 20), actions=DiscreteActions(count=5))


def player_episode(seed: int, steps: int = 60) -> Episode:
    """A player on 5 × 5 places goes where it is told, or once in ten times where it was told before."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, 5, steps)
    place, last, places = rng.integers(0, 5, 2), 0, []
    places.append(place)
    for action in actions:
        last = last if rng.random() < STICKY else int(action)
        place = np.clip(place + MOVES[last], 0, 4)
        places.append(place)
    rows, columns = np.array(places).T
    frames = np.zeros((steps + 1, 5, 4, 5, 4, 3), np.uint8)
    frames[np.arange(steps + 1), rows, :, columns] = (250, 80, 60)
    corner = (rows[1:] == 0) & (columns[1:] == 0)
    return Episode(
        observations=frames.reshape(steps + 1, 20, 20, 3),
        actions=actions,
        rewards=corner.astype(np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
    )


EPISODES = [player_episode(seed) for seed in range(700)]


def fit(joint: bool) -> Any:
    torch.manual_seed(0)
    stage = StageConfig(rows=16, length=12, updates=800, rate=1e-2, clip=10.0, warmup=30, decay=0.05)
    config = GridConfig(
        tokenizer=PatchesConfig(codes=4, code_width=6),
        sequence=ConvGRUConfig(channels=32),
        prior=RasterConfig(joint=joint, channels=32, code_width=6),
        outcomes=TransitionConfig(channels=12, code_width=6, units=16),
        optimization=DynamicsOptimization(dynamics=stage, stale=0.1),
    )
    model = FAMILIES["GRID"].build(config, SPEC)
    for _ in Fit(model, EPISODES).run():
        pass
    return model.eval()


@torch.inference_mode()
def broken_frames(model: Any, rows: int = 64, steps: int = 157) -> float:
    """The share of 10,000 imagined frames, over dreams of at most 40 steps, that do not show one player."""
    contexts = start_contexts(EPISODES, 64, 4, np.random.default_rng(0), padded=True)
    dream: Dream[Any] = Dream(model, observe_contexts(model, contexts), num_rows=rows, horizon=40)
    dream.reset(list(range(rows)))
    player = int(torch.bincount(dream.observation("tokens").flatten()).argmin())
    generator, broken = torch.Generator().manual_seed(0), 0
    for _ in range(steps):
        moved = dream.step(sample_actions(SPEC.actions, rows, generator))
        broken += int(((dream.observation("tokens") == player).sum(1) != 1).sum())
        if moved.truncated.any():
            dream.reset_rows(moved.truncated.nonzero()[:, 0])
    return broken / (rows * steps)


@pytest.mark.slow
def test_one_player_stays_one() -> None:
    assert broken_frames(fit(joint=True)) < 0.005
    assert broken_frames(fit(joint=False)) > 0.10
