"""The stages that frame-level models declare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dreamenvs.models import FAMILIES
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.two_stage import TwoStageOptimization
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig, KLObjective
from tests.small import CONFIGS, DISCRETE, random_segment

TURNS = {
    family: replace(
        config, prior=FactorizedConfig(objective=CrossEntropyObjective()), optimization=TwoStageOptimization()
    )
    for family, config in CONFIGS.items()
    if isinstance(config, StepVQConfig)
}
every_family = pytest.mark.parametrize("family", list(TURNS))


def build(family: str) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[family].build(TURNS[family], DISCRETE).train()
    for head in (model.outcomes.reward, model.outcomes.termination):
        torch.nn.init.normal_(head.output.weight, std=0.3)
    return model


@every_family
def test_turns_teach_every_parameter_once(family: str) -> None:
    model = build(family)
    tokenizer, dynamics = model.stages()
    groups = [{id(each) for group in stage.groups for each in group.parameters} for stage in (tokenizer, dynamics)]
    assert not groups[0] & groups[1]
    assert groups[0] | groups[1] == {id(each) for each in model.parameters()}
    assert (tokenizer.rows, tokenizer.length, tokenizer.prepare) == (32, 1, None)
    assert (dynamics.rows, dynamics.length, dynamics.decay) == (32, 64, 0.1)
    segment = random_segment()
    tokenizer.loss(segment).total.backward()  # type: ignore[no-untyped-call]
    taught = {id(each) for each in model.parameters() if each.grad is not None and each.grad.any()}
    assert taught == groups[0]
    model.zero_grad()
    tokens = dynamics.prepare(segment.observations.flatten(0, 1)).unflatten(0, segment.rewards.shape)
    dynamics.loss(segment._replace(observations=tokens)).total.backward()  # type: ignore[no-untyped-call]
    taught = {id(each) for each in model.parameters() if each.grad is not None and each.grad.any()}
    assert taught == groups[1]


@every_family
def test_the_tokenizer_does_not_see_padding(family: str) -> None:
    segment = random_segment()
    segment.valid[:, 3:] = False
    other = segment._replace(observations=segment.observations.clone())
    other.observations[:, 3:] = 7
    losses = []
    for batch in (segment, other):
        model = build(family)
        torch.manual_seed(0)
        losses.append(model.tokenizer_loss(batch).total.item())
    assert losses[0] == losses[1]


def test_a_divergence_needs_a_posterior() -> None:
    with pytest.raises(ValueError, match="use CrossEntropyObjective or JointOptimization"):
        replace(TURNS["STEPVQ"], prior=FactorizedConfig(objective=KLObjective()))
