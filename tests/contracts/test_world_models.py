"""The laws of a WorldModel, for every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dreamenvs import tree
from dreamenvs.dream import observe_contexts
from dreamenvs.models.actions import sample_actions
from dreamenvs.models.frame_level import shown_frames
from dreamenvs.random import Noise
from dreamenvs.types import WorldSpec
from tests.small import CONFIGS, CONTINUOUS, DISCRETE, build_small, random_segment, stage_segment

pytestmark = [
    pytest.mark.portable,
    pytest.mark.parametrize("family", list(CONFIGS)),
    pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"]),
]


def noise(rows: int, step: int, first: int = 0) -> Noise:
    return Noise(torch.arange(first, first + rows), torch.full((rows,), step))


def actions(spec: WorldSpec, rows: int, seed: int) -> torch.Tensor:
    return sample_actions(spec.actions, rows, torch.Generator().manual_seed(seed))


def walk(model: Any, state: Any, spec: WorldSpec, steps: int, rows: int = 8) -> tuple[Any, list[torch.Tensor]]:
    """Imagine some steps; the tokens and rewards of each."""
    seen = []
    for step in range(steps):
        state, outcome = model.step(state, actions(spec, rows, step), noise(rows, step))
        seen += [model.tokens(state).clone(), outcome.rewards]
    return state, seen


@torch.no_grad()
def test_purity(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = model.observe(random_segment(spec))
    kept = tree.clone(state)
    first, outcome = model.step(state, actions(spec, 8, 0), noise(8, 0))
    first_features = model.features(first).clone()
    other, _ = model.step(state, actions(spec, 8, 1), noise(8, 1))
    again, outcome_again = model.step(state, actions(spec, 8, 0), noise(8, 0))
    assert torch.equal(model.features(again), first_features)
    assert torch.equal(model.features(first), first_features)
    assert not torch.equal(model.features(other), first_features)
    assert torch.equal(outcome.rewards, outcome_again.rewards)
    _, from_kept = walk(model, kept, spec, 3)
    _, from_state = walk(model, state, spec, 3)
    assert all(torch.equal(one, two) for one, two in zip(from_kept, from_state, strict=True))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@torch.no_grad()
def test_row_independence(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec)
    segment = random_segment(spec, rows=16)
    changed = tree.put_rows(segment, torch.arange(8, 16), random_segment(spec, rows=8, seed=9))
    futures = []
    for context in (segment, changed):
        _, seen = walk(model, model.observe(context), spec, 10, rows=16)
        futures.append(torch.cat([part.flatten(1) if part.dim() > 1 else part[:, None] for part in seen], 1))
    assert torch.equal(futures[0][:8], futures[1][:8])
    assert not torch.equal(futures[0][8:], futures[1][8:])


@torch.no_grad()
def test_replaceability(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec)
    old, _ = walk(model, model.observe(random_segment(spec)), spec, 9)
    fresh = model.observe(random_segment(spec, seed=5))
    rows = torch.tensor([1, 6])
    mixed = tree.put_rows(old, rows, tree.take_rows(fresh, rows))
    untouched, replaced = tree.clone(old), tree.clone(fresh)
    for step in range(8):
        chosen, keyed = actions(spec, 8, step), noise(8, step)
        mixed, _ = model.step(mixed, chosen, keyed)
        untouched, _ = model.step(untouched, chosen, keyed)
        replaced, _ = model.step(replaced, chosen, keyed)
        expected = tree.put_rows(untouched, rows, tree.take_rows(replaced, rows))
        assert torch.equal(model.tokens(mixed), model.tokens(expected))
        assert torch.allclose(model.features(mixed), model.features(expected), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("steps", [2, 5, 11])
def test_agreement(family: str, spec: WorldSpec, steps: int) -> None:
    model = build_small(family, spec, dtype=torch.float64)
    segment = random_segment(spec, steps=steps)
    whole = model.observe(segment)
    shorter = model.observe(tree.map(lambda leaf: leaf[:, :-1], segment))
    updated = model.update(shorter, segment.actions[:, -2], segment.observations[:, -1])
    assert torch.equal(model.tokens(whole), model.tokens(updated))
    assert torch.allclose(model.features(whole), model.features(updated), rtol=1e-10, atol=1e-10)
    _, one = walk(model, whole, spec, 3)
    _, other = walk(model, updated, spec, 3)
    assert all(torch.allclose(a.double(), b.double(), atol=1e-6) for a, b in zip(one, other, strict=True))


@torch.no_grad()
def test_imagining_the_real_frame_is_updating_with_it(family: str, spec: WorldSpec) -> None:
    """What `step` computes besides the sampled frame is what `update` computes."""
    model = build_small(family, spec, dtype=torch.float64)
    state = model.observe(random_segment(spec))
    imagined, _ = model.step(state, actions(spec, 8, 0), noise(8, 0))
    updated = model.update(state, actions(spec, 8, 0), model.decode(imagined))
    assert torch.equal(imagined.hidden, updated.hidden)


@pytest.mark.slow
@torch.no_grad()
def test_endless(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec)
    state, _ = walk(model, model.observe(random_segment(spec)), spec, 20)
    size = sum(leaf.untyped_storage().nbytes() for leaf in tree.leaves(state))
    state, seen = walk(model, state, spec, 200)
    assert sum(leaf.untyped_storage().nbytes() for leaf in tree.leaves(state)) == size
    assert all(part.isfinite().all() for part in seen)


@torch.no_grad()
def test_outputs_have_the_declared_shapes(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec)
    state, outcome = model.step(model.observe(random_segment(spec)), actions(spec, 8, 0), noise(8, 0))
    assert model.tokens(state).shape == (8, model.num_tokens)
    assert model.tokens(state).dtype == torch.int64
    assert int(model.tokens(state).max()) < model.vocabulary
    assert model.features(state).shape == (8, model.num_features)
    assert model.decode(state).shape == (8, *spec.observation_shape)
    assert model.decode(state).dtype == torch.uint8
    assert outcome.rewards.dtype == torch.float32
    assert outcome.terminated.dtype == torch.bool
    assert outcome.finite.all()


@torch.no_grad()
def test_non_finite_weights_are_reported_and_not_hidden(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec)
    state = model.observe(random_segment(spec))
    next(part for part in model.prior.modules() if isinstance(part, torch.nn.Linear)).bias[3] = float("nan")
    _, outcome = model.step(state, actions(spec, 8, 0), noise(8, 0))
    assert not outcome.finite.any()


@torch.no_grad()
def test_contexts_of_one_frame_are_enough_and_padding_is_refused(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec)
    walk(model, model.observe(random_segment(spec, steps=1)), spec, 3)
    segment = random_segment(spec)
    segment.valid[2, 4] = False
    with pytest.raises(ValueError, match="no padding"):
        model.observe(segment)


def test_every_parameter_learns(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec)
    stages = model.stages()
    covered = [id(parameter) for stage in stages for group in stage.groups for parameter in group.parameters]
    assert sorted(covered) == sorted(id(parameter) for parameter in model.parameters())
    idle: list[str] = []
    for stage in stages:
        batch = stage_segment(stage, random_segment(spec))
        model.train().zero_grad()
        terms = stage.loss(batch)
        terms.total.backward()
        own = {id(parameter) for group in stage.groups for parameter in group.parameters}
        for name, parameter in model.named_parameters():
            moved = parameter.grad is not None and bool(parameter.grad.any())
            idle += [name] if moved != (id(parameter) in own) else []
        assert all(not part.requires_grad for part in terms.parts.values())
        model.eval()
    assert idle == []


def test_padding_changes_nothing(family: str, spec: WorldSpec) -> None:
    segment = random_segment(spec, steps=6)
    segment.valid[:, 4:] = False
    segment.valid[0, 1:] = False  # a row without a single transition
    other = random_segment(spec, steps=6, seed=3)
    real = {dims: segment.valid.reshape(8, 6, *[1] * (dims - 2)) for dims in range(2, 6)}
    junk = tree.map(lambda leaf, noise: torch.where(real[leaf.dim()], leaf, noise), segment, other)
    for number, declared in enumerate(build_small(family, spec).stages()):
        if declared.final:  # the first padded place holds the frame after the last step, which is real
            shown = shown_frames(segment.valid)[:, :, None, None, None]
            frames = torch.where(shown, segment.observations, other.observations)
            junk = junk._replace(observations=frames)
        results = []
        for batch in (segment, junk._replace(valid=segment.valid)):
            model = build_small(family, spec)
            stage = model.stages()[number]
            taken = stage_segment(stage, batch)
            model.train()
            torch.manual_seed(0)
            model.sequence.eval()  # dropout would draw its noise for padding too
            terms = stage.loss(taken)
            terms.total.backward()
            gradients = [
                torch.zeros(()) if parameter.grad is None else parameter.grad for parameter in model.parameters()
            ]
            results.append((terms.total.detach(), *gradients, *model.buffers()))
        assert all(torch.allclose(one, two, rtol=1e-4, atol=1e-6) for one, two in zip(*results, strict=True))


@torch.no_grad()
def test_padded_contexts_are_observed_without_their_padding(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec)
    contexts = random_segment(spec, rows=6)
    lengths = [5, 2, 5, 1, 3, 2]
    contexts = contexts._replace(valid=torch.arange(5) >= 5 - torch.tensor(lengths)[:, None])
    states = observe_contexts(model, contexts)
    for row, length in enumerate(lengths):
        alone = tree.map(lambda leaf: leaf[row : row + 1, -length:], contexts)  # noqa: B023
        expected = observe_contexts(model, alone)
        assert torch.equal(model.tokens(expected)[0], model.tokens(states)[row])
        assert torch.allclose(model.features(expected)[0], model.features(states)[row], atol=1e-5)
