"""The raster prior: its likelihood against a naive loop, a proper distribution, exact draws in few passes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from dreamenvs.nn.canvas import Layout, layout_of
from dreamenvs.priors.factorized import CrossEntropyObjective, KLObjective
from dreamenvs.priors.raster import CausalConv2d, RasterConfig, RasterPrior
from dreamenvs.protocols import Posterior
from dreamenvs.random import Noise
from tests.rounding import rows_agree

pytestmark = pytest.mark.portable
LAYOUTS = {
    "memory with places": Layout(grid=(2, 2), memory_channels=4),
    "one vector": layout_of(4, (2, 2)),
    "tokens without places": layout_of(4, None),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
WIDTH = 16
VOCABULARY = 3


def build(layout: str, std: float = 0.5, **choices: Any) -> RasterPrior:
    torch.manual_seed(0)
    config = RasterConfig(**({"channels": 6, "code_width": 4, "floor": 0.0} | choices))
    chosen = LAYOUTS[layout]
    prior = RasterPrior(config, chosen.canvas(WIDTH, config.channels), VOCABULARY, chosen.kernel)
    for parameter in prior.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return prior.double().eval()


def inputs(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    past = torch.randint(VOCABULARY, (rows, 2, 4), generator=generator)
    return hidden, past, torch.randint(VOCABULARY, (rows, 4), generator=generator)


def posterior(tokens: Tensor, logits: Tensor | None = None) -> Posterior:
    logits = torch.zeros(*tokens.shape, 0) if logits is None else logits
    return Posterior(tokens, logits, torch.zeros(len(tokens), 0), torch.zeros(len(tokens)))


def conditionals(prior: RasterPrior, hidden: Tensor, past: Tensor, tokens: Tensor) -> Tensor:
    """(N, K, V) log-probabilities of each token, computed with nothing but the tokens before it: the others are 0."""
    results = []
    for place in range(4):
        known = tokens.clone()
        known[:, place:] = 0
        logits = prior._given_before(prior._look(hidden, past), known)
        results.append(logits[:, place].log_softmax(-1))
    return torch.stack(results, 1)


@layouts
@torch.no_grad()
def test_the_loss_is_the_negative_log_likelihood(layout: str) -> None:
    """A token's own value and those after it are not seen by what predicts it."""
    prior = build(layout, marginals=1e-9)
    hidden, past, tokens = inputs(7)
    expected = conditionals(prior, hidden, past, tokens).gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(prior.log_likelihood(hidden, tokens, past).double(), expected.double())
    valid = torch.tensor([True] * 5 + [False] * 2)
    terms = prior.loss(hidden, posterior(tokens), valid, past)
    torch.testing.assert_close(terms.total.double(), -expected[:5].sum(1).mean().double())


@layouts
@torch.no_grad()
def test_every_earlier_token_is_seen(layout: str) -> None:
    prior = build(layout)
    hidden, past, tokens = inputs(1)
    before = conditionals(prior, hidden, past, tokens)
    for place in range(4):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % VOCABULARY
        after = conditionals(prior, hidden, past, changed)
        moved = (after - before).abs().amax((0, 2)) > 1e-6
        assert moved.tolist() == [later > place for later in range(4)]


@layouts
@pytest.mark.parametrize("joint", [True, False])
@torch.no_grad()
def test_all_frames_together_have_probability_one(layout: str, joint: bool) -> None:
    prior = build(layout, joint=joint)
    hidden, past, _ = inputs(1)
    frames = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=4)))
    count = len(frames)
    likelihood = prior.log_likelihood(hidden.expand(count, -1), frames, past.expand(count, -1, -1)).sum(1)
    assert float(likelihood.exp().sum()) == pytest.approx(1, abs=1e-5)


@layouts
@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
@torch.no_grad()
def test_drawing_is_drawing_token_by_token(layout: str, temperature: float) -> None:
    """At the same random numbers: the fixed point is the frame that a loop over the places gives."""
    prior = build(layout, std=1.0)
    hidden, past, _ = inputs(200)
    noise = Noise(torch.arange(200), torch.full((200,), 3), temperature)
    drawn, finite = prior.sample(hidden, noise, past)
    assert finite.all()
    scene = prior._look(hidden, past)
    expected = torch.zeros(200, 4, dtype=torch.int64)
    for place in range(4):
        expected[:, place] = noise.categorical(prior._given_before(scene, expected))[:, place]
    assert torch.equal(drawn, expected)
    first = noise.categorical(scene.logits)
    assert not torch.equal(drawn, first)  # guesses are not always right, or nothing was tested


@torch.no_grad()
def test_frames_come_as_often_as_the_likelihood_says() -> None:
    prior = build("memory with places")
    hidden, past, _ = inputs(1)
    rows = 40_000
    noise = Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64))
    drawn, _ = prior.sample(hidden.expand(rows, -1), noise, past.expand(rows, -1, -1))
    frames, counts = torch.unique(drawn, dim=0, return_counts=True)
    expected = prior.log_likelihood(hidden.expand(len(frames), -1), frames, past.expand(len(frames), -1, -1))
    deviation = (counts / rows - expected.sum(1).exp()).abs().max()
    assert float(deviation) < 0.01  # four standard deviations of a share of one half


@torch.no_grad()
def test_what_is_less_likely_than_the_floor_is_not_drawn() -> None:
    """Of the first token, which is given nothing; the others keep their proportions."""
    whole, cut = build("one vector"), build("one vector", floor=0.2)
    hidden, past, tokens = inputs(1, seed=3)
    rows = 20_000
    noise = Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64))
    drawn, _ = cut.sample(hidden.expand(rows, -1), noise, past.expand(rows, -1, -1))
    expected = conditionals(whole, hidden, past, tokens)[0, 0].exp()
    assert bool((expected < 0.2).any())
    expected = torch.where(expected < 0.2, 0.0, expected)
    shares = torch.bincount(drawn[:, 0], minlength=VOCABULARY).double() / rows
    torch.testing.assert_close(shares, expected.double() / expected.sum(), atol=0.02, rtol=0)
    # What is drawn changes, and not what is thought.
    assert torch.equal(whole.log_likelihood(hidden, tokens, past), cut.log_likelihood(hidden, tokens, past))


@torch.no_grad()
def test_a_causal_convolution_sees_what_is_above_and_to_the_left() -> None:
    torch.manual_seed(0)
    layer = CausalConv2d(1, 1, reach=2)
    maps = torch.zeros(1, 1, 6, 7)
    maps[0, 0, 2, 3] = 1.0
    seen = layer(maps)[0, 0] != 0
    expected = torch.zeros(6, 7, dtype=torch.bool)
    expected[2, 4:6] = True
    expected[3:5, 1:6] = True
    assert torch.equal(seen, expected)


@torch.no_grad()
def test_the_kl_is_the_cross_entropy_where_the_posterior_is_certain() -> None:
    objective = KLObjective(free_bits=0.0, dynamics=1.0, representation=0.0)
    prior = build("one vector", objective=objective, marginals=1e-9)
    hidden, past, tokens = inputs(6)
    certain = 200.0 * torch.nn.functional.one_hot(tokens, VOCABULARY).double()
    terms = prior.loss(hidden, posterior(tokens, certain), torch.ones(6, dtype=torch.bool), past)
    expected = -prior.log_likelihood(hidden, tokens, past).sum(1).mean()
    torch.testing.assert_close(terms.parts["dynamics"].double(), expected.double(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_rows_do_not_depend_on_others() -> None:
    prior = build("memory with places").float()
    hidden, past, _ = inputs(16)
    noise = Noise(torch.arange(16), torch.zeros(16, dtype=torch.int64))
    tokens, _ = prior.sample(hidden.float(), noise, past)
    few = Noise(torch.arange(4), torch.zeros(4, dtype=torch.int64))
    assert rows_agree(prior.sample(hidden[:4].float(), few, past[:4])[0], tokens[:4])


def fit_to_pairs(joint: bool) -> RasterPrior:
    """Four tokens that are all 0, or all 1, or all 2, each as likely, whatever came before."""
    torch.manual_seed(0)
    layout = LAYOUTS["memory with places"]
    config = RasterConfig(joint=joint, channels=8, code_width=4)
    prior = RasterPrior(config, layout.canvas(WIDTH, config.channels), VOCABULARY)
    optimizer = torch.optim.AdamW(prior.parameters(), lr=1e-2)
    hidden, past, _ = inputs(64)
    for step in range(300):
        tokens = torch.randint(VOCABULARY, (64, 1), generator=torch.Generator().manual_seed(step)).expand(-1, 4)
        terms = prior.loss(hidden.float(), posterior(tokens), torch.ones(64, dtype=torch.bool), past)
        optimizer.zero_grad()
        terms.total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return prior.eval()


@torch.no_grad()
def agreement(prior: RasterPrior) -> tuple[float, Tensor]:
    hidden, past, _ = inputs(64)
    noise = Noise(torch.arange(64 * 40), torch.zeros(64 * 40, dtype=torch.int64))
    drawn, _ = prior.sample(hidden.float().repeat(40, 1), noise, past.repeat(40, 1, 1))
    agrees = (drawn == drawn[:, :1]).all(1)
    return float(agrees.double().mean()), torch.bincount(drawn[agrees][:, 0], minlength=VOCABULARY) / len(drawn)


def test_exactly_correlated_tokens_agree() -> None:
    share, each = agreement(fit_to_pairs(joint=True))
    assert share > 0.99
    assert float(each.min()) > 0.25  # and every value comes
    independent, _ = agreement(fit_to_pairs(joint=False))
    assert independent < 0.1


def test_impossible_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="sampled"):
        RasterConfig(objective=CrossEntropyObjective(sampled=4))
    with pytest.raises(ValueError, match="at least 1"):
        RasterConfig(reach=0)
