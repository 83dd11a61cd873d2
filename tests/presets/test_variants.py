"""Variants of presets: each changes the one part that a paper compares."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_token import NoFrameTokenConfig
from dreamenvs.priors.factorized import CrossEntropyObjective, KLObjective
from dreamenvs.types import DiscreteActions, WorldSpec

SPEC = WorldSpec(world="Cells", observation_shape=(3, 40, 40), actions=DiscreteActions(count=3))


def vary(family: str, variant: str | None, preset: str = "small") -> Any:
    return import_module("dreamenvs.presets.variants").vary(
        import_module("dreamenvs.presets.world_models").model_config(family, preset), variant
    )


@pytest.mark.parametrize("family", ["STEPVQ", "STEPVQT", "CB", "CBT"])
def test_kl_and_cross_entropy_differ_in_the_objective_alone(family: str) -> None:
    kl, ce, usual = (vary(family, variant) for variant in ("kl", "ce", None))
    assert isinstance(kl.prior.objective, KLObjective)
    assert isinstance(ce.prior.objective, CrossEntropyObjective)
    same = replace(ce.prior, objective=kl.prior.objective)
    assert replace(ce, prior=same) == kl
    for config in (kl, ce):
        (stage,) = FAMILIES[family].build(config, SPEC).stages()
        assert stage.name == "world_model"
        assert getattr(config.tokenizer, "revival", 0.0) == 0.0  # or codes would change hands while others learn them
        same = replace(config, tokenizer=usual.tokenizer, prior=usual.prior, optimization=usual.optimization)
        assert same == usual


def test_only_delta_iris_can_do_without_frames() -> None:
    assert isinstance(vary("DeltaIRIS", "no-i-tokens").frame_token, NoFrameTokenConfig)
    FAMILIES["DeltaIRIS"].build(vary("DeltaIRIS", "no-i-tokens"), SPEC)
    with pytest.raises(SystemExit, match="no other family has I-tokens"):
        vary("IRIS", "no-i-tokens")
    with pytest.raises(SystemExit, match="the variant kl is for STEP-VQ"):
        vary("REM", "kl")
    with pytest.raises(SystemExit, match="there are the variants kl, ce, no-i-tokens, not 'none'"):
        vary("REM", "none")


def test_a_share_of_the_updates_is_made() -> None:
    with_updates = import_module("dreamenvs.presets.variants").with_updates
    turns = with_updates(vary("STEPVQ", None), {"tokenizer": None, "dynamics": 7}, 0.1).optimization
    assert (turns.tokenizer.updates, turns.dynamics.updates) == (150, 7)
    assert with_updates(vary("STORM", None), {}, 1e-9).optimization.updates == 1
    assert with_updates(vary("STORM", None), {"joint": None}) == vary("STORM", None)
    with pytest.raises(SystemExit, match="--update-share is 0; it is above 0"):
        with_updates(vary("STORM", None), {}, 0)


def test_batches_of_the_dynamics() -> None:
    with_batches = import_module("dreamenvs.presets.variants").with_batches
    turns, usual = with_batches(vary("STEPVQ", None), 3, 5).optimization, vary("STEPVQ", None).optimization
    assert (turns.dynamics.rows, turns.dynamics.length) == (3, 5)
    assert turns.tokenizer == usual.tokenizer
    joint = with_batches(vary("STORM", None), None, 5).optimization
    assert (joint.rows, joint.length) == (vary("STORM", None).optimization.rows, 5)
    with pytest.raises(SystemExit, match="--batch-rows is 0"):
        with_batches(vary("STORM", None), 0, None)
