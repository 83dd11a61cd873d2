from __future__ import annotations

import pytest
import torch

from dreamenvs.tokenizers.ema_codebook import Quantizer

pytestmark = pytest.mark.portable


def test_gradients_pass_straight_through_and_the_codes_have_none() -> None:
    quantizer = Quantizer(4, 2, 0.99, 0.0)
    vectors = torch.randn(6, 2, requires_grad=True)
    quantized = quantizer(vectors)
    slopes = torch.randn(6, 2)
    # After the codes have moved, and still against the codes of the forward pass.
    gradient = torch.autograd.grad((quantized.vectors * slopes).sum(), vectors, retain_graph=True)[0]
    assert torch.equal(gradient, slopes)
    pull = torch.autograd.grad(quantized.distances.sum(), vectors)[0]
    torch.testing.assert_close(pull, 2 * (vectors - quantized.vectors))
    assert not list(quantizer.parameters())


def test_codes_start_at_distinct_vectors_of_the_first_batch() -> None:
    quantizer = Quantizer(4, 2, 1.0, 0.0).double()  # a decay of 1 keeps them where they start
    corners = torch.tensor([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    background = corners[:1].repeat(500, 1)
    quantizer(torch.cat([background, corners]))
    assert torch.cdist(corners, quantizer.codebook).amin(-1).max() < 1e-3


def test_a_batch_of_equal_vectors_can_start_the_codes() -> None:
    quantizer = Quantizer(4, 2, 0.99, 0.0)
    assert quantizer(torch.ones(10, 2)).distances.max() < 1e-6
    assert quantizer.codebook.isfinite().all()


def test_nothing_moves_in_eval() -> None:
    quantizer = Quantizer(4, 2, 0.9, 1.0)
    quantizer(torch.randn(10, 2))
    quantizer.eval()
    before = {name: value.clone() for name, value in quantizer.state_dict().items()}
    quantizer(torch.randn(10, 2))
    assert all(torch.equal(value, before[name]) for name, value in quantizer.state_dict().items())


def test_revival_brings_unused_codes_back_to_the_data() -> None:
    def fit(revival: float) -> torch.Tensor:
        torch.manual_seed(0)
        quantizer = Quantizer(8, 2, 0.5, revival)
        quantizer(torch.randn(64, 2) * 0.01)
        for _ in range(40):
            quantizer(torch.randn(64, 2) + 100)
        return (quantizer.codebook - 100).norm(dim=-1)

    assert fit(0.0).max() > 50
    assert fit(0.5).max() < 10
    assert torch.equal(fit(0.5), fit(0.5))
