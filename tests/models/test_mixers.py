"""Mixers: every kind takes every kind of action, and lets it through."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dreamenvs.config import from_json, to_json
from dreamenvs.models.actions import ActionEncoder, sample_actions
from dreamenvs.models.mixers import (
    AttentionMixerConfig,
    CrossAttentionMixerConfig,
    MixerConfig,
    StateMixerConfig,
    UnmixedConfig,
    build_mixer,
)
from dreamenvs.models.storm import StormConfig
from dreamenvs.nn.distributions import one_hot
from dreamenvs.types import ContinuousActions, DiscreteActions
from tests.rounding import rows_agree

pytestmark = pytest.mark.portable
TOKENS, CLASSES, WIDTH = 8, 6, 32
CONFIGS: dict[str, MixerConfig] = {
    "state": StateMixerConfig(),
    "attention": AttentionMixerConfig(units=16, heads=2),
    "cross-attention": CrossAttentionMixerConfig(units=16, heads=2),
    "unmixed": UnmixedConfig(),
}
ACTIONS = {
    "discrete": DiscreteActions(count=4),
    "continuous": ContinuousActions(low=(-2.0, 0.0), high=(2.0, 1.0)),
    "one-number": ContinuousActions(low=(-1.0,), high=(1.0,)),
}
every_mixer = pytest.mark.parametrize("kind", list(CONFIGS))
every_action = pytest.mark.parametrize("actions", list(ACTIONS))


def build(kind: str, actions: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    width = ActionEncoder(ACTIONS[actions]).width
    return build_mixer(CONFIGS[kind], TOKENS, TOKENS * CLASSES, width, WIDTH).to(dtype)


def random_inputs(actions: str, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """One-hot latents and encoded actions."""
    generator = torch.Generator().manual_seed(seed)
    latent = one_hot(torch.randint(CLASSES, (rows, TOKENS), generator=generator), CLASSES).flatten(1)
    return latent, ActionEncoder(ACTIONS[actions])(sample_actions(ACTIONS[actions], rows, generator))


@every_mixer
@every_action
def test_shapes_and_gradients(kind: str, actions: str) -> None:
    mixer = build(kind, actions)
    latent, encoded = (part.clone().requires_grad_() for part in random_inputs(actions, 5))
    inputs = mixer(latent, encoded)
    assert inputs.shape == (5, WIDTH)
    (inputs * torch.linspace(-1, 1, WIDTH)).square().sum().backward()
    for name, tensor in [("latent", latent), ("actions", encoded), *mixer.named_parameters()]:
        # With one number to choose from, the choice is made, and nothing can be learned about it.
        idle = (kind, actions, name) == ("cross-attention", "one-number", "attention.ask.weight")
        assert tensor.grad is not None
        assert bool(tensor.grad.any()) != idle, name


@every_mixer
@every_action
def test_the_action_and_every_token_reach_the_inputs(kind: str, actions: str) -> None:
    mixer = build(kind, actions)
    latent, encoded = random_inputs(actions, 6)
    others = ActionEncoder(ACTIONS[actions])(
        (torch.arange(6) + 1) % 4 if actions == "discrete" else sample_actions(ACTIONS[actions], 6)
    )
    with torch.no_grad():
        inputs = mixer(latent, encoded)
        differs = (encoded != others).any(-1)
        assert differs.any()
        change = (mixer(latent, others) - inputs).abs().amax(-1)
        assert torch.equal(change > 1e-3, differs)
        for token in range(TOKENS):
            changed = latent.view(6, TOKENS, CLASSES).clone()
            changed[:, token] = changed[:, token].roll(1, -1)
            assert ((mixer(changed.flatten(1), encoded) - inputs).abs().amax(-1) > 1e-3).all()


@every_mixer
@every_action
def test_inference_gives_what_training_does(kind: str, actions: str) -> None:
    mixer = build(kind, actions, torch.float64)
    latent, encoded = random_inputs(actions, 20)
    trained = mixer(latent.double(), encoded).detach()
    with torch.no_grad():
        torch.testing.assert_close(mixer(latent.double(), encoded), trained, rtol=1e-12, atol=1e-12)


@every_mixer
@every_action
def test_a_row_has_the_same_bits_in_a_batch_of_any_size(kind: str, actions: str, threads: int) -> None:
    mixer = build(kind, actions)
    latent, encoded = random_inputs(actions, 100)
    torch.set_num_threads(threads)
    with torch.inference_mode():
        expected = mixer(latent, encoded)
        for rows in (1, 2, 8, 9, 16, 33, 64):
            assert rows_agree(mixer(latent[:rows], encoded[:rows]), expected[:rows])
            assert rows_agree(mixer(latent[-rows:], encoded[-rows:]), expected[-rows:])


@every_mixer
def test_a_row_has_the_same_bits_at_the_papers_sizes(kind: str, threads: int) -> None:
    torch.manual_seed(0)
    chosen = type(CONFIGS[kind])()
    mixer = build_mixer(chosen, 32, 1024, 18, 512)
    latent = one_hot(torch.randint(32, (100, 32)), 32).flatten(1)
    encoded = one_hot(torch.randint(18, (100,)), 18)
    torch.set_num_threads(threads)
    with torch.inference_mode():
        expected = mixer(latent, encoded)
        for rows in (1, 8, 12, 64):
            assert rows_agree(mixer(latent[:rows], encoded[:rows]), expected[:rows])


def test_the_state_mixer_is_table_11() -> None:
    mixer = build("state", "discrete", torch.float64)
    latent, encoded = (part.double() for part in random_inputs("discrete", 5))

    def layer_norm(vector: Tensor, norm: Any) -> Tensor:
        centred = vector - vector.mean()
        return centred / (centred.square().mean() + 1e-5).sqrt() * norm.weight + norm.bias

    for norm in (mixer.enter_norm, mixer.leave_norm):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    with torch.no_grad():
        for row, inputs in enumerate(mixer(latent, encoded)):
            entered = mixer.enter.weight @ torch.cat([latent[row], encoded[row]])
            raised = layer_norm(entered, mixer.enter_norm).clamp(min=0)
            expected = layer_norm(mixer.leave.weight @ raised, mixer.leave_norm)
            torch.testing.assert_close(inputs, expected, rtol=1e-10, atol=1e-10)


def test_unmixed_means_side_by_side() -> None:
    mixer = build("unmixed", "continuous")
    one, other = random_inputs("continuous", 4), random_inputs("continuous", 4, seed=1)
    with torch.no_grad():
        inputs = mixer(*one)
        assert torch.equal(mixer(one[0], other[1])[:, :24], inputs[:, :24])
        assert torch.equal(mixer(other[0], one[1])[:, 24:], inputs[:, 24:])


def test_cross_attention_asks_each_number_of_the_action() -> None:
    """What a token gets depends on the token, not on the action alone."""
    mixer = build("cross-attention", "continuous")
    _, encoded = random_inputs("continuous", 1)
    tokens = torch.randn(1, 2, 16)
    with torch.no_grad():
        numbers = torch.addcmul(mixer.origins, encoded[..., None], mixer.directions)
        mixer.attention.norm = torch.nn.Identity()
        got = mixer.attention(tokens, numbers) - tokens
    assert (got[0, 0] - got[0, 1]).abs().max() > 1e-3


@pytest.mark.parametrize("bad", [{"units": 10, "heads": 4}, {"units": 8, "heads": 0}])
@pytest.mark.parametrize("config", [AttentionMixerConfig, CrossAttentionMixerConfig])
def test_heads_that_do_not_fit_are_named(config: Any, bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"not {bad['units']} and {bad['heads']}"):
        config(**bad)


def test_a_share_of_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="share is between 0 and 1, not 0"):
        UnmixedConfig(share=0)


@every_mixer
def test_a_family_takes_every_mixer(kind: str) -> None:
    config = StormConfig(mixer=CONFIGS[kind])
    assert from_json(StormConfig, to_json(config)) == config
