"""A row's results are the same bits in a batch of any size, on any number of threads, beside rows of any age."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dreamenvs import tree
from dreamenvs.nn.layers import (
    row_gelu,
    row_linear,
    row_silu,
    row_softplus,
)
from dreamenvs.sequence.mamba2 import Mamba2, Mamba2Config
from dreamenvs.sequence.retnet import RetNet, RetNetConfig
from dreamenvs.sequence.transformer import BlockTransformerConfig, Transformer, TransformerConfig
from tests.rounding import rows_agree

pytestmark = pytest.mark.portable
ROWS = 100
BATCHES = (8, 9, 16, 64, 100)


@pytest.fixture(params=["mamba2", "retnet", "transformer", "gpt", "storm"])
def model(request: pytest.FixtureRequest) -> Any:
    """The paper's widths, which decide how BLAS splits the work."""
    torch.manual_seed(0)
    if request.param == "mamba2":
        return Mamba2(Mamba2Config(layers=1)).eval()
    if request.param == "gpt":
        return Transformer(TransformerConfig(layers=1, window=16, slack=2, layer="gpt")).eval()
    if request.param == "storm":
        config = TransformerConfig(layers=1, feed_forward=1024, window=16, layer="post", positions="learned")
        return Transformer(config).eval()
    if request.param == "retnet":
        return RetNet(RetNetConfig(layers=1)).eval()
    return Transformer(TransformerConfig(layers=1, window=16)).eval()


def test_steps(model: Any, threads: int) -> None:
    inputs = torch.randn(ROWS, 4, model.width, generator=torch.Generator().manual_seed(0))

    def run(cache: Any) -> Tensor:
        outputs = []
        for t in range(2, 4):
            hidden, cache = model.step(inputs[: len(cache[0]), t], cache)
            outputs.append(hidden)
        return torch.stack(outputs, 1)

    with torch.inference_mode():
        _, cache = model.extend(inputs.repeat(1, 5, 1), model.initial_cache(ROWS))
        _, young = model.extend(inputs[:33, :2], model.initial_cache(33))
        cache = tree.put_rows(cache, torch.arange(0, 99, 3), young)
        torch.set_num_threads(threads)
        expected = run(tree.clone(cache))
        for count in BATCHES:
            assert rows_agree(run(tree.take_rows(cache, torch.arange(count))), expected[:count], any_threads=False)
        full = torch.tensor([1, 2, 4, 5, 7, 8, 10, 11])
        alone, _ = model.step(inputs[full, 2], tree.take_rows(cache, full))
        assert rows_agree(alone, expected[full, 0], any_threads=False)


def test_extending(model: Any, threads: int) -> None:
    inputs = torch.randn(ROWS, 3, model.width, generator=torch.Generator().manual_seed(1))
    torch.set_num_threads(threads)
    with torch.inference_mode():
        for length in (1, 3):
            expected, _ = model.extend(inputs[:, :length], model.initial_cache(ROWS))
            for count in (9, 64):
                part, _ = model.extend(inputs[:count, :length], model.initial_cache(count))
                assert rows_agree(part, expected[:count], any_threads=False)


def test_predicting_a_frame_at_once(threads: int) -> None:
    """A row of REM's imagined step, alone, in batches of any size, and where groups of rows end elsewhere."""
    torch.manual_seed(0)
    model = RetNet(RetNetConfig(layers=2)).eval()
    generator = torch.Generator().manual_seed(2)
    inputs, queries = torch.randn(64, 65, 256, generator=generator), torch.randn(64, 256, generator=generator)
    torch.set_num_threads(1)
    with torch.inference_mode():
        _, before = model.extend(inputs.flip(1), model.initial_cache(64))
        expected, after = model.extend_last(inputs, before)
        peeked = model.peek(queries, after)
        torch.set_num_threads(threads)
        for count in (1, 2, 3, 7, 16, 33, 64):
            rows = torch.arange(64 - count, 64)
            last, cache = model.extend_last(inputs[rows], tree.take_rows(before, rows))
            assert rows_agree(last, expected[rows], any_threads=False)
            assert rows_agree(cache.states, after.states[rows], any_threads=False)
            assert rows_agree(model.peek(queries, cache), peeked[rows], any_threads=False)


def test_young_rows_do_not_notice_old_ones(threads: int) -> None:
    """Of a ring that is not full only the first blocks are read, as many as the oldest row needs."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(layers=2)).eval()
    inputs = torch.randn(24, 130, 512, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for age in (3, 31, 40, 100):
            _, young = model.extend(inputs[:16, :age], model.initial_cache(16))
            _, old = model.extend(inputs, model.initial_cache(24))
            mixed = tree.put_rows(old, torch.arange(16), young)
            torch.set_num_threads(threads)
            for step in range(3):
                alone, young = model.step(inputs[:16, step], young)
                together, mixed = model.step(inputs[:, step], mixed)
                assert rows_agree(alone, together[:16])


def test_young_rows_do_not_notice_old_ones_in_blocks(threads: int) -> None:
    """Blocks of a hundred inputs and narrow heads, beside rows whose ring is full."""
    torch.manual_seed(0)
    config = BlockTransformerConfig(width=32, layers=1, heads=2, feed_forward=64, blocks=3).for_blocks(101)
    model = Transformer(config).eval()
    inputs = torch.randn(8, 700, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        _, old = model.extend(inputs[:, :606], model.initial_cache(8))
        for age in (99, 303):
            _, young = model.extend(inputs[:, :age], model.initial_cache(8))
            mixed = tree.put_rows(tree.clone(old), torch.arange(4), tree.take_rows(young, torch.arange(4)))
            torch.set_num_threads(threads)
            for count in (2, 12, 99):
                alone, young = model.extend(inputs[:, :count], young)
                together, mixed = model.extend(inputs[:, :count], mixed)
                assert rows_agree(alone[:4], together[:4])


def test_linear(threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn(ROWS, 512, generator=generator), torch.randn(200, 512, generator=generator)
    torch.set_num_threads(threads)
    with torch.no_grad():
        expected = row_linear(inputs, weight)
        # The numbers are about 20: sums of 512 in float32, in an order that depends on the threads.
        torch.testing.assert_close(expected.double(), inputs.double() @ weight.double().T, rtol=0, atol=1e-4)
        for count in range(1, 20):
            assert rows_agree(row_linear(inputs[:count], weight), expected[:count], any_threads=False)


@pytest.mark.parametrize("width", [16, 48, 64])
@pytest.mark.parametrize("function", [row_silu, row_gelu])
def test_activations_of_rows_that_vectors_do_not_fill(function: Any, width: int, threads: int) -> None:
    inputs = torch.randn(401, width, generator=torch.Generator().manual_seed(0))
    torch.set_num_threads(threads)
    with torch.no_grad():
        results = function(inputs)
        for rows in (1, 3, 17, 100):
            assert rows_agree(function(inputs[:rows]), results[:rows])


@pytest.mark.parametrize(
    ("function", "reference"), [(row_silu, F.silu), (row_softplus, F.softplus), (row_gelu, F.gelu)]
)
def test_activations(function: Any, reference: Any) -> None:
    inputs = torch.linspace(-120, 120, 1009).repeat(13)
    with torch.no_grad():
        results = function(inputs)
        assert torch.equal(results, torch.cat([function(part) for part in inputs.split(7)]))
    torch.testing.assert_close(results, reference(inputs))
    assert torch.equal(inputs, torch.linspace(-120, 120, 1009).repeat(13))
