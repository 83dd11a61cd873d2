"""STORM's Transformer and its loss against loops straight from the tables of GIT-STORM, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dreamenvs.nn.distributions import unimix
from dreamenvs.priors.factorized import FactorizedConfig, FactorizedPrior, KLObjective
from dreamenvs.protocols import Posterior
from dreamenvs.sequence.transformer import Transformer, TransformerConfig

pytestmark = pytest.mark.portable
WIDTH, HEADS, WINDOW = 12, 2, 5


def naive_layer_norm(vector: Tensor, norm: Any) -> Tensor:
    mean = sum(float(x) for x in vector) / len(vector)
    variance = sum((float(x) - mean) ** 2 for x in vector) / len(vector)
    return (vector - mean) / math.sqrt(variance + 1e-6) * norm.weight + norm.bias


def naive_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """(T, head_dim) of one head: each position sees the last WINDOW, with itself."""
    outputs = torch.zeros_like(values)
    for t in range(len(queries)):
        seen = range(max(0, t - WINDOW + 1), t + 1)
        weights = [math.exp(float(queries[t] @ keys[s]) / math.sqrt(queries.shape[1])) for s in seen]
        for s, weight in zip(seen, weights, strict=True):
            outputs[t] += weight / sum(weights) * values[s]
    return outputs


def naive_block(block: Any, inputs: Tensor) -> Tensor:
    """Table 13 on one row (T, D): x1, MHSA, Linear1, residual, LN1 (x2), FFN, residual, LN2."""
    queries, keys, values = (inputs @ block.qkv.weight.T).split(WIDTH, -1)
    size = WIDTH // HEADS
    heads = [slice(start, start + size) for start in range(0, WIDTH, size)]
    attended = torch.cat([naive_attention(queries[:, part], keys[:, part], values[:, part]) for part in heads], -1)
    outputs = []
    for x1, found in zip(inputs, attended, strict=True):
        x2 = naive_layer_norm(block.out.weight @ found + x1, block.attention_norm)
        raised = (block.up.weight @ x2 + block.up.bias).clamp(min=0)
        outputs.append(naive_layer_norm(block.down.weight @ raised + block.down.bias + x2, block.feed_forward_norm))
    return torch.stack(outputs)


def naive_transformer(model: Any, inputs: Tensor, first: int = 0) -> Tensor:
    """Tables 12 and 13 on one row (T, D) whose first input has the position `first`."""
    table, norm = model.positions.table.weight, model.positions.norm
    hidden = torch.stack([naive_layer_norm(x + table[(first + t) % WINDOW], norm) for t, x in enumerate(inputs)])
    for block in model.blocks:
        hidden = naive_block(block, hidden)
    return hidden


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(
        width=WIDTH, heads=HEADS, layers=2, feed_forward=20, window=WINDOW, layer="post", positions="learned"
    )
    model = Transformer(config).double()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=0.5)
    return model.eval()


@torch.no_grad()
def test_the_whole_transformer(model: Transformer) -> None:
    inputs = torch.randn(1, 13, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(model(inputs)[0], naive_transformer(model, inputs[0]), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_steps_past_the_window(model: Transformer) -> None:
    """Rows of ages 2, 9 and 0 side by side: each gives what all its inputs give without a cache."""
    inputs = torch.randn(3, 21, WIDTH, dtype=torch.float64)
    ages, caches = (2, 9, 0), []
    for row, age in enumerate(ages):
        cache = model.initial_cache(1)
        caches.append(model.extend(inputs[row : row + 1, :age], cache)[1] if age else cache)
    cache = type(caches[0])(*(torch.cat(parts) for parts in zip(*caches, strict=True)))
    outputs = []
    for t in range(12):
        hidden, cache = model.step(torch.stack([inputs[row, age + t] for row, age in enumerate(ages)]), cache)
        outputs.append(hidden)
    for row, age in enumerate(ages):
        expected = naive_transformer(model, inputs[row, : age + 12])[age:]
        torch.testing.assert_close(torch.stack(outputs, 1)[row], expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_training_begins_rows_anywhere_on_the_circle(model: Transformer) -> None:
    model.train()
    for block in model.blocks:
        block.dropout = 0.0  # type: ignore[assignment]
    row = torch.randn(1, 7, WIDTH, dtype=torch.float64)
    outputs = model(row.expand(60, -1, -1))
    expected = [naive_transformer(model, row[0], first) for first in range(WINDOW)]
    begun = []
    for output in outputs:
        distances = [float((output - each).abs().max()) for each in expected]
        begun.append(min(range(WINDOW), key=distances.__getitem__))
        assert distances[begun[-1]] < 1e-10
    assert set(begun) == set(range(WINDOW))


def naive_kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("spread", [0.05, 2.0])
def test_the_divergences(spread: float) -> None:
    """0.5 dyn + 0.1 rep: summed over categoricals, averaged over batch and time, and only then at least one nat."""
    torch.manual_seed(0)
    config = FactorizedConfig(objective=KLObjective(dynamics=0.5), unimix=0.01, norm=False)
    prior = FactorizedPrior(config, WIDTH, 3, 4).double()
    prior.project.weight.data.mul_(spread)
    hidden = torch.randn(10, WIDTH, dtype=torch.float64)
    posterior = unimix(spread * torch.randn(10, 3, 4, dtype=torch.float64))
    tokens = posterior.argmax(-1)
    target = Posterior(tokens, posterior, torch.zeros(10, 12), torch.zeros(10))
    valid = torch.arange(10) % 3 != 1
    terms = prior.loss(hidden, target, valid, tokens[:, None].expand(-1, 2, -1))

    sums = []
    for n in range(10):
        if not valid[n]:
            continue
        outputs = (prior.project.weight @ hidden[n] + prior.project.bias).detach().view(3, 4)
        divergence = 0.0
        for k in range(3):
            scores = [math.exp(float(x)) for x in outputs[k]]
            q = [0.99 * score / sum(scores) + 0.01 / 4 for score in scores]
            divergence += naive_kl([math.exp(float(x)) for x in posterior[n, k]], q)
        sums.append(divergence)
    mean = sum(sums) / len(sums)
    assert (mean < 1) == (spread < 1)
    assert terms.parts["dynamics"].item() == pytest.approx(mean, rel=1e-9)
    assert terms.parts["representation"].item() == pytest.approx(mean, rel=1e-9)
    assert terms.total.item() == pytest.approx(0.6 * max(1.0, mean), rel=1e-9)
