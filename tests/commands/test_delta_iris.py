"""Δ-IRIS in the training scripts: the size of its preset, a whole fit, and the pictures of a monitor."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import dreamenvs
from dreamenvs import tree
from dreamenvs.models import FAMILIES
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.types import DiscreteActions, WorldSpec
from dreamenvs.workflows import fitting
from tests.commands.test_fit import save_dots
from tests.small import CONFIGS, build_small, random_segment

TURN = StageConfig(rows=4, length=6, updates=3)
LITTLE = replace(CONFIGS["DeltaIRIS"], optimization=TwoStageOptimization(tokenizer=TURN, dynamics=TURN))


@pytest.fixture(autouse=True)
def _training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    registered, threads = dict(gym.registry), torch.get_num_threads()
    yield
    gym.registry.clear()
    gym.registry.update(registered)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("side", "actions"), [(40, 6), (64, 17)])
def test_the_small_preset_is_small(side: int, actions: int) -> None:
    from dreamenvs.presets.world_models import model_config

    spec = WorldSpec(world="Any", observation_shape=(3, side, side), actions=DiscreteActions(count=actions))
    with torch.device("meta"):
        model = FAMILIES["DeltaIRIS"].build(model_config("DeltaIRIS", "small"), spec)
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_200_000


def test_a_dream_is_fitted_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from dreamenvs.cli import fit as script

    monkeypatch.setattr(script, "model_config", lambda family, preset, frame=None: LITTLE)
    monkeypatch.setattr(fitting, "measure", partial(fitting.measure, starts=8, horizon=3))
    monkeypatch.setattr("dreamenvs.cli.fit_monitor.gemm_seconds", lambda: [1.0])
    save_dots(Path("data"))
    script.main(
        script.Args(family="deltairis", data=Path("data"), contexts=4, threads=1, out=Path("DeltaIRIS-Dots-v0"))
    )
    assert list(Path("runs/DeltaIRIS-Dots/pictures").glob("dynamics-*.png"))
    dream = dreamenvs.load("DeltaIRIS-Dots-v0")
    assert 0 <= dream.card["fidelity"]["one_step"]["model"]["token_accuracy"] <= 1
    env = gym.make("dreamenvs/DeltaIRIS-Dots-v0")
    assert env.reset(seed=0)[0].shape == env.step(1)[0].shape == (16, 16, 3)


@torch.no_grad()
def test_frames_are_restored_from_their_tokens() -> None:
    from dreamenvs.cli.fit_monitor import restore

    segment = tree.map(lambda leaf: leaf[:1], random_segment())
    model = build_small("DeltaIRIS")
    restored = restore(model, segment)
    assert torch.equal(restored[0], segment.observations[0, 0])  # nothing comes before it
    for step in range(1, 5):
        previous, following = segment.observations[:, step - 1], segment.observations[:, step]
        actions = model.encode_actions(segment.actions[:, step - 1])
        tokens = model.tokenizer.encode(previous, actions, following)
        pixels = model.tokenizer.decode(previous, actions, model.tokenizer.embed(tokens))
        assert torch.equal(restored[step], (pixels[0] * 255).round().clamp(0, 255).to(torch.uint8))
    plain = build_small("STEPVQ")
    alone = tree.map(lambda leaf: leaf[0][:, None], segment)
    assert torch.equal(restore(plain, segment), plain.decode(plain.observe(alone)))
