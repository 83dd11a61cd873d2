from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dreamenvs.config import from_json, to_json
from dreamenvs.models.frame_level import TERMINATION_DRAW
from dreamenvs.nn.distributions import kl
from dreamenvs.nn.flop_counting import operation_counter
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig, FactorizedPrior, KLObjective
from dreamenvs.priors.mask_schedules import MAX_PASSES, draft_and_revise, hide_some, masked_counts
from dreamenvs.priors.maskgit import MaskGITConfig, MaskGITPrior
from dreamenvs.protocols import FramePrior, Posterior
from dreamenvs.random import Noise
from tests.rounding import rows_agree

pytestmark = pytest.mark.portable
WIDTH, TOKENS, VOCABULARY = 24, 6, 5
SIZES = MaskGITConfig(width=12, layers=2, heads=2, feed_forward=16)
NOTHING = torch.zeros(0, 2, TOKENS, dtype=torch.int64)


def build(config: MaskGITConfig = SIZES, seed: int = 0) -> MaskGITPrior:
    torch.manual_seed(seed)
    prior = MaskGITPrior(config, WIDTH, TOKENS, VOCABULARY).eval()
    for parameter in prior.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return prior


def change(**choices: Any) -> MaskGITConfig:
    return MaskGITConfig(**{"width": 12, "layers": 2, "heads": 2, "feed_forward": 16, **choices})


def hidden(rows: int) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(2))


def target(rows: int) -> Posterior:
    logits = torch.randn(rows, TOKENS, VOCABULARY, generator=torch.Generator().manual_seed(1)).requires_grad_()
    return Posterior(logits.argmax(-1), logits, logits.flatten(1), torch.zeros(rows))


def noise(rows: int, temperature: float = 1.0) -> Noise:
    return Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64), temperature)


def test_the_cosine_schedule_rounds_up() -> None:
    """The released code rounds down: 22 for the second and 0, raised to 1, for the last."""
    counts = masked_counts(torch.tensor([0.0, 0.5, 0.15, 0.9, 1 - 2**-24]), 32)
    assert counts.tolist() == [32, math.ceil(32 * math.sqrt(0.5)), 32, 6, 1]
    counts = masked_counts(torch.linspace(0, 1 - 1e-6, 100_001), 32)
    assert int(counts.min()) == 1
    assert counts.double().mean().item() / 32 == pytest.approx(2 / math.pi + 0.5 / 32, abs=2e-3)
    assert (counts == 32).double().mean().item() == pytest.approx(2 / math.pi * math.acos(31 / 32), abs=1e-3)


def test_training_hides_tokens_of_each_frame_at_random() -> None:
    torch.manual_seed(0)
    hide = hide_some(4000, 16, torch.device("cpu"))
    assert sorted(set(hide.sum(1).tolist())) == list(range(1, 17))
    shares = hide.double().mean(0)
    assert float(shares.max() - shares.min()) < 0.05
    one = hide[hide.sum(1) == 1].double().argmax(1)
    assert len(set(one.tolist())) == 16


def test_parts_cover_all_tokens_once_and_every_row_has_its_own() -> None:
    passes = list(draft_and_revise(noise(50), 7, (3, 2, 1)))
    assert [chosen if chosen is None else chosen.shape[1] for chosen, _ in passes] == [2, 2, 3, 3, 4, None]
    assert [draw for _, draw in passes] == list(range(6))
    for parts in (passes[:3], passes[3:5]):
        order = torch.cat([chosen for chosen, _ in parts if chosen is not None], 1)
        assert torch.equal(order.sort(1).values, torch.arange(7).expand(50, -1))
        assert len({tuple(row) for row in order.tolist()}) > 45
    alone = [chosen for chosen, _ in draft_and_revise(Noise(torch.tensor([31]), torch.tensor([0])), 7, (3,))]
    for part, (chosen, _) in zip(alone, passes, strict=False):
        assert part is not None
        assert chosen is not None
        assert torch.equal(part[0], chosen[31])


@torch.no_grad()
@pytest.mark.parametrize(("draft", "revise", "repetitions"), [(1, 2, 0), (4, 1, 0), (1, 3, 2), (6, 2, 3)])
def test_passes_are_draft_and_repetitions_times_revise(draft: int, revise: int, repetitions: int) -> None:
    """And each computes what it draws alone: a share of the tokens leaves the last layer."""
    prior = build(change(draft=draft, revise=revise, repetitions=repetitions))
    sizes: list[int] = []
    prior.transformer.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.shape[1]))
    tokens, finite = prior.sample(hidden(3), noise(3), NOTHING)
    assert len(sizes) == draft + repetitions * revise == prior.config.passes
    assert sum(sizes) == TOKENS * (1 + repetitions)
    assert tokens.shape == (3, TOKENS)
    assert int(tokens.max()) < VOCABULARY
    assert finite.all()


@torch.no_grad()
def test_one_draft_round_draws_as_the_factorised_prior_does() -> None:
    prior: FramePrior = build()
    assert isinstance(prior, MaskGITPrior)
    logits = prior.one_pass_logits(hidden(4))
    for temperature in (0.0, 0.7, 1.0):
        tokens, _ = prior.sample(hidden(4), noise(4, temperature), NOTHING)
        assert torch.equal(tokens, noise(4, temperature).categorical(logits))
    assert logits.exp().sum(-1).allclose(torch.ones(4, TOKENS))
    assert float(logits.exp().min()) >= 0.01 / VOCABULARY - 1e-7


def test_the_shown_tokens_are_those_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The released code shows those of the frame before, which no round of a draft does."""
    prior, posterior, shown = build(), target(64), []
    logits = prior._logits
    monkeypatch.setattr(prior, "_logits", lambda given, tokens, *rest: shown.append(tokens) or logits(given, tokens))
    past = torch.full((64, 2, TOKENS), VOCABULARY - 1)
    prior.loss(hidden(64), posterior, torch.ones(64, dtype=torch.bool), past)
    hide = shown[0] == VOCABULARY
    assert bool(hide.any(1).all())
    assert not bool(hide.all())
    assert torch.equal(shown[0][~hide], posterior.tokens[~hide])
    assert not torch.equal(posterior.tokens[~hide], past[:, -1][~hide])


@torch.no_grad()
def test_what_is_shown_of_a_frame_changes_what_is_filled_in() -> None:
    prior = build()
    conditions, shown = prior._condition(hidden(1)), torch.full((1, TOKENS), VOCABULARY)
    shown[0, 2] = 1
    other = shown.clone()
    other[0, 2] = 3
    assert not torch.allclose(prior._logits(conditions, shown)[:, 5], prior._logits(conditions, other)[:, 5])


def test_gradients_of_the_divergences_reach_one_side_each() -> None:
    valid = torch.ones(8, dtype=torch.bool)
    for objective in (KLObjective(representation=0.0, free_bits=0.0), KLObjective(dynamics=0.0, free_bits=0.0)):
        prior, posterior, given = build(change(objective=objective)), target(8), hidden(8).requires_grad_()
        torch.manual_seed(3)
        prior.loss(given, posterior, valid, NOTHING).total.backward()
        moved = [bool(p.grad is not None and p.grad.abs().sum() > 0) for p in (*prior.parameters(), given)]
        assert posterior.logits.grad is not None
        if objective.dynamics:
            assert all(moved)
            assert not posterior.logits.grad.any()
        else:
            assert not any(moved)
            assert posterior.logits.grad.any()


def test_shown_tokens_do_not_count_and_free_bits_hold() -> None:
    posterior, valid = target(6), torch.ones(6, dtype=torch.bool)
    prior = build(change(objective=KLObjective(dynamics=0.0, free_bits=0.0)))
    torch.manual_seed(5)
    prior.loss(hidden(6), posterior, valid, NOTHING).total.backward()
    torch.manual_seed(5)
    hide = hide_some(6, TOKENS, torch.device("cpu"))
    assert posterior.logits.grad is not None
    assert torch.equal(posterior.logits.grad.abs().sum(-1) > 0, hide)
    bounded = build(change(objective=KLObjective(free_bits=1e6)))
    terms = bounded.loss(hidden(6), posterior, valid, NOTHING)
    assert terms.total.item() == pytest.approx(1.1e6)
    assert not any(grad is not None and grad.any() for grad in torch.autograd.grad(terms.total, bounded.embed.weight))


def test_the_loss_of_a_prior_that_ignores_its_neighbours_is_the_factorised_one() -> None:
    """K / M times the hidden tokens' sum: whatever is hidden, a frame costs what it costs STORM on average."""
    torch.manual_seed(0)
    prior = build(change(objective=CrossEntropyObjective(), unimix=0.0))
    torch.nn.init.zeros_(prior.embed.weight)
    with torch.no_grad():
        prior.bias.copy_(torch.linspace(-1, 1, VOCABULARY))
    posterior = target(2000)
    terms = prior.loss(hidden(2000), posterior, torch.ones(2000, dtype=torch.bool), NOTHING)
    costs = -torch.linspace(-1, 1, VOCABULARY).log_softmax(0)
    assert terms.total.item() == pytest.approx(costs[posterior.tokens].sum(1).mean().item(), rel=0.03)


def test_it_has_about_as_many_weights_as_the_linear_prior_of_storm() -> None:
    prior = MaskGITPrior(MaskGITConfig(), 512, 32, 32)
    count = sum(parameter.numel() for parameter in prior.parameters())
    linear = sum(p.numel() for p in torch.nn.Linear(512, 1024).parameters())
    assert (count, linear) == (439_200, 525_312)
    assert prior.spread is None
    assert prior.project.in_features == 128 + 16


def test_configs() -> None:
    config = change(draft=4, revise=3, repetitions=2, tied=False, objective=CrossEntropyObjective())
    assert from_json(MaskGITConfig, to_json(config)) == config
    assert config.passes == 10
    # Table 8's T_draft = T_revise = Γ = 1 draws what one draft round draws, at twice the cost.
    with pytest.raises(ValueError, match="throws the draft away; repetitions=0"):
        MaskGITConfig(draft=1, revise=1, repetitions=1)
    assert MaskGITConfig(draft=1, revise=1, repetitions=0).passes == MaskGITConfig().passes == 1
    with pytest.raises(ValueError, match="at most 500 passes, not 501"):
        MaskGITConfig(draft=1, revise=10, repetitions=50)
    assert 2 * MAX_PASSES <= TERMINATION_DRAW
    for wrong in ({"draft": 0}, {"repetitions": -1}, {"heads": 3, "width": 16}, {"unimix": 1.0}):
        with pytest.raises(ValueError, match=str(next(iter(wrong)))):
            change(**wrong)
    with pytest.raises(ValueError, match="sampled is 0, not 4"):
        change(objective=CrossEntropyObjective(sampled=4))
    with pytest.raises(ValueError, match="6 tokens has no 7 parts"):
        build(change(draft=7))
    with pytest.raises(ValueError, match="has no 6 cells"):
        MaskGITPrior(SIZES, WIDTH, TOKENS, VOCABULARY, grid=(2, 2))


@torch.no_grad()
def test_non_finite_rows_are_told_apart() -> None:
    prior, given = build(change(draft=3)), hidden(4)
    given[2] = float("nan")
    tokens, finite = prior.sample(given, noise(4), NOTHING)
    assert finite.tolist() == [True, True, False, True]
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < VOCABULARY


@pytest.mark.parametrize(
    ("sizes", "grid"),
    [((512, 32, 32), None), ((512, 64, 64), (8, 8)), ((48, 6, 5), None)],
    ids=["paper", "grid", "narrow"],
)
def test_rows_are_the_same_bits_in_a_batch_of_any_size(
    sizes: tuple[int, int, int], grid: tuple[int, int] | None, threads: int
) -> None:
    torch.manual_seed(0)
    prior = MaskGITPrior(MaskGITConfig(layers=2, draft=3, revise=2, repetitions=1), *sizes, grid).eval()
    torch.nn.init.normal_(prior.project.weight, std=0.3)
    given = torch.randn(64, sizes[0], generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.set_num_threads(1)
        expected, _ = prior.sample(given, noise(64), NOTHING)
        logits = prior.one_pass_logits(given)
        chained = prior.chain_logits(given, expected, noise(64), rounds=4)
        torch.set_num_threads(threads)
        for rows in (1, 2, 3, 8, 64):
            assert rows_agree(prior.sample(given[:rows], noise(rows), NOTHING)[0], expected[:rows])
            assert rows_agree(prior.one_pass_logits(given[:rows]), logits[:rows])
            alone = prior.chain_logits(given[:rows], expected[:rows], noise(rows), rounds=4)
            assert rows_agree(alone, chained[:rows])


ALIKE = 8
"""Tokens of the toy's frames, which are all the same, and classes, which are equally likely."""


def fit_alike(prior: FactorizedPrior | MaskGITPrior, updates: int, rate: float) -> None:
    """Fit to frames of one class each, of which the hidden vector says nothing."""
    optimizer = torch.optim.Adam(prior.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=updates)
    rows = 128
    for _ in range(updates):
        tokens = torch.randint(ALIKE, (rows, 1)).expand(-1, ALIKE)
        logits = F.one_hot(tokens, ALIKE).float() * 20
        posterior = Posterior(tokens, logits, logits.flatten(1), torch.zeros(rows))
        terms = prior.loss(torch.ones(rows, 16), posterior, torch.ones(rows, dtype=torch.bool), NOTHING)
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        schedule.step()


@pytest.mark.slow
def test_tokens_that_belong_together_are_drawn_together() -> None:
    """All tokens of a frame are equal: rounds of a draft keep to that, and independent draws cannot."""
    torch.manual_seed(0)
    objective = KLObjective(dynamics=1.0, representation=0.0, free_bits=0.0)
    sizes = MaskGITConfig(
        objective=objective, width=32, layers=1, heads=4, feed_forward=32, unimix=0.0, draft=8, revise=8
    )
    masked = MaskGITPrior(sizes, 16, ALIKE, ALIKE)
    factorized = FactorizedPrior(FactorizedConfig(objective=objective), 16, ALIKE, ALIKE)
    fit_alike(masked, 800, 8e-3)
    fit_alike(factorized, 100, 3e-2)
    rows, keyed, past = torch.ones(2000, 16), noise(2000), NOTHING
    with torch.no_grad():
        drawn, _ = masked.eval().sample(rows, keyed, past)
        apart, _ = factorized.sample(rows, keyed, past)
        assert (drawn == drawn[:, :1]).all(1).float().mean() > 0.99
        assert (torch.bincount(drawn[:, 0], minlength=ALIKE) - 250).abs().max() < 75
        assert (apart == apart[:, :1]).all(1).float().mean() < 0.01
        assert (apart[:, 1:] == apart[:, :1]).float().mean().item() == pytest.approx(1 / ALIKE, abs=0.03)
        # What is gained is in the joint likelihood alone: ln V for a frame, and not K ln V.
        chained = masked.chain_logits(rows, drawn, keyed, rounds=ALIKE)
        surprises = [
            F.cross_entropy(logits.flatten(0, 1), drawn.flatten()).item() * ALIKE
            for logits in (chained, masked.one_pass_logits(rows), factorized.logits(rows))
        ]
        assert surprises[0] == pytest.approx(math.log(ALIKE), abs=0.15)
        assert surprises[1:] == pytest.approx([ALIKE * math.log(ALIKE)] * 2, abs=0.3)
        # A draft at once, of which nothing fits, then each token anew: what revisions are for.
        masked.config = MaskGITConfig(width=32, layers=1, heads=4, unimix=0.0, draft=1, revise=8, repetitions=3)
        revised, _ = masked.sample(rows, keyed, past)
        assert (revised == revised[:, :1]).all(1).float().mean() > 0.95


@torch.inference_mode()
def test_a_pass_costs_what_its_matrices_do() -> None:
    """At the paper's sizes 28.7 million operations a row and pass; what is not drawn is left out of the last layer."""
    rows, width, tokens = 32, 128, 32

    def count(draft: int) -> int:
        prior = MaskGITPrior(MaskGITConfig(draft=draft), 512, 32, 32).eval()
        with operation_counter() as counter:
            prior.sample(torch.randn(rows, 512), noise(rows), NOTHING)
        return counter.get_total_flops()

    def expect(drawn: int) -> int:
        """Of a pass over a row that draws so many tokens, without the table of projected embeddings."""
        whole = 2 * tokens * (16 * width + 3 * (3 * width**2 + 2 * tokens * width + 3 * width**2) + 2 * width**2)
        return whole + 2 * drawn * (width**2 + 2 * tokens * width + 3 * width**2 + width**2 + width * 32)

    tables = 2 * 33 * width**2
    assert count(1) == rows * expect(32) + tables
    assert rows * expect(32) / rows == pytest.approx(28.7e6, rel=0.01)
    assert count(8) == 8 * (rows * expect(4) + tables)
    assert expect(4) / expect(32) == pytest.approx(0.82, abs=0.01)


@torch.no_grad()
def test_chained_divergences_are_those_of_the_joint_distribution() -> None:
    """Of two tokens: the mean over samples of the posterior is its divergence from the product of conditionals."""
    torch.manual_seed(0)
    prior = MaskGITPrior(SIZES, WIDTH, 2, 3).double().eval()
    for parameter in prior.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    given, posterior = hidden(1).double(), torch.randn(1, 2, 3, dtype=torch.float64)
    shares, log_q = posterior.softmax(-1)[0], posterior.log_softmax(-1)[0]
    seed = Noise(torch.tensor([4]), torch.tensor([0]))
    first = int(seed.uniform(2, MAX_PASSES).argmin())
    second, joint, chained = 1 - first, 0.0, 0.0
    for a in range(3):
        for b in range(3):
            tokens = torch.tensor([[a, b]])
            weight = float(shares[0, a] * shares[1, b])
            log_p = prior.chain_logits(given, tokens, seed, rounds=2).log_softmax(-1)[0]
            likelihood = log_p[first, tokens[0, first]] + log_p[second, tokens[0, second]]
            joint += weight * float(log_q[0, a] + log_q[1, b] - likelihood)
            chained += weight * float(kl(posterior, log_p[None]).sum())
    assert chained == pytest.approx(joint)
