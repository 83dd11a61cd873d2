"""The quantiser against loops in float64, straight from equations 1 and 2 and the moving average of the codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dreamenvs.tokenizers.ema_codebook import Quantizer

pytestmark = pytest.mark.portable


def build(codes: int = 5, width: int = 3, decay: float = 0.9, revival: float = 0.0) -> Quantizer:
    generator = torch.Generator().manual_seed(0)
    quantizer = Quantizer(codes, width, decay, revival).double()
    quantizer.codebook.copy_(torch.randn(codes, width, generator=generator, dtype=torch.float64))
    quantizer.usage.copy_(torch.rand(codes, generator=generator, dtype=torch.float64) + 0.5)
    quantizer.sums.copy_(quantizer.codebook * quantizer.usage[:, None])
    return quantizer


def naive_distance(vector: Tensor, code: Tensor) -> float:
    return sum((a - b) ** 2 for a, b in zip(vector.tolist(), code.tolist(), strict=True))


def test_nearest_codes_soft_posterior_and_distances() -> None:
    quantizer = build().eval()
    vectors = torch.randn(11, 3, dtype=torch.float64)
    found = quantizer(vectors)
    for n, vector in enumerate(vectors):
        distances = torch.tensor([naive_distance(vector, code) for code in quantizer.codebook], dtype=torch.float64)
        assert found.tokens[n] == distances.argmin()
        assert found.distances[n].item() == pytest.approx(distances.min().item())
        torch.testing.assert_close(found.logits[n].softmax(-1), (-distances).exp() / (-distances).exp().sum())
        torch.testing.assert_close(found.vectors[n], quantizer.codebook[found.tokens[n]])
    assert torch.equal(quantizer.encode(vectors), found.tokens)


def test_the_soft_posterior_has_the_gradient_of_equation_2() -> None:
    quantizer = build().eval()
    vectors = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    slopes = torch.randn(4, 5, dtype=torch.float64)
    exact = -(vectors[:, None] - quantizer.codebook).square().sum(-1)
    expected = torch.autograd.grad((exact.softmax(-1) * slopes).sum(), vectors)[0]
    found = torch.autograd.grad((quantizer(vectors).logits.softmax(-1) * slopes).sum(), vectors)[0]
    torch.testing.assert_close(found, expected)


def test_codes_are_the_moving_average_of_their_vectors() -> None:
    quantizer = build()
    usage, sums = quantizer.usage.tolist(), quantizer.sums.clone()
    for _ in range(3):
        vectors = torch.randn(13, 3, dtype=torch.float64)
        before = quantizer.codebook.clone()
        quantizer(vectors)
        tokens = [
            min(range(5), key=lambda c, v=vector, b=before: naive_distance(v, b[c]))  # type: ignore[misc]
            for vector in vectors
        ]
        for code in range(5):
            mine = [vector for vector, token in zip(vectors, tokens, strict=True) if token == code]
            usage[code] = 0.9 * usage[code] + 0.1 * len(mine)
            sums[code] = 0.9 * sums[code] + 0.1 * sum(mine, torch.zeros(3, dtype=torch.float64))
        for code in range(5):
            smoothed = (usage[code] + 1e-5) / (sum(usage) + 5e-5) * sum(usage)
            torch.testing.assert_close(quantizer.codebook[code], sums[code] / smoothed)
