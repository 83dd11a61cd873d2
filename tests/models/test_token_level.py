"""IRIS and REM: cached dreams are uncached ones, calls of the sequence model, ablations, and mistakes not repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dreamenvs import tree
from dreamenvs.models import FAMILIES
from dreamenvs.models.actions import sample_actions
from dreamenvs.models.iris import TokenLevelConfig, build, iris_on_rem_grid
from dreamenvs.models.token_blocks import SharedCodesConfig, TokenTableConfig
from dreamenvs.priors.autoregressive import AutoregressiveConfig
from dreamenvs.priors.parallel import ParallelConfig
from dreamenvs.random import Noise
from dreamenvs.types import DiscreteActions, WorldSpec
from tests.small import CONFIGS, DISCRETE, build_small, random_segment, stage_segment

ATARI = WorldSpec(world="Pong", observation_shape=(3, 64, 64), actions=DiscreteActions(count=18))
TOKEN_LEVEL = ["IRIS", "REM"]


def without_pop() -> TokenLevelConfig:
    return replace(CONFIGS["REM"], prior=AutoregressiveConfig())


def noise(rows: int, step: int) -> Noise:
    return Noise(torch.arange(rows), torch.full((rows,), step))


class History:
    """The tokens and actions of one row from its first frame on."""

    def __init__(self, tokens: Tensor, actions: Tensor) -> None:
        self.tokens, self.actions = [*tokens], [*actions]

    def hidden(self, model: Any) -> Tensor:
        """After the last action, from one uncached pass over everything."""
        tokens, actions = torch.stack(self.tokens[: len(self.actions)]), torch.stack(self.actions)
        blocks = model._blocks(tokens[None], actions[None])
        outputs: Tensor = model.sequence(blocks.flatten(1, 2))[0, -1]
        return outputs


@torch.no_grad()
@pytest.mark.parametrize("config", [CONFIGS["IRIS"], CONFIGS["REM"], without_pop()], ids=["IRIS", "REM", "no-POP"])
def test_a_cached_dream_is_an_uncached_one(config: TokenLevelConfig) -> None:
    """Past the window of three blocks, for rows of different ages in one batch, and with a row replaced midway."""
    torch.manual_seed(0)
    model = build(config, DISCRETE).double().eval()
    segment = random_segment(rows=4, steps=6)
    encoded = model.tokenizer.encode(segment.observations.flatten(0, 1)).unflatten(0, (4, 6))
    ages = [6, 2, 1, 4]
    states = [model.observe(tree.map(lambda leaf, r=r, a=a: leaf[r : r + 1, :a], segment)) for r, a in enumerate(ages)]
    histories = [History(encoded[row, :age], segment.actions[row, : age - 1]) for row, age in enumerate(ages)]
    state = tree.concatenate(states)
    for step in range(7):
        if step == 4:
            state = tree.put_rows(state, torch.tensor([1]), states[2])
            histories[1] = History(encoded[2, :1], segment.actions[2, :0])
        actions = sample_actions(DISCRETE.actions, 4, torch.Generator().manual_seed(step))
        state, _ = model.step(state, actions, noise(4, step))
        for row, history in enumerate(histories):
            history.actions.append(actions[row])
            torch.testing.assert_close(state.hidden[row], history.hidden(model), rtol=1e-9, atol=1e-9)
            history.tokens.append(state.tokens[row])


@torch.no_grad()
@pytest.mark.parametrize("family", TOKEN_LEVEL)
def test_dreams_and_training_see_the_same_logits(family: str) -> None:
    """Without chance, a dream draws what training's one pass finds most likely, given the dream's own past."""
    model = build_small(family, dtype=torch.float64)
    state = model.observe(random_segment(steps=1))
    frames, taken = [state.tokens], []
    for step in range(5):
        taken.append(sample_actions(DISCRETE.actions, 8, torch.Generator().manual_seed(step)))
        state, _ = model.step(state, taken[-1], Noise(torch.arange(8), torch.zeros(8).long(), temperature=0.0))
        frames.append(state.tokens)
    blocks = model._blocks(torch.stack(frames, 1), torch.stack([*taken, taken[-1]], 1))
    foreseen = model.prior.foresee(model.sequence, blocks)
    assert torch.equal(model.prior.logits(foreseen.tokens).argmax(-1), torch.stack(frames[1:], 1))
    torch.testing.assert_close(foreseen.actions[:, 4], state.hidden, rtol=1e-9, atol=1e-9)


class Counting:
    """Counts the calls of a sequence model."""

    def __init__(self, sequence: Any) -> None:
        self.sequence, self.calls = sequence, []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.sequence, name)
        if name not in ("extend", "step", "extend_last", "peek"):
            return method

        def counted(*args: Any) -> Any:
            self.calls.append(name)
            return method(*args)

        return counted


@torch.no_grad()
@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 16, 24)])
def test_calls_per_imagined_step(shape: tuple[int, int, int]) -> None:
    """REM: two, whatever K is. IRIS: K, since the last token of a frame waits for the action."""
    for family in TOKEN_LEVEL:
        spec = WorldSpec(world="Small", observation_shape=shape, actions=DiscreteActions(count=4))
        model = build_small(family, spec)
        state = model.observe(random_segment(spec))
        del model._modules["sequence"]
        model.sequence = spy = Counting(build_small(family, spec).sequence)
        model.step(state, torch.zeros(8, dtype=torch.int64), noise(8, 0))
        expected = ["extend_last", "peek"] if family == "REM" else ["extend"] + ["step"] * (model.num_tokens - 1)
        assert spy.calls == expected


@torch.no_grad()
@pytest.mark.parametrize("family", TOKEN_LEVEL)
def test_the_burn_in_sees_the_actions(family: str) -> None:
    """The published REM leaves them out of its burn-in."""
    model, segment = build_small(family), random_segment()
    other = segment.actions.clone()
    other[:, -2] = (other[:, -2] + 1) % 4
    one, two = model.observe(segment), model.observe(segment._replace(actions=other))
    assert not torch.allclose(one.hidden, two.hidden)
    last = segment.actions.clone()
    last[:, -1] = (last[:, -1] + 1) % 4
    assert torch.equal(one.hidden, model.observe(segment._replace(actions=last)).hidden)


@torch.no_grad()
@pytest.mark.parametrize("family", TOKEN_LEVEL)
@pytest.mark.parametrize(("odds", "ends"), [(-30.0, False), (30.0, True)])
def test_a_dream_ends_when_the_model_says_so(family: str, odds: float, ends: bool) -> None:
    """The published REM lets the real environment's end into its dream; here the context's flags change nothing."""
    model, segment = build_small(family), random_segment()
    model.outcomes.termination.output.weight.zero_()
    model.outcomes.termination.output.bias.fill_(odds)
    outcomes = []
    for flags in (torch.zeros_like(segment.terminated), torch.ones_like(segment.terminated)):
        state = model.observe(segment._replace(terminated=flags))
        state, outcome = model.step(state, segment.actions[:, 0], noise(8, 0))
        assert outcome.terminated.tolist() == [ends] * 8
        outcomes.append(state.tokens)
    assert torch.equal(*outcomes)


def test_shared_codes_are_not_moved_by_the_dynamics() -> None:
    for embedding in (SharedCodesConfig(), TokenTableConfig()):
        torch.manual_seed(0)
        model = build(replace(CONFIGS["REM"], embedding=embedding), DISCRETE).train()
        stage = model.stages()[1]
        stage.loss(stage_segment(stage, random_segment())).total.backward()
        assert all(parameter.grad is None for parameter in model.tokenizer.parameters())
        own = {name for name, _ in model.embedding.named_parameters()}
        assert own == (set() if isinstance(embedding, SharedCodesConfig) else {"table.weight"})


def test_the_first_frames_are_context() -> None:
    """What is asked of the frames that REM takes as context does not reach its loss."""
    model = build_small("REM")
    stage = model.stages()[1]
    segment = stage_segment(stage, random_segment(steps=5))
    changed = segment._replace(rewards=segment.rewards.clone(), terminated=segment.terminated.clone())
    changed.rewards[:, 0], changed.terminated[:, 0] = 9.0, True
    assert torch.equal(stage.loss(segment).total, stage.loss(changed).total)
    changed.rewards[:, 1] = -changed.rewards[:, 1]
    assert not torch.equal(stage.loss(segment).total, stage.loss(changed).total)


def test_parallel_prediction_needs_a_sequence_model_that_can_peek() -> None:
    with pytest.raises(ValueError, match="RetNet"):
        TokenLevelConfig(prior=ParallelConfig())


def sizes(family: str, config: TokenLevelConfig | None = None) -> dict[str, int]:
    with torch.device("meta"):
        model = build(config or FAMILIES[family].paper, ATARI)
    return {name: sum(part.numel() for part in child.parameters()) for name, child in model.named_children()}


def test_paper_sizes() -> None:
    """The sequence models' are the published ones; IRIS's lacks the learned positions, 340 · 256 weights."""
    iris, rem = sizes("IRIS"), sizes("REM")
    assert iris["tokenizer"] == 4_027_523
    assert iris["sequence"] == 10 * (12 * 256**2 + 13 * 256) + 2 * 256
    assert iris["embedding"] == 512 * 256
    assert iris["prior"] == 256 * 256 + 256 + 256 * 512 + 512
    assert (rem["tokenizer"], rem["sequence"], rem["embedding"]) == (3_189_667, 4_277_760, 0)
    assert rem["prior"] == iris["prior"] + 64 * 256
    assert rem["action_input"] == iris["action_input"] == 18 * 256
    with torch.device("meta"):
        model = build(iris_on_rem_grid(), ATARI)
    assert model.num_tokens == 64
    assert model.sequence.config.window == 20 * 65
