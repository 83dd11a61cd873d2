"""Distributions against loops in plain Python floats, straight from their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from dreamenvs.nn import distributions

pytestmark = pytest.mark.portable


def naive_softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def naive_two_hot(value: float) -> list[float]:
    bins = [-20 + 40 * index / 254 for index in range(255)]
    target = min(max(math.copysign(math.log1p(abs(value)), value), -20.0), 20.0)
    weights = [0.0] * 255
    for index in range(254):
        if bins[index] <= target <= bins[index + 1] + 1e-12:
            share = (target - bins[index]) / (bins[index + 1] - bins[index])
            weights[index], weights[index + 1] = 1 - share, share
            return weights
    raise AssertionError(value)


VALUES = [-1e12, -1e6, -21.0, -1.0, -0.3, 0.0, 1e-3, 0.5, 1.0, 7.0, 1234.5, 4e8, 1e12]


def test_two_hot() -> None:
    expected = torch.tensor([naive_two_hot(value) for value in VALUES], dtype=torch.float64)
    torch.testing.assert_close(distributions.two_hot(torch.tensor(VALUES, dtype=torch.float64)), expected)


def test_two_hot_loss_is_the_cross_entropy_with_two_hot() -> None:
    logits = torch.randn(len(VALUES), 255, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = [
        -sum(w * math.log(p) for w, p in zip(naive_two_hot(value), naive_softmax(row), strict=True))
        for value, row in zip(VALUES, logits.tolist(), strict=True)
    ]
    found = distributions.two_hot_loss(logits, torch.tensor(VALUES, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_two_hot_mean_is_symexp_of_the_mean_bin() -> None:
    logits = torch.randn(5, 255, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = []
    for row in logits.tolist():
        mean = sum(p * (-20 + 40 * index / 254) for index, p in enumerate(naive_softmax(row)))
        expected.append(math.copysign(math.expm1(abs(mean)), mean))
    torch.testing.assert_close(distributions.two_hot_mean(logits), torch.tensor(expected, dtype=torch.float64))


def test_kl() -> None:
    logits = torch.randn(2, 3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 3
    found = distributions.kl(logits[0], logits[1])
    for n in range(3):
        for k in range(4):
            p, q = naive_softmax(logits[0, n, k].tolist()), naive_softmax(logits[1, n, k].tolist())
            assert found[n, k].item() == pytest.approx(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_unimix(share: float) -> None:
    logits = torch.tensor([[3.0, -200.0, 0.5, 1.0]], dtype=torch.float64)
    expected = [(1 - share) * p + share / 4 for p in naive_softmax(logits[0].tolist())]
    assert distributions.unimix(logits, share)[0].exp().tolist() == pytest.approx(expected)
