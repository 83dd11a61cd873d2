"""Which preset is taken, from what the frames show."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dreamenvs.data.episode import Episode
from dreamenvs.models import FAMILIES
from dreamenvs.presets.choice import choose_preset
from dreamenvs.presets.world_models import model_config
from dreamenvs.types import DiscreteActions, WorldSpec

COLOURS = np.array([(0, 0, 0), (250, 20, 20), (20, 250, 20), (20, 20, 250)], np.uint8)


def episode(observations: NDArray[np.uint8]) -> Episode:
    steps = len(observations) - 1
    return Episode(
        observations=observations,
        actions=np.zeros(steps, np.int64),
        rewards=np.zeros(steps, np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
    )


def cells(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Cells of 4 × 4 pixels, each of one of four colours."""
    return COLOURS[rng.integers(0, 4, (40, 8, 8))].repeat(4, 1).repeat(4, 2)


def sprites(rng: np.random.Generator) -> NDArray[np.uint8]:
    """One of 200 patches of 8 × 8 pixels at every place: too many for 32 patches of 4 × 4."""
    patches = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 3), dtype=np.uint8)
    chosen = patches[rng.integers(0, 200, (40, 4, 4))]
    return chosen.transpose(0, 1, 3, 2, 4, 5).reshape(40, 32, 32, 3)


def noise(rng: np.random.Generator) -> NDArray[np.uint8]:
    return rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("family", "draw", "preset"),
    [
        ("GRID", cells, "small"),
        ("GRID", sprites, "patches"),
        ("GRID", noise, "vq"),
        ("STEPVQ", cells, "cells"),
        ("STEPVQ", sprites, "small"),
        ("STORM", cells, "small"),
    ],
)
def test_the_preset_suits_the_frames(family: str, draw: object, preset: str) -> None:
    rng = np.random.default_rng(1)
    assert choose_preset(family, [episode(draw(rng)) for _ in range(4)]) == preset  # type: ignore[operator]


@pytest.mark.parametrize("preset", ["small", "patches", "vq"])
def test_every_preset_of_grid_is_built(preset: str) -> None:
    frame = (3, 32, 32)
    spec = WorldSpec(world="Any", observation_shape=frame, actions=DiscreteActions(count=3))
    model = FAMILIES["GRID"].build(model_config("GRID", preset, frame), spec)
    stages = [stage.name for stage in model.stages()]
    assert stages == (["tokenizer", "dynamics"] if preset == "vq" else ["dynamics"])
