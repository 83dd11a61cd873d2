"""Outcomes of transitions: rewards that the data hold, read from what met where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dreamenvs.models.outcomes import TransitionConfig, TransitionOutcomes
from dreamenvs.nn.canvas import Layout
from dreamenvs.random import Noise

pytestmark = pytest.mark.portable
GRID = (4, 5)
PLACES = 20
WIDTH = 2 * PLACES


def build(**choices: Any) -> TransitionOutcomes:
    torch.manual_seed(0)
    config = TransitionConfig(**({"channels": 12, "code_width": 6, "units": 24} | choices))
    return TransitionOutcomes(config, Layout(grid=GRID, memory_channels=2).canvas(WIDTH, config.channels), 4)


def noise(rows: int, temperature: float = 1.0) -> Noise:
    return Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64), temperature)


def meetings(rows: int, steps: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, T, K) in which a 1 and a 2 move about: 3 is shown, and 0.5 paid, where the 2 goes where the 1 was."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randint(PLACES, (rows, steps), generator=generator) for _ in range(2))
    hits = torch.zeros(rows, steps, dtype=torch.bool)
    chased = torch.rand(rows, steps - 1, generator=generator) < 0.3
    second[:, 1:] = torch.where(chased, first[:, :-1], second[:, 1:])
    hits[:, :-1] = second[:, 1:] == first[:, :-1]
    tokens = torch.zeros(rows, steps, PLACES, dtype=torch.int64)
    tokens.scatter_(2, first[..., None], 1)
    tokens.scatter_(2, second[..., None], 2)
    return tokens, 0.5 * hits.float(), hits


def test_what_meets_in_one_place_is_paid() -> None:
    """The hidden vector says nothing here: both are read from the frames before and after."""
    outcomes = build()
    tokens, rewards, ends = meetings(128, 6, seed=0)
    outcomes.grow(rewards.flatten())
    hidden, valid = torch.zeros(128, 6, WIDTH), torch.ones(128, 6, dtype=torch.bool)
    optimizer = torch.optim.AdamW(outcomes.parameters(), lr=1e-2)
    for _ in range(250):
        terms = outcomes.loss(hidden, tokens, rewards, ends, valid)
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
    tokens, rewards, ends = meetings(400, 2, seed=1)
    with torch.no_grad():
        found = outcomes.eval().sample(torch.zeros(400, WIDTH), tokens[:, 0], tokens[:, 1], noise(400, 0.0), 0)
    assert (found.rewards == rewards[:, 0]).double().mean() > 0.97
    assert (found.terminated == ends[:, 0]).double().mean() > 0.97


@torch.no_grad()
def test_rewards_are_drawn_from_the_values_of_the_data() -> None:
    outcomes = build()
    outcomes.grow(torch.tensor([0.0, -1.0, 7.5]))
    torch.nn.init.normal_(outcomes.reward.weight)
    tokens = torch.zeros(2000, PLACES, dtype=torch.int64)
    drawn = outcomes.sample(torch.zeros(2000, WIDTH), tokens, tokens, noise(2000), 0)
    logits, _ = outcomes._logits(torch.zeros(1, WIDTH), tokens[:1], tokens[:1])
    expected = logits[0, :3].softmax(-1)
    shares = torch.stack([(drawn.rewards == value).double().mean() for value in (0.0, -1.0, 7.5)])
    assert shares.sum() == 1
    assert torch.allclose(shares, expected[[0, 1, 2]].double(), atol=0.05)


def test_values_stay_where_they_are_until_there_are_too_many() -> None:
    outcomes = build(classes=3)
    outcomes.grow(torch.tensor([0.0, 2.0]))
    outcomes.grow(torch.tensor([2.0, -1.0]))
    assert outcomes.values.tolist() == [0.0, 2.0, -1.0]
    assert outcomes._few
    outcomes.grow(torch.tensor([5.0, 6.0]))
    outcomes.grow(torch.tensor([7.0]))
    assert not outcomes._few
    assert outcomes.values.tolist() == [0.0, 2.0, -1.0]


@torch.no_grad()
def test_rewards_of_any_size_are_learned() -> None:
    outcomes = build(classes=3)
    outcomes.grow(torch.linspace(-3, 3, 50))
    tokens = torch.zeros(1, 40, PLACES, dtype=torch.int64)
    hidden, rewards = torch.zeros(1, 40, WIDTH), torch.full((1, 40), 2.3)
    optimizer = torch.optim.AdamW(outcomes.parameters(), lr=1e-2)
    for _ in range(60):
        with torch.enable_grad():
            terms = outcomes.loss(hidden, tokens, rewards, rewards > 9, torch.ones(1, 40, dtype=torch.bool))
            optimizer.zero_grad()
            terms.total.backward()
        optimizer.step()
    paid = outcomes.sample(hidden[0], tokens[0], tokens[0], noise(40), 0).rewards
    assert torch.allclose(paid, torch.tensor(2.3), atol=0.1)


@torch.no_grad()
def test_rewards_of_any_size_below_a_half_of_the_smallest_are_not_paid() -> None:
    outcomes = build(classes=2)
    outcomes.grow(torch.tensor([0.0, 0.8, 20.0]))
    tokens = torch.zeros(4, PLACES, dtype=torch.int64)
    torch.nn.init.zeros_(outcomes.reward.weight)
    for size, paid in ((0.3, False), (0.5, True)):
        bins = torch.linspace(-20, 20, 255)
        outcomes.reward.bias.copy_(-50 * (bins - torch.tensor(size).log1p()).abs())
        rewards = outcomes.sample(torch.zeros(4, WIDTH), tokens, tokens, noise(4), 0).rewards
        assert bool((rewards != 0).all()) is paid


@torch.no_grad()
def test_what_is_all_but_ruled_out_does_not_happen() -> None:
    outcomes = build(floor=0.1)
    outcomes.grow(torch.tensor([0.0, 1.0]))
    for layer in (outcomes.reward, outcomes.end):
        torch.nn.init.zeros_(layer.weight)
    tokens = torch.zeros(4000, PLACES, dtype=torch.int64)
    for share in (0.05, 0.2):
        log_odds = torch.tensor(share).logit()
        outcomes.end.bias.fill_(log_odds)
        outcomes.reward.bias[:2] = torch.tensor([0.0, float(log_odds)])
        found = outcomes.sample(torch.zeros(4000, WIDTH), tokens, tokens, noise(4000), 0)
        expected = share if share > 0.1 else 0.0
        assert float(found.terminated.double().mean()) == pytest.approx(expected, abs=0.03)
        assert float((found.rewards == 1).double().mean()) == pytest.approx(expected, abs=0.03)


def test_the_last_step_counts_where_its_frame_is_shown() -> None:
    """Of a segment's last place no outcome is learned: the frame after it is not there."""
    outcomes = build()
    tokens, rewards, ends = meetings(4, 5, seed=0)
    outcomes.grow(rewards.flatten())
    hidden, valid = torch.randn(4, 5, WIDTH), torch.ones(4, 5, dtype=torch.bool)
    valid[:, 4] = False
    whole = outcomes.loss(hidden, tokens, rewards, ends, valid)
    changed = tokens.clone()
    changed[:, 4] = 3
    assert outcomes.loss(hidden, changed, rewards, ends, valid).total != whole.total
    rewards[:, 4], ends[:, 4] = 9.0, True
    assert outcomes.loss(hidden, tokens, rewards, ends, valid).total == whole.total
