from __future__ import annotations

import torch
from torch import Tensor

from dreamenvs.nn import distributions


def test_symexp_inverts_symlog() -> None:
    values = torch.tensor([-1e6, -3.0, -1e-4, 0.0, 1e-4, 0.7, 1e6], dtype=torch.float64)
    torch.testing.assert_close(distributions.symexp(distributions.symlog(values)), values)
    assert distributions.symlog(torch.tensor([0.0, -torch.e + 1])).tolist() == [0.0, -1.0]


def test_a_two_hot_code_decodes_to_its_value() -> None:
    values = torch.tensor([-350.0, -1.0, 0.0, 0.25, 1.0, 12.0], dtype=torch.float64)
    logits = distributions.two_hot(values).clamp(min=1e-30).log()
    torch.testing.assert_close(distributions.two_hot_mean(logits), values)


def test_equal_logits_stand_for_zero() -> None:
    assert distributions.two_hot_mean(torch.zeros(255)).abs().item() < 1e-5


def test_kl_is_zero_between_equals_and_blind_to_shifts() -> None:
    logits = torch.randn(5, 7, dtype=torch.float64)
    torch.testing.assert_close(distributions.kl(logits, logits + 3), torch.zeros(5, dtype=torch.float64))


def test_straight_through_is_the_sample_forward_and_the_probabilities_backward() -> None:
    logits = torch.randn(3, 4, 5, requires_grad=True)
    sample = distributions.one_hot(torch.randint(5, (3, 4)), 5)
    slopes = torch.randn(3, 4, 5)

    def gradient(output: Tensor) -> Tensor:
        return torch.autograd.grad((output * slopes).sum(), logits)[0]

    through = distributions.straight_through(logits, sample)
    assert torch.equal(through, sample)
    assert torch.equal(gradient(through), gradient(logits.softmax(-1)))


def test_free_bits_stop_the_gradient_below_them() -> None:
    for value, expected, slope in ((0.4, 1.0, 0.0), (2.5, 2.5, 1.0)):
        divergence = torch.tensor(value, requires_grad=True)
        clipped = distributions.free_bits(divergence, 1.0)
        clipped.backward()
        assert divergence.grad is not None
        assert (clipped.item(), divergence.grad.item()) == (expected, slope)


def test_masked_mean_ignores_what_is_not_valid() -> None:
    values = torch.tensor([1.0, torch.nan, 5.0, torch.inf])
    assert distributions.masked_mean(values, torch.tensor([True, False, True, False])).item() == 3.0
    assert distributions.masked_mean(values, torch.zeros(4, dtype=torch.bool)).item() == 0.0


def test_a_reward_that_is_not_a_number_makes_the_loss_not_a_number() -> None:
    loss = distributions.two_hot_loss(torch.zeros(2, 255), torch.tensor([torch.nan, 1.0]))
    assert loss.isnan().tolist() == [True, False]
