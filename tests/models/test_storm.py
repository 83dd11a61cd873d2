"""STORM as an assembly: the paper's sizes and settings, where gradients go, and what a step costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dreamenvs.config import from_json, to_json
from dreamenvs.fitting.optimizer import NonFiniteLossError, Updater
from dreamenvs.models import FAMILIES
from dreamenvs.models.mixers import AttentionMixerConfig, CrossAttentionMixerConfig, UnmixedConfig
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.storm import StormConfig, build
from dreamenvs.models.two_stage import TwoStageOptimization
from dreamenvs.nn.flop_counting import operation_counter
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig
from dreamenvs.random import Noise
from dreamenvs.types import DiscreteActions, LossTerms, WorldSpec
from tests.small import CONFIGS, CONTINUOUS, DISCRETE, build_small, random_segment

ATARI = WorldSpec(world="Pong", observation_shape=(3, 64, 64), actions=DiscreteActions(count=18))
SMALL: StormConfig = CONFIGS["STORM"]


def count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_published_parameter_counts() -> None:
    with torch.device("meta"):
        model = build(StormConfig(), ATARI)
    tokenizer: Any = model.tokenizer
    assert count(tokenizer.encoder) == 690_624
    assert count(tokenizer.expand) + count(tokenizer.decoder) == 4_884_931
    assert count(tokenizer.contract) + count(model.prior) == 4_720_640
    assert count(model.mixer) + count(model.sequence) == 5_032_960
    assert count(model) == 16_513_155


def test_the_published_settings() -> None:
    (stage,) = build(StormConfig(), ATARI).stages()
    assert [group.learning_rate for group in stage.groups] == [1e-4, 1e-4]
    assert [group.weight_decay for group in stage.groups] == [0.0, 0.0]
    assert (stage.clip, stage.rows, stage.length, stage.warmup, stage.decay) == (1000.0, 16, 64, 0, 1.0)
    sequence = StormConfig().sequence
    assert (sequence.width, sequence.layers, sequence.heads, sequence.feed_forward) == (512, 2, 8, 1024)
    assert (sequence.window, sequence.dropout) == (64, 0.1)


@torch.inference_mode()
def test_a_step_costs_what_its_matrices_do() -> None:
    """At the paper's sizes, with a full window: 13.7 million operations, where encoding the window again takes 46."""
    torch.manual_seed(0)
    model: Any = build(StormConfig(), ATARI).eval()
    rows = 16
    inputs = torch.randn(rows, 64, 512)
    state = model.observe(random_segment(ATARI, rows=rows, steps=2))
    state = state._replace(cache=model.sequence.extend(inputs, state.cache)[1])
    with operation_counter() as counter:
        model.step(state, torch.zeros(rows, dtype=torch.int64), Noise(torch.arange(rows), torch.zeros(rows).long()))
    layer = 4 * 512 * 512 + 2 * 512 * 1024 + 2 * 64 * 512
    mixer, prior = (1024 + 18 + 512) * 512, 512 * 1024
    reward, termination = 2 * 512 * 512 + 512 * 255, 2 * 512 * 512
    assert counter.get_total_flops() / rows == 2 * (mixer + 2 * layer + prior + reward + termination)
    assert counter.get_total_flops() / rows < 16e6


def gradients(model: Any, loss: Any) -> set[str]:
    """The parts of a model that a loss teaches."""
    model.zero_grad()
    loss.backward()
    taught = (name for name, each in model.named_parameters() if each.grad is not None and each.grad.any())
    return {".".join(name.split(".")[:2]) if name.startswith("tokenizer") else name.split(".")[0] for name in taught}


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_the_encoder_learns_from_both_and_the_decoder_from_pixels_alone(spec: WorldSpec) -> None:
    model = build_small("STORM", spec).train()
    segment = random_segment(spec)
    frames = segment.observations.flatten(0, 1)
    posterior = model.tokenizer.posterior(frames)
    encoder = {"tokenizer.encoder", "tokenizer.contract"}
    assert gradients(model, model.dynamics_loss(posterior, segment).total) == {
        *encoder,
        *("mixer", "sequence", "prior", "outcomes"),
    }
    assert gradients(model, model.tokenizer_loss(segment).total) == {*encoder, "tokenizer.expand", "tokenizer.decoder"}


@torch.no_grad()
def test_pixels_follow_from_tokens_alone() -> None:
    model = build_small("STORM")
    state = model.observe(random_segment())
    other = state._replace(hidden=torch.randn_like(state.hidden))
    assert torch.equal(model.decode(state), model.decode(other))


def test_a_loss_that_is_not_finite_leaves_the_norms_as_they_were() -> None:
    model = build_small("STORM").train()
    (stage,) = model.stages()
    segment = random_segment()

    def spoiled(batch: Any) -> LossTerms:
        terms = model.loss(batch)
        return LossTerms(terms.total * torch.nan, terms.parts)

    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(NonFiniteLossError):
        Updater(replace(stage, loss=spoiled), tuple(model.buffers()))(segment, 0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


MIXERS = {
    "attention": AttentionMixerConfig(units=8, heads=2),
    "cross-attention": CrossAttentionMixerConfig(units=8, heads=2),
    "unmixed": UnmixedConfig(),
}


@pytest.mark.parametrize("kind", list(MIXERS))
@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_every_mixer_makes_a_world_model(kind: str, spec: WorldSpec) -> None:
    torch.manual_seed(0)
    model: Any = build(replace(SMALL, mixer=MIXERS[kind]), spec).double().eval()
    torch.nn.init.normal_(model.prior.project.weight, std=0.4)
    segment = random_segment(spec, steps=11)
    with torch.no_grad():
        whole = model.observe(segment)
        shorter = model.observe(type(segment)(*(leaf[:, :-1] for leaf in segment)))
        updated = model.update(shorter, segment.actions[:, -2], segment.observations[:, -1])
        torch.testing.assert_close(model.features(whole), model.features(updated), rtol=1e-10, atol=1e-10)
    model.train().loss(segment).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_in_turns_it_needs_cross_entropy() -> None:
    with pytest.raises(ValueError, match="use CrossEntropyObjective or JointOptimization"):
        replace(SMALL, optimization=TwoStageOptimization())
    prior = replace(SMALL.prior, objective=CrossEntropyObjective())
    model = build(replace(SMALL, prior=prior, optimization=TwoStageOptimization()), DISCRETE)
    assert [stage.name for stage in model.stages()] == ["tokenizer", "dynamics"]


def test_configs_saved_before_there_was_storm_still_load() -> None:
    """Files without the choices that STORM brought mean what they meant."""
    for family in ("CB", "CBT", "STEPVQT"):
        saved = to_json(FAMILIES[family].paper)
        for part, name in (
            ("sequence", "positions"),
            ("head", "activation"),
            ("prior", "norm"),
            ("optimization", "decay"),
        ):
            saved[part].pop(name, None)
        assert from_json(StepVQConfig, saved) == FAMILIES[family].paper
    assert FactorizedConfig().norm
