from __future__ import annotations

import itertools
import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from dreamenvs.config import from_json, to_json
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig, FactorizedPrior, KLObjective
from dreamenvs.protocols import FramePrior, Posterior
from dreamenvs.random import Noise

pytestmark = pytest.mark.portable
WIDTH, TOKENS, VOCABULARY = 16, 6, 5
NOTHING = torch.zeros(0, 2, TOKENS, dtype=torch.int64)  # the past, at which these priors do not look


def build(objective: KLObjective | CrossEntropyObjective | None = None, unimix: float = 0.0) -> FactorizedPrior:
    torch.manual_seed(0)
    config = FactorizedConfig(objective=objective or KLObjective(), unimix=unimix)
    return FactorizedPrior(config, WIDTH, TOKENS, VOCABULARY).double()


def target(rows: int, scale: float = 2.0) -> Posterior:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(rows, TOKENS, VOCABULARY, generator=generator, dtype=torch.float64) * scale
    logits.requires_grad_()
    return Posterior(logits.argmax(-1), logits, logits.flatten(1), torch.zeros(rows))


def hidden(rows: int) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def noise(rows: int, temperature: float = 1.0) -> Noise:
    return Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64), temperature)


def naive_divergence(p_logits: Tensor, q_logits: Tensor, valid: Tensor) -> float:
    totals = []
    for row in valid.nonzero()[:, 0].tolist():
        p, q = p_logits[row].softmax(-1).tolist(), q_logits[row].softmax(-1).tolist()
        totals.append(sum(p[k][c] * math.log(p[k][c] / q[k][c]) for k in range(TOKENS) for c in range(VOCABULARY)))
    return sum(totals) / len(totals)


def test_cross_entropy_is_equation_6() -> None:
    prior, posterior, valid = build(CrossEntropyObjective()), target(4), torch.tensor([True, False, True, True])
    terms = prior.loss(hidden(4), posterior, valid, NOTHING)
    log_p = prior.logits(hidden(4)).log_softmax(-1)
    totals = [sum(-log_p[n, k, posterior.tokens[n, k]].item() for k in range(TOKENS)) for n in (0, 2, 3)]
    assert terms.total.item() == pytest.approx(sum(totals) / 3)
    terms.total.backward()
    assert posterior.logits.grad is None


@pytest.mark.parametrize("direction", ["prior_posterior", "posterior_prior"])
def test_kl_is_equation_14(direction: Literal["prior_posterior", "posterior_prior"]) -> None:
    prior = build(KLObjective(representation=0.1, dynamics=0.7, direction=direction))
    posterior, valid = target(4), torch.tensor([True, True, False, True])
    terms = prior.loss(hidden(4), posterior, valid, NOTHING)
    pair = (prior.logits(hidden(4)), posterior.logits)
    divergence = naive_divergence(*(pair if direction == "prior_posterior" else pair[::-1]), valid)
    assert divergence > 1
    assert terms.total.item() == pytest.approx(0.8 * divergence)
    assert terms.parts["dynamics"].item() == pytest.approx(divergence)
    assert terms.parts["representation"].item() == pytest.approx(divergence)


def test_each_weight_moves_its_own_side() -> None:
    for representation, dynamics in ((1.0, 0.0), (0.0, 1.0)):
        prior, posterior = build(KLObjective(representation=representation, dynamics=dynamics)), target(4)
        prior.loss(hidden(4), posterior, torch.ones(4, dtype=torch.bool), NOTHING).total.backward()
        assert prior.project.weight.grad is not None
        assert posterior.logits.grad is not None
        assert bool(prior.project.weight.grad.any()) == bool(dynamics)
        assert bool(posterior.logits.grad.any()) == bool(representation)


def test_free_bits_count_after_the_sum_over_tokens_and_the_mean_over_frames() -> None:
    posterior, valid = target(4), torch.ones(4, dtype=torch.bool)
    divergence = build().loss(hidden(4), posterior, valid, NOTHING).parts["dynamics"].item()
    for bits, expected in ((0.9 * divergence, divergence), (1.1 * divergence, 1.1 * divergence)):
        prior = build(KLObjective(free_bits=bits))
        total = prior.loss(hidden(4), posterior, valid, NOTHING).total
        assert total.item() == pytest.approx(1.1 * expected)
        total.backward()
        assert prior.project.weight.grad is not None
        assert bool(prior.project.weight.grad.any()) == (bits < divergence)


@pytest.mark.parametrize("objective", [CrossEntropyObjective(), KLObjective()])
def test_padding_teaches_nothing(objective: KLObjective | CrossEntropyObjective) -> None:
    prior, posterior, valid = build(objective), target(3), torch.tensor([True, False, True])
    inputs = hidden(3).requires_grad_()
    prior.loss(inputs, posterior, valid, NOTHING).total.backward()
    assert inputs.grad is not None
    assert inputs.grad.any(1).tolist() == [True, False, True]


def test_only_the_elbo_direction_learns_a_calibrated_prior() -> None:
    """Two equally likely futures after one hidden vector: their average is what a dream should sample from."""
    logits = torch.tensor([[4.0, 0.0, -4.0], [-4.0, 0.0, 4.0]], dtype=torch.float64)[:, None]
    average = logits.softmax(-1).mean(0)[0]
    posterior = Posterior(logits.argmax(-1), logits, logits.flatten(1), torch.zeros(2))
    errors = {}
    for direction in ("prior_posterior", "posterior_prior"):
        torch.manual_seed(0)
        objective = KLObjective(free_bits=0.0, direction=direction)
        prior = FactorizedPrior(FactorizedConfig(objective=objective), WIDTH, 1, 3).double()
        optimizer = torch.optim.Adam(prior.parameters(), 0.05)
        for _ in range(150):
            optimizer.zero_grad()
            inputs, valid = torch.ones(2, WIDTH, dtype=torch.float64), torch.ones(2, dtype=torch.bool)
            prior.loss(inputs, posterior, valid, NOTHING).total.backward()
            optimizer.step()
        found = prior.logits(torch.ones(1, WIDTH, dtype=torch.float64)).softmax(-1)[0, 0]
        errors[direction] = (found - average).abs().max().item()
    assert errors["posterior_prior"] < 0.01
    assert errors["prior_posterior"] > 0.1


def test_unimix_gives_log_probabilities_with_a_floor() -> None:
    prior = build(unimix=0.01)
    with torch.no_grad():
        prior.project.weight.mul_(1000)
    probabilities = prior.logits(hidden(4)).exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(4, TOKENS, dtype=torch.float64))
    assert probabilities.min().item() == pytest.approx(0.01 / VOCABULARY)


def test_samples_follow_the_logits() -> None:
    prior: FramePrior = build()
    tokens, finite = prior.sample(hidden(1).expand(6000, -1), noise(6000), NOTHING)
    assert tokens.shape == (6000, TOKENS)
    assert finite.all()
    shares = torch.nn.functional.one_hot(tokens, VOCABULARY).double().mean(0)
    torch.testing.assert_close(shares, build().logits(hidden(1))[0].softmax(-1), atol=0.03, rtol=0)
    greedy, _ = prior.sample(hidden(3), noise(3, temperature=0), NOTHING)
    assert torch.equal(greedy, build().logits(hidden(3)).argmax(-1))


def test_rows_that_are_not_finite_are_named() -> None:
    inputs = hidden(4)
    inputs[1, 3] = torch.nan
    inputs[2, 0] = torch.inf
    tokens, finite = build().sample(inputs, noise(4), NOTHING)
    assert finite.tolist() == [True, False, False, True]
    assert ((tokens >= 0) & (tokens < VOCABULARY)).all()


def test_a_row_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    prior = FactorizedPrior(FactorizedConfig(), 64, 16, 32)
    inputs = torch.randn(100, 64)
    with torch.inference_mode():
        logits = prior.logits(inputs)
        for rows in (8, 12, 16, 33, 64):
            assert torch.equal(prior.logits(inputs[:rows]), logits[:rows])


@pytest.mark.parametrize("objective", [CrossEntropyObjective(weight=2.0), KLObjective(direction="posterior_prior")])
def test_configs_survive_json(objective: KLObjective | CrossEntropyObjective) -> None:
    config = FactorizedConfig(objective=objective, unimix=0.01)
    assert from_json(FactorizedConfig, to_json(config)) == config


def test_logits_of_a_rank_are_products_with_the_codes_vectors() -> None:
    torch.manual_seed(0)
    prior = FactorizedPrior(FactorizedConfig(rank=2), WIDTH, TOKENS, VOCABULARY).double()
    torch.nn.init.normal_(prior.bias)
    logits = prior.logits(hidden(3))
    queries = prior.project(prior.norm(hidden(3)))
    for n, k, v in itertools.product(range(3), range(TOKENS), range(VOCABULARY)):
        product = sum(queries[n, 2 * k + r].item() * prior.codes[v, r].item() for r in range(2))
        assert logits[n, k, v].item() == pytest.approx(product + prior.bias[k, v].item())
    full = FactorizedPrior(FactorizedConfig(), WIDTH, TOKENS, VOCABULARY)
    assert full.project.weight.numel() / prior.project.weight.numel() == VOCABULARY / 2


def test_a_rank_below_zero_is_named() -> None:
    with pytest.raises(ValueError, match="-1"):
        FactorizedConfig(rank=-1)


@pytest.mark.parametrize("rank", [0, 2])
def test_sampled_tokens_estimate_the_whole_sum(rank: int) -> None:
    """Averaged over many draws, value and gradient are those of all tokens; the changed ones are seen every time."""
    torch.manual_seed(0)
    tokens, rows = 40, 5
    sampled = FactorizedConfig(objective=CrossEntropyObjective(sampled=8), rank=rank)
    prior = FactorizedPrior(sampled, WIDTH, tokens, VOCABULARY).double()
    whole = FactorizedPrior(FactorizedConfig(objective=CrossEntropyObjective(), rank=rank), WIDTH, tokens, VOCABULARY)
    whole = whole.double()
    whole.load_state_dict(prior.state_dict())
    following = torch.randint(VOCABULARY, (rows, tokens))
    previous = following.clone()
    for row, changes in enumerate((0, 1, 4, 9, 39)):
        previous[row, :changes] = (previous[row, :changes] + 1) % VOCABULARY
    target = Posterior(following, torch.zeros(rows, 0), torch.zeros(rows, 0), torch.zeros(rows))
    inputs = hidden(rows).repeat(4000, 1)
    many = Posterior(following.repeat(4000, 1), target.logits, target.latent, target.commitment)
    past = torch.stack([torch.zeros_like(previous), previous], 1)
    estimate = prior.loss(inputs, many, torch.ones(4000 * rows, dtype=torch.bool), past.repeat(4000, 1, 1))
    exact = whole.loss(hidden(rows), target, torch.ones(rows, dtype=torch.bool), past)
    estimate.total.backward()
    exact.total.backward()
    assert estimate.total.item() == pytest.approx(exact.total.item(), rel=0.01)
    found, wanted = prior.project.weight.grad, whole.project.weight.grad
    assert found is not None
    assert wanted is not None
    assert torch.linalg.vector_norm(found - wanted) < 0.05 * torch.linalg.vector_norm(wanted)


def test_an_odd_number_of_sampled_tokens_is_named() -> None:
    with pytest.raises(ValueError, match="7"):
        CrossEntropyObjective(sampled=7)
