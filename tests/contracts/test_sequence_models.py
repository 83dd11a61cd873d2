"""The laws of `SequenceModel`, over every implementation: parallel = stepwise = in pieces, for rows of any age."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dreamenvs import tree
from dreamenvs.sequence.conv_gru import ConvGRU, ConvGRUConfig
from dreamenvs.sequence.mamba2 import Mamba2, Mamba2Config
from dreamenvs.sequence.retnet import RetNet, RetNetConfig
from dreamenvs.sequence.transformer import Transformer, TransformerConfig

pytestmark = pytest.mark.portable
WIDTH, LENGTH = 32, 30

BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "mamba2": lambda: Mamba2(Mamba2Config(width=WIDTH, layers=2, heads=4, state_size=8, chunk=8)),
    "mamba2-groups": lambda: Mamba2(Mamba2Config(width=WIDTH, layers=2, heads=4, groups=2, state_size=4, chunk=7)),
    "conv-gru": lambda: ConvGRU(ConvGRUConfig(channels=4), (2, 4)),
    "conv-gru-of-single-places": lambda: ConvGRU(ConvGRUConfig(channels=4, kernel=1), (1, 8)),
    "retnet": lambda: RetNet(RetNetConfig(width=WIDTH, layers=2, heads=4, feed_forward=48, chunk=8)),
    "retnet-one-chunk": lambda: RetNet(RetNetConfig(width=WIDTH, layers=1, heads=1, feed_forward=48)),
    "transformer": lambda: Transformer(TransformerConfig(width=WIDTH, layers=2, heads=2, feed_forward=48, window=8)),
    "transformer-unit-window": lambda: Transformer(TransformerConfig(width=WIDTH, heads=2, layers=1, window=1)),
    "transformer-long-window": lambda: Transformer(TransformerConfig(width=WIDTH, heads=2, layers=2, window=50)),
    "gpt": lambda: Transformer(
        TransformerConfig(width=WIDTH, heads=2, layers=2, feed_forward=48, window=8, slack=2, layer="gpt")
    ),
    "storm": lambda: Transformer(
        TransformerConfig(width=WIDTH, heads=2, layers=2, feed_forward=48, window=8, layer="post", positions="learned")
    ),
    "learned-unit-window": lambda: Transformer(
        TransformerConfig(width=WIDTH, heads=2, layers=1, window=1, positions="learned")
    ),
}


@pytest.fixture(params=BUILDERS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return BUILDERS[request.param]().eval()


def random_inputs(rows: int, length: int = LENGTH, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(rows), dtype=dtype)


def run_steps(model: Any, inputs: Tensor, cache: Any) -> tuple[Tensor, Any]:
    outputs = []
    for t in range(inputs.shape[1]):
        hidden, cache = model.step(inputs[:, t], cache)
        outputs.append(hidden)
    return torch.stack(outputs, 1), cache


def assert_same(result: Tensor, expected: Tensor) -> None:
    tolerance = 1e-10 if expected.dtype == torch.float64 else 1e-5
    assert result.dtype == expected.dtype
    assert float((result - expected).abs().max() / expected.abs().max()) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parallel_stepwise_and_pieces_agree(model: Any, dtype: torch.dtype) -> None:
    model = model.to(dtype)
    inputs = random_inputs(3, dtype=dtype)
    with torch.no_grad():
        expected = model(inputs)
        stepwise, _ = run_steps(model, inputs, model.initial_cache(3))
        assert_same(stepwise, expected)
        cache, pieces = model.initial_cache(3), []
        for piece in inputs.split([3, 1, 17, 9], 1):
            hidden, cache = model.extend(piece, cache)
            pieces.append(hidden)
        assert_same(torch.cat(pieces, 1), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_different_ages_in_one_batch(model: Any, dtype: torch.dtype) -> None:
    """Row 1 is replaced by a younger one, row 2 by a fresh one; then all go on by steps, a piece, and steps again."""
    model = model.to(dtype)
    inputs = random_inputs(3, dtype=dtype)
    ages = [13, 5, 0]
    with torch.no_grad():
        _, cache = run_steps(model, inputs[:, :13], model.initial_cache(3))
        _, young = model.extend(inputs[1:2, :5], model.initial_cache(1))
        cache = tree.put_rows(cache, torch.tensor([1]), young)
        cache = tree.put_rows(cache, torch.tensor([2]), model.initial_cache(1))
        rest = torch.stack([inputs[row, age : age + 17] for row, age in enumerate(ages)])
        first, cache = run_steps(model, rest[:, :4], cache)
        second, cache = model.extend(rest[:, 4:14], cache)
        third, cache = run_steps(model, rest[:, 14:], cache)
        outputs = torch.cat((first, second, third), 1)
        for row, age in enumerate(ages):
            assert_same(outputs[row], model(inputs[row : row + 1, : age + 17])[0, age:])


def test_replaced_in_place(model: Any) -> None:
    inputs = random_inputs(4)
    with torch.inference_mode():
        _, cache = run_steps(model, inputs[:, :11], model.initial_cache(4))
        rows = torch.tensor([2, 0])
        _, fresh = model.extend(inputs[rows, :3], model.initial_cache(2))
        tree.put_rows_(cache, rows, fresh)
        outputs, _ = run_steps(model, inputs[:, 11:20], cache)
        assert_same(outputs[[1, 3]], model(inputs[[1, 3], :20])[:, 11:])
        replaced = torch.cat((inputs[rows, :3], inputs[rows, 11:20]), 1)
        assert_same(outputs[rows], model(replaced)[:, 3:])


def test_an_old_cache_shows_what_it_did(model: Any) -> None:
    """Two different steps from one cache: neither disturbs the other, nor what came before."""
    inputs = random_inputs(2)
    other = random_inputs(5)[:2]
    with torch.no_grad():
        _, cache = run_steps(model, inputs[:, :20], model.initial_cache(2))
        one, after_one = model.step(inputs[:, 20], cache)
        two, after_two = model.step(other[:, 20], cache)
        again, _ = model.step(inputs[:, 20], cache)
        assert torch.equal(one, again)
        assert not torch.equal(one, two)
        assert_same(model.step(inputs[:, 21], after_one)[0], model(inputs[:, :22])[:, 21])
        branch = torch.cat((inputs[:, :20], other[:, 20:22]), 1)
        assert_same(model.step(other[:, 21], after_two)[0], model(branch)[:, 21])


def test_extending_leaves_the_old_cache_alone(model: Any) -> None:
    inputs = random_inputs(2)
    with torch.no_grad():
        _, cache = model.extend(inputs[:, :12], model.initial_cache(2))
        before = tree.clone(cache)
        model.extend(inputs[:, 12:], cache)
        for left, right in zip(tree.leaves(cache), tree.leaves(before), strict=True):
            assert torch.equal(left, right)


def test_a_copy_is_independent(model: Any) -> None:
    inputs = random_inputs(2)
    with torch.no_grad():
        _, cache = run_steps(model, inputs[:, :12], model.initial_cache(2))
        copies = [tree.clone(cache), tree.take_rows(cache, torch.tensor([0, 1]))]
        expected, _ = run_steps(model, inputs[:, 12:], cache)
        for copy in copies:
            assert torch.equal(run_steps(model, inputs[:, 12:], copy)[0], expected)


def test_rows_first(model: Any) -> None:
    cache = model.initial_cache(7)
    assert all(leaf.shape[0] == 7 for leaf in tree.leaves(cache))
    weight = next(model.parameters())
    assert all(leaf.dtype in (weight.dtype, torch.int64) for leaf in tree.leaves(cache))
    assert model.width == WIDTH


def test_causality(model: Any) -> None:
    inputs = random_inputs(1)
    changed = inputs.clone()
    changed[:, 15] += 1
    with torch.no_grad():
        same = (model(inputs) == model(changed)).all(-1)[0]
    assert same[:15].all()
    assert not same[15]


def test_a_row_that_is_not_finite_harms_no_other(model: Any) -> None:
    inputs = random_inputs(3)
    broken = inputs.clone()
    broken[1, 6] = torch.nan
    with torch.no_grad():
        expected, _ = run_steps(model, inputs, model.initial_cache(3))
        outputs, cache = run_steps(model, broken, model.initial_cache(3))
        assert torch.equal(outputs[[0, 2]], expected[[0, 2]])
        assert outputs[1, 6].isnan().all()
        cache = tree.put_rows(cache, torch.tensor([1]), model.initial_cache(1))
        assert torch.equal(run_steps(model, inputs, cache)[0][1], expected[1])


@pytest.mark.slow
def test_memory_is_flat(model: Any) -> None:
    """Ten thousand inputs, far past the window, leave the storage as large as it was."""
    inputs = random_inputs(1, 10_000)
    with torch.inference_mode():
        cache = model.initial_cache(1)
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree.leaves(cache)]
        for piece in inputs[:, :9_750].split(250, 1):
            _, cache = model.extend(piece, cache)
        outputs, cache = run_steps(model, inputs[:, 9_750:], cache)
        assert [leaf.untyped_storage().nbytes() for leaf in tree.leaves(cache)] == sizes
        assert outputs.isfinite().all()


def test_gradients_flow_through_forward(model: Any) -> None:
    model.train()
    inputs = random_inputs(2, 5).requires_grad_()
    model(inputs).square().sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.abs().sum() > 0
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_gradients_are_right(model: Any) -> None:
    model = model.double()
    inputs = random_inputs(1, 10, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(model, inputs, fast_mode=True)


def test_dropout_only_in_training(model: Any) -> None:
    inputs = random_inputs(2)
    with torch.no_grad():
        assert torch.equal(model(inputs), model(inputs))
        model.train()
        dropout = getattr(model.config, "dropout", 0.0)  # a convolutional GRU has none
        assert torch.equal(model(inputs), model(inputs)) is (dropout == 0)


def test_caches_cross_inference_mode(model: Any) -> None:
    inputs = random_inputs(2)
    with torch.inference_mode():
        _, cache = run_steps(model, inputs[:, :9], model.initial_cache(2))
    outputs, cache = run_steps(model, inputs[:, 9:12], cache)
    with torch.inference_mode():
        more, _ = run_steps(model, inputs[:, 12:], cache)
        assert_same(torch.cat((outputs, more), 1), model(inputs)[:, 9:])
