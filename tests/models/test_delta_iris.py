"""Δ-IRIS: its sizes, its ablation, and what its state means past the window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dreamenvs import tree
from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_token import NoFrameTokenConfig
from dreamenvs.random import Noise
from dreamenvs.types import DiscreteActions, WorldSpec
from tests.small import CONFIGS, DISCRETE, build_small, random_segment

CRAFTER = WorldSpec(world="Crafter", observation_shape=(3, 64, 64), actions=DiscreteActions(count=17))
ABLATION = replace(CONFIGS["DeltaIRIS"], frame_token=NoFrameTokenConfig())


def build(ablation: bool = False, dtype: torch.dtype = torch.float64) -> Any:
    if not ablation:
        return build_small("DeltaIRIS", dtype=dtype)
    torch.manual_seed(0)
    model = FAMILIES["DeltaIRIS"].build(ABLATION, DISCRETE).to(dtype).eval()
    torch.nn.init.normal_(model.prior.project.weight, std=0.4)
    return model


def noise(rows: int, step: int) -> Noise:
    return Noise(torch.arange(rows), torch.full((rows,), step))


def actions(rows: int, step: int) -> torch.Tensor:
    return torch.randint(4, (rows,), generator=torch.Generator().manual_seed(step))


def first(context: Any, steps: int) -> Any:
    return tree.map(lambda leaf: leaf[:, :steps], context)


def test_the_papers_parameter_counts() -> None:
    with torch.device("meta"):
        model = FAMILIES["DeltaIRIS"].build(FAMILIES["DeltaIRIS"].paper, CRAFTER)

    def count(module: Any) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    assert count(model.tokenizer) == 5_409_611
    assert count(model.frame_token) == 447_656
    # Rotary positions have no table of 126·512; the heads have an RMSNorm each; one logit says what two would.
    assert count(model) - count(model.tokenizer) == 11_948_457 - 126 * 512 + 2 * 512 - 513
    assert model.num_tokens == 4
    assert model.vocabulary == 1024


@torch.no_grad()
@pytest.mark.parametrize("ablation", [False, True])
def test_cached_is_uncached_past_the_window_for_rows_of_all_ages(ablation: bool) -> None:
    """Four blocks fit into the window; rows begin with one to six frames and dream on for eight."""
    model, context = build(ablation), random_segment(rows=6, steps=6)
    starts = [model.observe(tree.take_rows(first(context, 1 + row), torch.tensor([row]))) for row in range(6)]
    state = tree.concatenate(starts)
    seen: list[list[Any]] = [
        [first(context, 1 + row).observations[row, t : t + 1] for t in range(1 + row)] for row in range(6)
    ]
    acted = [[context.actions[row, t : t + 1] for t in range(row)] for row in range(6)]
    hidden = []
    for step in range(8):
        chosen = actions(6, step)
        state, _ = model.step(state, chosen, noise(6, step))
        hidden.append(state.hidden)
        for row in range(6):
            acted[row].append(chosen[row : row + 1])
            seen[row].append((model.decode(state)[row : row + 1], state.tokens[row : row + 1]))
    for row in range(6):
        assert torch.allclose(uncached(model, seen[row], acted[row]), hidden[-1][row], rtol=1e-9, atol=1e-9)


def uncached(model: Any, seen: list[Any], acted: list[Any]) -> torch.Tensor:
    """The hidden after the last action, from the whole past at once; what was imagined comes with its tokens."""
    inputs, previous = [torch.zeros(1, 1, 32, dtype=torch.float64)], None
    for frame, action in zip([*seen, None], [None, *acted], strict=False):
        if action is not None:
            inputs += [model.frame_token(previous), model.action_input(model.encode_actions(action))[:, None]]
            if frame is None:
                break
            real = isinstance(frame, torch.Tensor)
            encoded = model.encode_actions(action).double()
            tokens = model.tokenizer.encode(previous, encoded, frame) if real else frame[1]
            inputs.append(model.embed_tokens(tokens))
        previous = frame if isinstance(frame, torch.Tensor) else frame[0]
    hidden = model.sequence(torch.cat(inputs, 1))
    last_action = -1 if inputs[-1].shape[1] == 1 else -1 - model.num_tokens
    result: torch.Tensor = hidden[0, last_action]
    return result


@torch.no_grad()
def test_a_row_keeps_its_past_when_the_window_of_another_is_full() -> None:
    model, context = build(), random_segment(rows=8, steps=4)
    young = model.observe(first(context, 3))
    old = model.observe(context)
    for step in range(9):
        old, _ = model.step(old, actions(8, step), noise(8, step))
    rows = torch.tensor([0, 2, 5])
    mixed = tree.put_rows(old, rows, tree.take_rows(young, rows))
    alone = tree.clone(young)
    for step in range(3):
        mixed, _ = model.step(mixed, actions(8, step), noise(8, step))
        alone, _ = model.step(alone, actions(8, step), noise(8, step))
        assert torch.equal(mixed.tokens[rows], alone.tokens[rows])
        assert torch.allclose(mixed.hidden[rows], alone.hidden[rows], rtol=1e-10, atol=1e-10)
    forgetful = model.observe(first(tree.map(lambda leaf: leaf[:, 2:], context), 1))
    forgetful, _ = model.step(forgetful, actions(8, 0), noise(8, 0))
    remembering, _ = model.step(young, actions(8, 0), noise(8, 0))
    assert not torch.allclose(forgetful.hidden, remembering.hidden, atol=1e-3)  # the past matters to begin with


@torch.no_grad()
@pytest.mark.parametrize("ablation", [False, True])
def test_agreement_of_both_kinds(ablation: bool) -> None:
    model, context = build(ablation), random_segment(steps=7)
    whole = model.observe(context)
    updated = model.update(model.observe(first(context, 6)), context.actions[:, 5], context.observations[:, 6])
    for one, other in zip(whole[:4], updated[:4], strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=1e-10, atol=1e-10)
    assert model.features(whole).shape == (8, model.num_features)


def test_the_ablation_learns_with_every_parameter() -> None:
    model = build(ablation=True, dtype=torch.float32).train()
    for head in (model.outcomes.reward, model.outcomes.termination):
        torch.nn.init.normal_(head.output.weight, std=0.3)
    model.dynamics_loss(random_segment()).total.backward()
    known = {id(parameter) for parameter in model.tokenizer.parameters()}
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) if id(parameter) in known else bool(parameter.grad.any()), name


@torch.no_grad()
def test_the_next_frame_is_decoded_from_the_eight_bits_that_are_shown() -> None:
    model = build()
    state = model.observe(random_segment())
    for step in range(3):
        chosen = actions(8, step)
        following, _ = model.step(state, chosen, noise(8, step))
        latent = model.tokenizer.embed(following.tokens)
        pixels = model.tokenizer.decode(model.decode(state), model.encode_actions(chosen).double(), latent)
        assert torch.equal(model.decode(following), (pixels * 255).round().clamp(0, 255).to(torch.uint8))
        state = following


@torch.no_grad()
def test_tokens_are_those_of_the_last_transition() -> None:
    model, context = build(), random_segment(steps=3)
    assert not model.tokens(model.observe(first(context, 1))).any()
    encoded = model.encode_actions(context.actions[:, 1]).double()
    expected = model.tokenizer.encode(context.observations[:, 1], encoded, context.observations[:, 2])
    assert torch.equal(model.tokens(model.observe(context)), expected)


@torch.no_grad()
def test_rows_dream_the_same_in_batches_of_any_size() -> None:
    model, context = build(dtype=torch.float32), random_segment(rows=20)
    futures = []
    for rows in (8, 12, 20):
        state = model.observe(tree.take_rows(context, torch.arange(rows)))
        for step in range(6):
            state, outcome = model.step(state, actions(20, step)[:rows], noise(rows, step))
        futures.append((state.frame[:8], state.tokens[:8], state.hidden[:8], outcome.rewards[:8]))
    for other in futures[1:]:
        assert all(torch.equal(one, two) for one, two in zip(futures[0], other, strict=True))


@torch.no_grad()
def test_terminations_are_drawn_from_the_model_alone() -> None:
    model = build(dtype=torch.float32)
    model.outcomes.termination.output.weight.zero_()
    state = model.observe(random_segment())
    for log_odds, low, high in ((-30.0, 0.0, 0.0), (30.0, 1.0, 1.0), (-1.1, 0.15, 0.35)):
        model.outcomes.termination.output.bias.fill_(log_odds)
        ended = []
        for step in range(40):  # the window is full after four blocks, and nothing happens
            state, outcome = model.step(state, actions(8, step), noise(8, step))
            ended.append(outcome.terminated)
        assert low <= torch.stack(ended).double().mean() <= high


def test_single_frames_are_no_transitions() -> None:
    with pytest.raises(ValueError, match="two frames"):
        build().tokenizer_loss(random_segment(steps=1))
