"""The families: their paper sizes, their checkpoints, and how they are built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dreamenvs.checkpoints.world_model import load_checkpoint, save_checkpoint
from dreamenvs.config import from_json, to_json
from dreamenvs.models import FAMILIES
from dreamenvs.types import DiscreteActions, WorldSpec
from tests.small import CONFIGS, CONTINUOUS, DISCRETE, build_small, random_segment

SPEC = WorldSpec(world="Pong", observation_shape=(3, 64, 64), actions=DiscreteActions(count=6))


def paper_counts(family: str, side: int) -> int:
    spec = WorldSpec(world="Pong", observation_shape=(3, side, side), actions=DiscreteActions(count=6))
    with torch.device("meta"):
        model = FAMILIES[family].build(FAMILIES[family].paper, spec)
    return model.tokenizer.bottleneck_size + sum(parameter.numel() for parameter in model.prior.parameters())


def test_the_papers_headline_parameter_counts() -> None:
    assert paper_counts("STEPVQ", 64) == 2_175_616
    assert paper_counts("CB", 64) == 8_919_552
    assert paper_counts("STEPVQT", 64) == 2_175_616
    assert paper_counts("CBT", 64) == 8_919_552


def test_the_counts_at_96_by_96() -> None:
    # 144 tokens for 64: the head grows by 80·64 outputs of 512 weights and a bias each; the codebook stays.
    assert paper_counts("STEPVQ", 96) == 2_175_616 + 80 * 64 * 513
    # 36 positions for 16: both linear layers of the bottleneck grow by 20·256 inputs or outputs.
    assert paper_counts("CB", 96) == 8_919_552 + 20 * 256 * 1024 * 2 + 20 * 256


@pytest.mark.parametrize("family", list(FAMILIES))
def test_configs_go_through_json(family: str) -> None:
    for config in (FAMILIES[family].paper, CONFIGS[family]):
        assert from_json(FAMILIES[family].config, to_json(config)) == config


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_checkpoints_give_the_same_dream_back(family: str, spec: WorldSpec, tmp_path: Path) -> None:
    model, contexts = build_small(family, spec), random_segment(spec)
    path = save_checkpoint(tmp_path / "dream", model, contexts, family=family, config=CONFIGS[family], card={})
    loaded = load_checkpoint(path)
    assert loaded.model.spec == spec
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[name])  # type: ignore[attr-defined]
    with torch.no_grad():
        one, other = (each.features(each.observe(contexts)) for each in (model, loaded.model))
    assert torch.equal(one, other)


def test_building_on_the_meta_device_stays_light() -> None:
    """Loading outlines a model on `meta` first; arithmetic there makes torch import hundreds of modules."""
    code = """
import sys, torch
from dreamenvs.models import FAMILIES
from dreamenvs.types import DiscreteActions, WorldSpec
spec = WorldSpec(world="Pong", observation_shape=(3, 64, 64), actions=DiscreteActions(count=6))
before = len(sys.modules)
for family in FAMILIES.values():
    with torch.device("meta"):
        family.build(family.paper, spec)
print(len(sys.modules) - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 100


@pytest.mark.parametrize("shape", [(3, 96, 96), (1, 64, 32), (7, 24, 40)])
def test_any_frame_that_the_strides_divide(shape: tuple[int, int, int]) -> None:
    spec = WorldSpec(world="Odd", observation_shape=shape, actions=DiscreteActions(count=2))
    for family in FAMILIES:
        model = build_small(family, spec)
        with torch.no_grad():
            state = model.observe(random_segment(spec, rows=2, steps=2))
            assert model.decode(state).shape == (2, *shape)


def test_a_frame_that_the_strides_do_not_divide_is_named() -> None:
    spec = WorldSpec(world="Odd", observation_shape=(3, 65, 64), actions=DiscreteActions(count=2))
    with pytest.raises(ValueError, match="65"):
        build_small("STEPVQ", spec)
