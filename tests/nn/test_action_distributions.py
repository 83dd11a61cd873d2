"""Distributions that actions are drawn from, against torch's own and against sums."""

from __future__ import annotations

import math

import pytest
import torch

from dreamenvs.nn.action_distributions import Categorical, TruncatedNormal
from dreamenvs.random import Noise


def noise(rows: int, temperature: float = 1.0) -> Noise:
    return Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64), temperature)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_categorical(share: float) -> None:
    logits = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64)
    probabilities = (1 - share) * logits.softmax(-1) + share / 3
    expected = torch.distributions.Categorical(probabilities)
    choice, classes = Categorical(3, share), torch.arange(3)
    torch.testing.assert_close(choice.log_prob(logits.expand(3, 3), classes), expected.log_prob(classes))
    torch.testing.assert_close(choice.entropy(logits), expected.entropy())
    drawn = choice.sample(logits.expand(20_000, 3), noise(20_000), 0).bincount(minlength=3) / 20_000
    torch.testing.assert_close(drawn, probabilities.float(), atol=0.015, rtol=0)
    assert choice.sample(logits.expand(50, 3), noise(50, 0.0), 0).unique().tolist() == [0]
    assert choice.mode(logits) == 0


@pytest.mark.parametrize("outputs", [(0.0, 0.0), (3.0, 5.0), (-0.5, -9.0), (9.0, -4.0)])
def test_truncated_normal(outputs: tuple[float, float]) -> None:
    choice = TruncatedNormal(1)
    given = torch.tensor(outputs, dtype=torch.float64)
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[:, None]
    logs = choice.log_prob(given.expand(len(grid), 2), grid)
    mass = torch.trapezoid(logs.exp(), grid[:, 0])
    assert mass.item() == pytest.approx(1.0, abs=1e-6)
    assert choice.entropy(given).item() == pytest.approx(
        -torch.trapezoid(logs.exp() * logs, grid[:, 0]).item(), abs=1e-5
    )
    mean = math.tanh(outputs[0])
    assert choice.mode(given).item() == pytest.approx(mean)
    assert logs.argmax().item() == pytest.approx((mean + 1) * 100_000, abs=1)
    drawn = choice.sample(given.float().expand(20_000, 2), noise(20_000), 0)
    assert drawn.min() >= -1
    assert drawn.max() <= 1
    for level in (0.1, 0.5, 0.9):
        point = torch.quantile(drawn, level).double()
        below = torch.trapezoid(torch.where(grid[:, 0] <= point, logs.exp(), 0.0), grid[:, 0])
        assert below.item() == pytest.approx(level, abs=0.02)
    assert torch.equal(choice.sample(given[None], noise(1, 0.0), 0), choice.mode(given)[None])


def test_sizes_are_summed() -> None:
    outputs = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = torch.rand(4, 3, dtype=torch.float64) * 2 - 1
    single = TruncatedNormal(1)
    pairs = [outputs[:, [place, place + 3]] for place in range(3)]
    logs = sum(single.log_prob(pair, values[:, place : place + 1]) for place, pair in enumerate(pairs))
    torch.testing.assert_close(TruncatedNormal(3).log_prob(outputs, values), logs)
    torch.testing.assert_close(TruncatedNormal(3).entropy(outputs), sum(map(single.entropy, pairs)))
