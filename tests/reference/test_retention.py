"""Retention and REM's prediction of whole frames against loops straight from the paper, in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dreamenvs import tree
from dreamenvs.sequence.retention import (
    MAX_CHUNK,
    advance,
    chunk_turns,
    decays,
    retain_blockwise,
    retain_chunkwise,
    retain_parallel,
    retain_recurrent,
    thetas,
)
from dreamenvs.sequence.retnet import RetNet, RetNetConfig
from dreamenvs.sequence.retnet_layer import RetNetLayer

pytestmark = pytest.mark.portable
HEADS, HEAD_DIM = 3, 4


def problem(length: int, rows: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (rows, HEADS, length, HEAD_DIM)
    parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    return [part.to(dtype) for part in (*parts, torch.zeros(rows, HEADS, HEAD_DIM, HEAD_DIM))]


def turned(vector: Tensor, position: int) -> list[float]:
    """A vector (d,) at an absolute position: neighbours are real and imaginary parts."""
    result = []
    for j in range(len(vector) // 2):
        angle = position / 10_000 ** (j / (len(vector) // 2 - 1))
        real, imaginary = float(vector[2 * j]), float(vector[2 * j + 1])
        result.append(math.cos(angle) * real - math.sin(angle) * imaginary)
        result.append(math.sin(angle) * real + math.cos(angle) * imaginary)
    return result


def naive(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """y[n] = Σ γ^(n-m) (q[n] e^inθ)·(k[m] e^imθ) v[m] / √d over m ≤ n, one number at a time."""
    outputs = torch.zeros_like(values)
    for row in range(queries.shape[0]):
        for head, decay in enumerate([1 - math.exp(-x * math.log(2)) for x in (5, 7, 9)]):
            for n in range(queries.shape[2]):
                query = turned(queries[row, head, n], n)
                for m in range(n + 1):
                    key = turned(keys[row, head, m], m)
                    score = sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(HEAD_DIM)
                    outputs[row, head, n] += decay ** (n - m) * score * values[row, head, m]
    return outputs


def absolute_state(keys: Tensor, values: Tensor) -> Tensor:
    """Equation 5 over the whole sequence, with the paper's absolute positions, transposed."""
    length, gamma = keys.shape[2], decays(HEADS)
    state = torch.zeros(keys.shape[0], HEADS, HEAD_DIM, HEAD_DIM, dtype=keys.dtype)
    for row in range(keys.shape[0]):
        for head in range(HEADS):
            for m in range(length):
                key = torch.tensor(turned(keys[row, head, m], m), dtype=keys.dtype) / math.sqrt(HEAD_DIM)
                state[row, head] += gamma[head] ** (length - 1 - m) * torch.outer(values[row, head, m], key)
    return state


def assert_close(result: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    assert result.dtype == expected.dtype
    assert float((result - expected).detach().abs().max() / expected.detach().abs().max()) < tolerance


def test_decays_are_those_of_the_published_code() -> None:
    expected = torch.tensor([0.96875, 0.987598, 0.995078, 0.998047], dtype=torch.float64)
    torch.testing.assert_close(decays(4), expected, rtol=0, atol=1e-6)
    paper = 1 - 2.0 ** (-5 - torch.arange(5, dtype=torch.float64))
    torch.testing.assert_close(decays(5), paper)
    assert not torch.allclose(decays(4), paper[:4], atol=1e-3)


def test_thetas() -> None:
    result = thetas(64)
    assert len(result) == 32
    assert result[0] == 1
    torch.testing.assert_close(result[-1], torch.tensor(1e-4, dtype=torch.float64))
    torch.testing.assert_close(result[1] / result[0], result[31] / result[30])


@pytest.mark.parametrize("length", [1, 2, 13])
def test_parallel_and_recurrent_match_the_definition(length: int) -> None:
    queries, keys, values, start = problem(length)
    expected = naive(queries, keys, values)
    assert_close(retain_parallel(queries, keys, values), expected)
    assert_close(retain_recurrent(queries, keys, values, start).outputs, expected)


@pytest.mark.parametrize("chunk", [1, 4, 7, 64])
@pytest.mark.parametrize("length", [1, 7, 8, 30])
def test_chunks_match_the_other_forms(length: int, chunk: int) -> None:
    queries, keys, values, start = problem(length)
    result = retain_chunkwise(queries, keys, values, start, chunk)
    assert_close(result.outputs, retain_parallel(queries, keys, values))
    assert_close(result.states, retain_recurrent(queries, keys, values, start).states)


@pytest.mark.parametrize("chunk_blocks", [1, 2, 3, 7])
def test_blocks_match_the_other_forms(chunk_blocks: int) -> None:
    """Outputs, and the state before and after every block (equations 6 and 7)."""
    queries, keys, values, start = problem(35)
    blocks = [part.unflatten(2, (7, 5)) for part in (queries, keys, values)]
    result = retain_blockwise(*blocks, start, chunk_blocks)
    assert_close(result.outputs.flatten(2, 3), retain_parallel(queries, keys, values))
    assert (result.states[:, :, 0] == 0).all()
    for block in range(1, 8):
        prefix = [part[:, :, : 5 * block] for part in (queries, keys, values)]
        assert_close(result.states[:, :, block], retain_recurrent(*prefix, start).states)


@pytest.mark.parametrize("length", [1, 40])
def test_the_moving_frame_is_the_absolute_one_turned_back(length: int) -> None:
    queries, keys, values, start = problem(length)
    state = retain_recurrent(queries, keys, values, start).states
    absolute = absolute_state(keys, values)
    for row in range(2):
        for head in range(HEADS):
            expected = [turned(absolute[row, head, i], -length) for i in range(HEAD_DIM)]
            assert_close(state[row, head], torch.tensor(expected, dtype=torch.float64))


def test_moving_a_frame_twice_is_moving_it_at_once() -> None:
    state = torch.randn(2, HEADS, HEAD_DIM, HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(advance(advance(state, 65), 130), advance(state, 195))


@pytest.mark.parametrize("chunk", [65, 195, MAX_CHUNK])
def test_float32_stays_exact_over_long_chunks(chunk: int) -> None:
    exact, rounded = problem(1100), problem(1100, dtype=torch.float32)
    expected, result = retain_chunkwise(*exact, 64), retain_chunkwise(*rounded, chunk)
    for single, double in zip(result, expected, strict=True):
        assert_close(single.double(), double, 2e-6)


def test_longer_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        chunk_turns(4, 64, MAX_CHUNK + 1, torch.float32, torch.device("cpu"))


def test_gradients() -> None:
    leaves = [part[:1].requires_grad_() for part in problem(6)]
    assert torch.autograd.gradcheck(lambda *parts: retain_chunkwise(*parts, 4), leaves)


# The whole model, and the prediction of frames at once.


def small_model(dtype: torch.dtype = torch.float64) -> RetNet:
    torch.manual_seed(0)
    config = RetNetConfig(width=16, layers=3, heads=2, feed_forward=24, chunk=8)
    model = RetNet(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.to(dtype)


def blocks_and_queries(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randn(2, 7, 5, 16, generator=generator, dtype=torch.float64)
    return blocks.to(dtype), torch.randn(4, 16, generator=generator, dtype=torch.float64).to(dtype)


def naive_layer(layer: RetNetLayer, hidden: Tensor) -> Tensor:
    """Equations 9 and 10 with MSR of appendix A.3, from the parallel form of retention."""
    normed = F.layer_norm(hidden, (16,), layer.retention_norm.weight, layer.retention_norm.bias, 1e-6)
    weights, biases = layer.qkvg.weight.chunk(4), layer.qkvg.bias.chunk(4)
    queries, keys, values, gate = (normed @ w.T + b for w, b in zip(weights, biases, strict=True))
    queries, keys, values = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in (queries, keys, values))
    retained = retain_parallel(queries, keys, values).transpose(1, 2).flatten(2)
    grouped = F.group_norm(retained.flatten(0, 1), 2, eps=1e-6).view(hidden.shape)
    hidden = hidden + layer.out(grouped * gate * gate.sigmoid())
    normed = F.layer_norm(hidden, (16,), layer.feed_forward_norm.weight, layer.feed_forward_norm.bias, 1e-6)
    raised = layer.up(normed)
    return hidden + layer.down(raised * raised.sigmoid())


def naive_model(model: RetNet, inputs: Tensor) -> Tensor:
    for layer in model.layers:
        assert isinstance(layer, RetNetLayer)
        inputs = naive_layer(layer, inputs)
    return inputs


def naive_peeking(model: RetNet, blocks: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Every prefix by itself, followed by the queries."""
    hidden = naive_model(model, blocks.flatten(1, 2)).view(blocks.shape)
    peeked = []
    for t in range(blocks.shape[1]):
        sequence = torch.cat((blocks[:, :t].flatten(1, 2), queries.expand(len(blocks), -1, -1)), 1)
        peeked.append(naive_model(model, sequence)[:, -len(queries) :])
    return hidden, torch.stack(peeked, 1)


def test_the_model_from_its_definition() -> None:
    model, (blocks, _) = small_model(), blocks_and_queries()
    inputs = blocks.flatten(1, 2)
    assert_close(model(inputs), naive_model(model, inputs))
    hidden, _ = model.extend(inputs, model.initial_cache(2))
    assert_close(hidden, naive_model(model, inputs))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("chunk_blocks", [1, 2, 3, 7, None])
def test_one_pass_is_every_prefix_followed_by_the_queries(
    chunk_blocks: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    expected = naive_peeking(small_model(), *blocks_and_queries())
    result = small_model(dtype).forward_peeking(*blocks_and_queries(dtype), chunk_blocks)
    for one, other in zip(result, expected, strict=True):
        assert one.dtype == dtype
        assert_close(one.double(), other, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("chunk_blocks", [1, 2, 3, 7])
def test_its_gradients_are_those_of_the_prefixes(chunk_blocks: int, dtype: torch.dtype, tolerance: float) -> None:
    def gradients(dtype: torch.dtype, chunk_blocks: int | None) -> tuple[Tensor, ...]:
        model, leaves = small_model(dtype), [part.requires_grad_() for part in blocks_and_queries(dtype)]
        if chunk_blocks is None:
            hidden, peeked = naive_peeking(model, *leaves)
        else:
            hidden, peeked = model.forward_peeking(*leaves, chunk_blocks)
        loss = hidden[:, :, -1].square().sum() + (peeked**3).sum()
        return torch.autograd.grad(loss, [*leaves, *model.parameters()])

    expected = gradients(torch.float64, None)
    for result, exact in zip(gradients(dtype, chunk_blocks), expected, strict=True):
        assert_close(result.double(), exact, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_imagining_gives_what_training_saw(dtype: torch.dtype, tolerance: float) -> None:
    """`peek` before a block and `extend_last` over it, block after block."""
    model, (blocks, queries) = small_model(dtype), blocks_and_queries(dtype)
    hidden, peeked = model.forward_peeking(blocks, queries)
    cache = model.initial_cache(2)
    for t in range(blocks.shape[1]):
        assert_close(model.peek(queries, cache), peeked[:, t], tolerance)
        last, cache = model.extend_last(blocks[:, t], cache)
        assert_close(last, hidden[:, t, -1], tolerance)


def test_peeking_does_not_advance() -> None:
    model, (blocks, queries) = small_model(), blocks_and_queries()
    _, cache = model.extend(blocks[:, 0], model.initial_cache(2))
    before, same = tree.clone(cache), queries.clone()
    expected, _ = model.extend(queries.expand(2, -1, -1), cache)
    for _ in range(2):
        assert_close(model.peek(queries, cache), expected)
    assert torch.equal(cache.states, before.states)
    for row in range(2):  # one row could be served in place
        model.peek(queries, tree.take_rows(cache, torch.tensor([row])))
    assert torch.equal(queries, same)


@pytest.mark.parametrize("length", [1, 5, 8, 20])
def test_the_last_hidden_alone(length: int) -> None:
    """Up to a chunk at once, and longer."""
    model, (blocks, _) = small_model(), blocks_and_queries()
    _, cache = model.extend(blocks[:, 0], model.initial_cache(2))
    inputs = blocks[:, 1:].flatten(1, 2)[:, :length]
    before, same = tree.clone(cache), inputs.clone()
    expected, expected_cache = model.extend(inputs, cache)
    last, new_cache = model.extend_last(inputs, cache)
    assert_close(last, expected[:, -1])
    assert_close(new_cache.states, expected_cache.states)
    assert torch.equal(cache.states, before.states)
    assert torch.equal(inputs, same)
