"""The MaskGIT prior against loops straight from section 3.2 of GIT-STORM and its algorithms 1 and 2, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dreamenvs.nn.bidirectional_transformer import BidirectionalLayer
from dreamenvs.priors import maskgit
from dreamenvs.priors.factorized import CrossEntropyObjective, KLObjective
from dreamenvs.priors.maskgit import MaskGITConfig, MaskGITPrior
from dreamenvs.protocols import Posterior
from dreamenvs.random import Noise

pytestmark = pytest.mark.portable
WIDTH, TOKENS, VOCABULARY, MASK = 18, 6, 5, 5
SIZES = {"width": 12, "layers": 2, "heads": 3, "feed_forward": 10}
NOTHING = torch.zeros(0, 2, TOKENS, dtype=torch.int64)


def build(grid: tuple[int, int] | None = None, width: int = WIDTH, **choices: object) -> MaskGITPrior:
    """With lively weights: fresh ones are too small for a mistake to show."""
    torch.manual_seed(0)
    config = MaskGITConfig(**{**SIZES, "channels": 4, **choices})  # type: ignore[arg-type]
    prior = MaskGITPrior(config, width, TOKENS, VOCABULARY, grid).double().eval()
    for parameter in prior.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return prior


def hidden(rows: int, width: int = WIDTH) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def random_tokens(rows: int, below: int = VOCABULARY) -> Tensor:
    return torch.randint(below, (rows, TOKENS), generator=torch.Generator().manual_seed(3))


def noise(rows: int, temperature: float = 1.0, step: int = 0) -> Noise:
    return Noise(torch.arange(rows), torch.full((rows,), step), temperature)


def layer_norm(values: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    centred = values - values.mean()
    return centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias


def gelu(values: Tensor) -> Tensor:
    return torch.stack([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in values])


def naive_layer(layer: BidirectionalLayer, inputs: list[Tensor]) -> list[Tensor]:
    """Head by head and query by query, with weights over the keys that sum to one."""
    width, size = len(inputs[0]), len(inputs[0]) // layer.heads
    normal = [layer_norm(x, layer.attention_norm) for x in inputs]
    parts = [layer.qkv.weight[i * width : (i + 1) * width] for i in range(3)]
    outputs = []
    for query, x in zip(normal, inputs, strict=True):
        attended = []
        for head in range(layer.heads):
            rows = slice(head * size, (head + 1) * size)
            scores = [(parts[0][rows] @ query) @ (parts[1][rows] @ key) / math.sqrt(size) for key in normal]
            total = sum(math.exp(score) for score in scores)
            pairs = zip(scores, normal, strict=True)
            attended.append(sum(math.exp(score) / total * (parts[2][rows] @ value) for score, value in pairs))
        x = x + layer.out.weight @ torch.cat(attended)  # type: ignore[arg-type]
        raised = gelu(layer.up.weight @ layer_norm(x, layer.feed_forward_norm))
        outputs.append(x + layer.down.weight @ raised)
    return outputs


@torch.no_grad()
def naive_logits(prior: MaskGITPrior, hidden: Tensor, shown: Tensor) -> Tensor:
    """Log-probabilities (K, V) of one row's tokens, of hidden (D,) and the tokens that are shown (K,)."""
    numbers = hidden if prior.spread is None else prior.spread.weight @ hidden + prior.spread.bias
    pieces = numbers.view(TOKENS, -1)
    inputs = []
    for k in range(TOKENS):
        joined = torch.cat([prior.embed.weight[shown[k]], pieces[k]])
        if len(prior.positions) == 1:
            position = prior.positions[0][k]
        else:
            across = len(prior.positions[1])
            position = prior.positions[0][k // across] + prior.positions[1][k % across]
        inputs.append(prior.project.weight @ joined + prior.project.bias + position)
    for layer in prior.transformer.layers:
        assert isinstance(layer, BidirectionalLayer)
        inputs = naive_layer(layer, inputs)
    logits = []
    for x in inputs:
        found = layer_norm(x, prior.transformer.final_norm)
        inner = layer_norm(gelu(prior.inner.weight @ found + prior.inner.bias), prior.inner_norm)
        vectors = prior.embed.weight[:VOCABULARY] if prior.config.tied else prior.output
        shares = torch.softmax(vectors @ inner + prior.bias, 0)
        logits.append(((1 - prior.config.unimix) * shares + prior.config.unimix / VOCABULARY).log())
    return torch.stack(logits)


@torch.no_grad()
@pytest.mark.parametrize(
    ("grid", "width", "tied"),
    [(None, 18, True), (None, 18, False), (None, 20, True), ((2, 3), 18, True)],
    ids=["pieces", "untied", "spread", "grid"],
)
def test_logits_are_those_of_a_loop_over_heads_and_keys(grid: tuple[int, int] | None, width: int, tied: bool) -> None:
    prior = build(grid, width, tied=tied)
    given, shown = hidden(3, width), random_tokens(3, VOCABULARY + 1)
    expected = torch.stack([naive_logits(prior, given[n], shown[n]) for n in range(3)])
    torch.testing.assert_close(prior._logits(prior._condition(given), shown), expected)
    chosen = torch.tensor([[4, 0], [1, 2], [5, 3]])
    part = prior._logits(prior._condition(given), shown, chosen)
    torch.testing.assert_close(part, expected.take_along_dim(chosen[..., None], 1))
    nothing = torch.full((TOKENS,), MASK)
    expected = torch.stack([naive_logits(prior, given[n], nothing) for n in range(3)])
    torch.testing.assert_close(prior.one_pass_logits(given), expected)


def test_training_computes_what_sampling_computes() -> None:
    prior, given, shown = build(), hidden(4), random_tokens(4, VOCABULARY + 1)
    chosen = torch.tensor([[4, 0], [1, 2], [5, 3], [0, 1]])
    with_gradients = prior._logits(prior._condition(given), shown)
    with torch.no_grad():
        torch.testing.assert_close(prior._logits(prior._condition(given), shown), with_gradients)
        part = prior._logits(prior._condition(given), shown, chosen)
    torch.testing.assert_close(part, with_gradients.take_along_dim(chosen[..., None], 1))


def naive_head(prior: MaskGITPrior, z: Tensor, partition: list[list[int]], h: Tensor, uniform: list[Tensor]) -> Tensor:
    """Algorithm 2 for one row: tokens by inverse CDF from the numbers (S,) of each pass."""
    for part, numbers in zip(partition, uniform, strict=True):
        masked = torch.tensor([MASK if k in part else int(z[k]) for k in range(TOKENS)])
        probabilities = naive_logits(prior, h, masked).exp()
        z = z.clone()
        for k, number in zip(part, numbers.tolist(), strict=True):
            total, token = 0.0, 0
            while token < VOCABULARY - 1:
                total += float(probabilities[k, token])
                if number < total:
                    break
                token += 1
            z[k] = token
    return z


def naive_sample(prior: MaskGITPrior, hidden: Tensor, noise: Noise, row: int) -> tuple[Tensor, int]:
    """Algorithm 1 for one row, with the row's own noise; and how many passes it took."""
    alone = Noise(noise.seeds[row : row + 1], noise.steps[row : row + 1])
    config, z, passes = prior.config, torch.full((TOKENS,), MASK), 0
    for phase, count in enumerate([config.draft] + [config.revise] * config.repetitions):
        order = sorted(range(TOKENS), key=alone.uniform(TOKENS, draw=500 + phase)[0].tolist().__getitem__)
        if count == 1:
            order = list(range(TOKENS))
        partition = [
            [position for rank, position in enumerate(order) if i * TOKENS // count <= rank < (i + 1) * TOKENS // count]
            for i in range(count)
        ]
        uniform = [alone.uniform(len(part), draw=passes + i)[0] for i, part in enumerate(partition)]
        z = naive_head(prior, z, partition, hidden[row], uniform)
        passes += count
    return z, passes


@torch.no_grad()
@pytest.mark.parametrize(("draft", "revise", "repetitions"), [(1, 2, 0), (3, 2, 0), (6, 1, 0), (1, 2, 1), (4, 3, 2)])
def test_sampling_is_algorithms_1_and_2(draft: int, revise: int, repetitions: int) -> None:
    prior = build(draft=draft, revise=revise, repetitions=repetitions)
    given, keyed = hidden(5), noise(5, step=7)
    tokens, finite = prior.sample(given, keyed, NOTHING)
    assert finite.all()
    for row in range(5):
        expected, passes = naive_sample(prior, given, keyed, row)
        assert passes == prior.config.passes
        assert tokens[row].tolist() == expected.tolist()
    assert len({tuple(row) for row in tokens.tolist()}) > 1


@torch.no_grad()
def test_chain_logits_are_given_the_true_tokens_of_earlier_parts() -> None:
    prior, given, tokens = build(), hidden(3), random_tokens(3)
    torch.testing.assert_close(prior.chain_logits(given, tokens, noise(3)), prior.one_pass_logits(given))
    for rounds in (2, 6):
        logits = prior.chain_logits(given, tokens, noise(3), rounds)
        for row in range(3):
            order = noise(3).uniform(TOKENS, 500)[row].argsort().tolist()
            for i in range(rounds):
                earlier, part = order[: i * TOKENS // rounds], order[i * TOKENS // rounds : (i + 1) * TOKENS // rounds]
                shown = torch.tensor([int(tokens[row, k]) if k in earlier else MASK for k in range(TOKENS)])
                torch.testing.assert_close(logits[row, part], naive_logits(prior, given[row], shown)[part])


def posterior(rows: int) -> Posterior:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(rows, TOKENS, VOCABULARY, generator=generator, dtype=torch.float64).requires_grad_()
    return Posterior(random_tokens(rows), logits, logits.flatten(1), torch.zeros(rows))


HIDE = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 1], [0, 0, 0, 1, 1, 0]], dtype=torch.bool)


@pytest.mark.parametrize("objective", [KLObjective(free_bits=0.0), CrossEntropyObjective(weight=2.0)])
def test_the_loss_is_a_loop_over_hidden_tokens(
    objective: KLObjective | CrossEntropyObjective, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Divergences of hidden tokens alone, K / M times their sum, with the target's other tokens shown."""
    monkeypatch.setattr(maskgit, "hide_some", lambda rows, tokens, device: HIDE)
    prior, given, target = build(objective=objective), hidden(4), posterior(4)
    terms = prior.loss(given, target, torch.tensor([True, True, False, True]), NOTHING)
    totals = []
    for row in (0, 1, 3):
        shown = torch.tensor([MASK if HIDE[row, k] else int(target.tokens[row, k]) for k in range(TOKENS)])
        log_q, total = naive_logits(prior, given[row], shown), 0.0
        for k in range(TOKENS):
            if not HIDE[row, k]:
                continue
            p = target.logits[row, k].detach().softmax(0)
            if isinstance(objective, KLObjective):
                total += sum(float(p[v] * (p[v].log() - log_q[k, v])) for v in range(VOCABULARY))
            else:
                total -= float(log_q[k, target.tokens[row, k]])
        totals.append(total * TOKENS / int(HIDE[row].sum()))
    expected = sum(totals) / 3
    assert terms.parts["dynamics"].item() == pytest.approx(expected)
    scale = objective.dynamics + objective.representation if isinstance(objective, KLObjective) else 2.0
    assert terms.total.item() == pytest.approx(scale * expected)
