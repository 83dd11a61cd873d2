from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dreamenvs.config import from_json, to_json
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.priors.factorized import CrossEntropyObjective
from dreamenvs.priors.local import LocalConfig, LocalPrior
from dreamenvs.protocols import FramePrior, Posterior
from dreamenvs.random import Noise
from dreamenvs.tokenizers.categorical import CategoricalConfig

pytestmark = pytest.mark.portable
WIDTH, GRID, VOCABULARY = 16, (4, 5), 7
TOKENS = GRID[0] * GRID[1]
SIZES = LocalConfig(reach=1, code_width=3, units=6, rank=4)


def build(config: LocalConfig = SIZES) -> LocalPrior:
    torch.manual_seed(0)
    prior = LocalPrior(config, WIDTH, GRID, VOCABULARY).double()
    for weight in (prior.condition.weight, prior.answer.weight, prior.bias):
        torch.nn.init.normal_(weight)
    return prior


def hidden(rows: int) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def frames(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, (*shape, TOKENS), generator=torch.Generator().manual_seed(3))


def target(tokens: Tensor) -> Posterior:
    nothing = torch.zeros(len(tokens), 0)
    return Posterior(tokens, nothing, nothing, torch.zeros(len(tokens)))


def silu(values: Tensor) -> Tensor:
    return values / (1 + (-values).exp())


def naive_logits(prior: LocalPrior, hidden: Tensor, past: Tensor, row: int, column: int) -> Tensor:
    """Logits (V,) of one token of one frame, neighbour by neighbour."""
    normal = hidden / (hidden.square().mean() + 1e-5).sqrt() * prior.norm.weight
    looked, own = prior.look.bias.clone(), []
    for frame in range(2):
        grid, width = past[frame].view(GRID), SIZES.code_width
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                if not (0 <= row + down < GRID[0] and 0 <= column + right < GRID[1]):
                    continue
                code = prior.embed.weight[grid[row + down, column + right]]
                looked = looked + prior.look.weight[:, frame * width :][:, :width, down + 1, right + 1] @ code
        own.append(prior.embed.weight[grid[row, column]])
    scale, shift = (prior.condition.weight @ normal + prior.condition.bias).chunk(2)
    place = row * GRID[1] + column
    inner = silu(looked * (1 + scale) + shift)
    inner = silu(prior.think.weight @ inner + prior.think.bias)
    numbers = prior.answer.weight @ torch.cat([inner, *own]) + prior.answer.bias
    numbers = numbers + (prior.project.weight @ normal + prior.project.bias).view(TOKENS, -1)[place]
    return prior.codes @ numbers + prior.bias[place]


def test_logits_follow_from_the_hidden_vector_and_the_neighbourhood() -> None:
    prior, past = build(), frames(3, 2)
    logits = prior.logits(hidden(3), past)
    for n in range(3):
        for place in range(TOKENS):
            naive = naive_logits(prior, hidden(3)[n], past[n], *divmod(place, GRID[1]))
            torch.testing.assert_close(logits[n, place], naive)


def test_the_loss_is_the_likelihood_of_valid_frames() -> None:
    prior, past, tokens = build(), frames(4, 2), frames(4)
    valid = torch.tensor([True, False, True, True])
    log_p = prior.logits(hidden(4), past).log_softmax(-1)
    totals = [sum(-log_p[n, k, tokens[n, k]].item() for k in range(TOKENS)) for n in (0, 2, 3)]
    assert prior.loss(hidden(4), target(tokens), valid, past).total.item() == pytest.approx(sum(totals) / 3)


def test_sampled_tokens_estimate_the_whole_sum() -> None:
    """Averaged over many draws, value and gradient are those of all tokens."""
    prior = build(LocalConfig(objective=CrossEntropyObjective(sampled=8), reach=1, code_width=3, units=6, rank=4))
    whole, past, repeats = build(), frames(3, 2), 2000
    tokens = past[:, -1].clone()
    for row, changes in enumerate((0, 2, 13)):
        tokens[row, :changes] = (tokens[row, :changes] + 1) % VOCABULARY
    many, valid = target(tokens.repeat(repeats, 1)), torch.ones(3 * repeats, dtype=torch.bool)
    estimate = prior.loss(hidden(3).repeat(repeats, 1), many, valid, past.repeat(repeats, 1, 1)).total
    exact = whole.loss(hidden(3), target(tokens), valid[:3], past).total
    assert estimate.item() == pytest.approx(exact.item(), rel=0.01)
    estimate.backward()  # type: ignore[no-untyped-call]
    exact.backward()  # type: ignore[no-untyped-call]
    for (name, found), wanted in zip(prior.named_parameters(), whole.parameters(), strict=True):
        assert found.grad is not None, name
        assert wanted.grad is not None, name
        assert torch.dist(found.grad, wanted.grad) <= 0.1 * wanted.grad.norm(), name


def test_samples_follow_the_logits() -> None:
    prior: FramePrior = build()
    rows, past = 6000, frames(1, 2)
    noise = Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64))
    tokens, finite = prior.sample(hidden(1).expand(rows, -1), noise, past.expand(rows, -1, -1))
    assert finite.all()
    shares = torch.nn.functional.one_hot(tokens, VOCABULARY).double().mean(0)
    torch.testing.assert_close(shares, build().logits(hidden(1), past)[0].softmax(-1), atol=0.03, rtol=0)


def test_rows_that_are_not_finite_are_named() -> None:
    inputs = hidden(4)
    inputs[1, 3] = math.nan
    noise = Noise(torch.arange(4), torch.zeros(4, dtype=torch.int64))
    tokens, finite = build().sample(inputs, noise, frames(4, 2))
    assert finite.tolist() == [True, False, True, True]
    assert ((tokens >= 0) & (tokens < VOCABULARY)).all()


def test_a_row_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    prior = LocalPrior(LocalConfig(), 64, (16, 16), 64)
    inputs, past = torch.randn(100, 64), torch.randint(64, (100, 2, 256))
    with torch.inference_mode():
        logits = prior.logits(inputs, past)
        for rows in (8, 12, 16, 64):
            assert torch.equal(prior.logits(inputs[:rows], past[:rows]), logits[:rows])


@pytest.mark.slow
def test_what_moves_alike_is_predicted_everywhere_once_it_was_seen_somewhere() -> None:
    """A dot moves one place to the right; learned in the upper rows, it is known in the lowest, too."""
    torch.manual_seed(0)
    prior = LocalPrior(SIZES, WIDTH, GRID, 2)

    def pairs(rows: range) -> tuple[Tensor, Tensor]:
        places = [row * GRID[1] + column for row in rows for column in range(2, GRID[1])]
        steps = torch.zeros(len(places), 3, TOKENS, dtype=torch.int64)
        for number, place in enumerate(places):
            steps[number, torch.arange(3), torch.arange(place - 2, place + 1)] = 1
        return steps[:, :2], steps[:, 2]

    past, tokens = pairs(range(3))
    valid, inputs = torch.ones(len(past), dtype=torch.bool), torch.zeros(len(past), WIDTH)
    optimizer = torch.optim.Adam(prior.parameters(), 0.02)
    for _ in range(200):
        optimizer.zero_grad()
        prior.loss(inputs, target(tokens), valid, past).total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    past, tokens = pairs(range(3, 4))
    assert torch.equal(prior.logits(inputs[: len(past)], past).argmax(-1), tokens)


def test_a_config_survives_json_and_needs_a_grid() -> None:
    assert from_json(LocalConfig, to_json(SIZES)) == SIZES
    with pytest.raises(ValueError, match="reach is 0 or more"):
        LocalConfig(reach=-1)
    with pytest.raises(ValueError, match="tokens on a grid"):
        StepVQConfig(tokenizer=CategoricalConfig(), prior=SIZES)
