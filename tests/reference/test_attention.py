"""Banded attention with rotary positions against loops over single numbers, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dreamenvs.nn.attention import (
    attend_bags,
    attend_band,
    attend_few,
    attend_visible,
    bags_of,
    band,
    rotary_turns,
    rotate,
    rotate_,
)
from dreamenvs.sequence.transformer import Transformer, TransformerConfig

pytestmark = pytest.mark.portable
HEAD_DIM = 6


def naive_rotate(vector: Tensor, position: int) -> Tensor:
    result = torch.empty_like(vector)
    for pair in range(HEAD_DIM // 2):
        angle = position * 10_000 ** (-2 * pair / HEAD_DIM)
        left, right = float(vector[2 * pair]), float(vector[2 * pair + 1])
        result[2 * pair] = left * math.cos(angle) - right * math.sin(angle)
        result[2 * pair + 1] = left * math.sin(angle) + right * math.cos(angle)
    return result


def naive_attention(queries: Tensor, keys: Tensor, values: Tensor, window: int) -> Tensor:
    """(T, head_dim) of one head of one row, rotated and banded."""
    outputs = torch.zeros_like(values)
    for t in range(len(queries)):
        sources = range(max(0, t - window + 1), t + 1)
        query = naive_rotate(queries[t], t)
        weights = [math.exp(float(query @ naive_rotate(keys[s], s)) / math.sqrt(HEAD_DIM)) for s in sources]
        for s, weight in zip(sources, weights, strict=True):
            outputs[t] += weight / sum(weights) * values[s]
    return outputs


def random_heads(length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    queries, keys, values = torch.randn(3, 2, 2, length, HEAD_DIM, generator=generator, dtype=torch.float64)
    return queries, keys, values


@pytest.mark.parametrize(("length", "window"), [(7, 3), (7, 1), (7, 7), (5, 20)])
def test_banded_rotary_attention(length: int, window: int) -> None:
    queries, keys, values = random_heads(length)
    turns = rotary_turns(torch.arange(length), HEAD_DIM, torch.float64)
    results = attend_band(rotate(queries, turns), rotate(keys, turns), values, window)
    for row in range(2):
        for head in range(2):
            expected = naive_attention(queries[row, head], keys[row, head], values[row, head], window)
            torch.testing.assert_close(results[row, head], expected, rtol=1e-10, atol=1e-10)


def test_band() -> None:
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert band(4, 2, torch.device("cpu")).int().tolist() == expected


def test_turns_are_exact_after_a_million_steps() -> None:
    position = 1_000_003
    turns = rotary_turns(torch.tensor([position]), HEAD_DIM, torch.float32)[0]
    for pair in range(HEAD_DIM // 2):
        angle = position * 10_000 ** (-2 * pair / HEAD_DIM)
        assert complex(turns[pair]) == pytest.approx(complex(math.cos(angle), math.sin(angle)), abs=1e-7)


def test_masked_attention_matches_the_band() -> None:
    queries, keys, values = random_heads(9)
    visible = band(9, 4, queries.device).expand(2, 1, 9, 9)
    torch.testing.assert_close(
        attend_visible(queries, keys, values, visible), attend_band(queries, keys, values, 4), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_queries_match_the_last_of_many(count: int) -> None:
    queries, keys, values = (part.flatten(0, 1) for part in random_heads(9))
    concealed = ~band(9, 3, queries.device)[-count:].expand(4, count, 9)
    last = queries[:, -count:]
    expected = attend_band(queries[None], keys[None], values[None], 3)[0, :, -count:]
    whole = attend_band(queries, keys, values, 9)[:, -1]
    # Values in a table, with two vectors before those of each and one after them.
    table = torch.nn.functional.pad(values, (0, 0, 2, 1), value=float("nan")).flatten(0, 1)[2:]
    bags = bags_of(4, 12, 9, count, queries.device)

    def in_bags(queries: Tensor, keys: Tensor, values: Tensor, concealed: Tensor | None) -> Tensor:
        return attend_bags(queries, keys, table, bags, concealed)

    for attend in (attend_few, in_bags):
        torch.testing.assert_close(attend(last, keys, values, concealed), expected, rtol=1e-12, atol=1e-12)
        everything = attend(last, keys, values, None)
        assert torch.equal(everything, attend(last, keys, values, torch.zeros(4, count, 9, dtype=torch.bool)))
        torch.testing.assert_close(everything[:, -1], whole, rtol=1e-12, atol=1e-12)


def test_rotation_in_place_is_rotation() -> None:
    turns = rotary_turns(torch.arange(3), HEAD_DIM, torch.float64)
    inputs = torch.randn(3, HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = rotate(inputs, turns)
    assert torch.equal(rotate_(inputs, turns), expected)
    assert torch.equal(inputs, expected)


def test_rotation_keeps_low_precision() -> None:
    turns = rotary_turns(torch.arange(3), HEAD_DIM, torch.bfloat16)
    inputs = torch.ones(3, HEAD_DIM, dtype=torch.bfloat16)
    assert turns.dtype == torch.complex64
    assert rotate(inputs, turns).dtype == torch.bfloat16


def naive_transformer(model: Transformer, inputs: Tensor) -> Tensor:
    """The paper's block for one row (T, D), one head and one position at a time."""

    def rms(hidden: Tensor, weight: Tensor) -> Tensor:
        return hidden / (hidden.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    hidden = inputs
    for block in model.blocks:
        width = hidden.shape[-1]
        projected = rms(hidden, block.attention_norm.weight) @ block.qkv.weight.T
        queries, keys, values = projected[:, :width], projected[:, width : 2 * width], projected[:, 2 * width :]
        heads = [
            naive_attention(queries[:, i:j], keys[:, i:j], values[:, i:j], model.config.window)
            for i, j in zip(range(0, width, HEAD_DIM), range(HEAD_DIM, width + 1, HEAD_DIM), strict=True)
        ]
        hidden = hidden + torch.cat(heads, -1) @ block.out.weight.T
        raised = rms(hidden, block.feed_forward_norm.weight) @ block.up.weight.T
        hidden = hidden + (raised * raised.sigmoid()) @ block.down.weight.T
    return rms(hidden, model.final_norm.weight)


def test_whole_transformer() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(width=2 * HEAD_DIM, layers=2, heads=2, feed_forward=10, window=3)
    model = Transformer(config).double().eval()
    inputs = torch.randn(1, 8, config.width, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(inputs)[0], naive_transformer(model, inputs[0]), rtol=1e-10, atol=1e-10)
