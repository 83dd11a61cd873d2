"""Stale tokens: what the dynamics see while they learn to do without a part of a frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_level import make_stale
from dreamenvs.models.two_stage import TwoStageOptimization
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig
from dreamenvs.types import Segment
from tests.small import CONFIGS, DISCRETE, random_segment


def counting(rows: int, steps: int, tokens: int) -> Tensor:
    """Tokens that say in which step they are."""
    return torch.arange(steps)[None, :, None].expand(rows, steps, tokens).contiguous()


def build(stale: float) -> Any:
    prior = FactorizedConfig(objective=CrossEntropyObjective())
    config = replace(CONFIGS["STEPVQ"], prior=prior, optimization=TwoStageOptimization(stale=stale))
    torch.manual_seed(0)
    return FAMILIES["STEPVQ"].build(config, DISCRETE)


def token_segment(model: Any) -> Segment:
    segment = random_segment()
    tokens = model.tokenizer.encode(segment.observations.flatten(0, 1)).unflatten(0, segment.actions.shape)
    return segment._replace(observations=tokens)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_about_half_of_the_tokens_of_a_share_of_the_frames_are_a_step_old(share: float) -> None:
    torch.manual_seed(0)
    tokens = counting(400, 9, 64)
    ages = tokens - make_stale(tokens, share)
    assert not ages[:, 0].any()  # before the first frame there was none
    assert set(ages.unique().tolist()) <= {0, 1}
    frames = ages[:, 1:].any(-1)
    assert frames.double().mean().item() == pytest.approx(share, abs=0.03)
    if share:
        assert ages[:, 1:][frames].double().mean().item() == pytest.approx(0.5, abs=0.01)


def test_only_what_is_seen_in_training_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(stale=0.5)
    segment = token_segment(model)
    embedded: list[Tensor] = []
    predicted: list[tuple[Tensor, Tensor]] = []
    embed, loss = model.tokenizer.embed, model.prior.loss
    monkeypatch.setattr(model.tokenizer, "embed", lambda tokens: [embedded.append(tokens), embed(tokens)][1])
    monkeypatch.setattr(
        model.prior, "loss", lambda *args: [predicted.append((args[1].tokens, args[3])), loss(*args)][1]
    )
    model.train().token_loss(segment)
    model.eval().token_loss(segment)
    tokens = segment.observations
    assert not torch.equal(embedded[0], tokens.flatten(0, 1))
    assert torch.equal(embedded[1], tokens.flatten(0, 1))
    for seen, (target, past) in zip(embedded, predicted, strict=True):
        assert torch.equal(target, tokens[:, 1:].flatten(0, 1))
        frames = seen.view_as(tokens)[:, :-1]
        before = torch.cat([frames[:, :1], frames[:, :-1]], 1)
        assert torch.equal(past, torch.stack([before, frames], 2).flatten(0, 1))


def test_a_wrong_share_is_named() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        TwoStageOptimization(stale=1.5)
