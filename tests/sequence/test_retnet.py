"""RetNet: sizes, initial values, what training drops, and a very long life."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dreamenvs.sequence.retnet import RetNet, RetNetCache, RetNetConfig
from dreamenvs.sequence.retnet_layer import RetNetLayer

pytestmark = pytest.mark.portable


def test_paper_sizes() -> None:
    config = RetNetConfig()
    assert (config.width, config.layers, config.heads, config.feed_forward) == (256, 5, 4, 1024)
    assert config.dropout == 0.1
    assert sum(parameter.numel() for parameter in RetNet(config).parameters()) == 4_277_760


@pytest.mark.parametrize("bad", [{"heads": 3}, {"heads": 256}, {"layers": 0}, {"chunk": 0}, {"chunk": 1025}])
def test_impossible_sizes_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"multiple|at least|must be in"):
        RetNetConfig(**bad)


def test_every_layer_begins_with_weights_of_its_own() -> None:
    """The published code copies one layer five times."""
    torch.manual_seed(0)
    layers = RetNet(RetNetConfig()).layers
    for name, weight in layers[0].named_parameters():
        if weight.ndim == 2:
            assert all(not torch.equal(weight, layer.get_parameter(name)) for layer in layers[1:])


def test_initial_values() -> None:
    torch.manual_seed(0)
    layer = RetNetLayer(256, 4, 1024, 0.1)
    for part in (*layer.qkvg.weight.chunk(4), layer.out.weight):  # not Xavier's of the projection as a whole
        assert float(part.detach().std()) == pytest.approx((2 / 512) ** 0.5, rel=0.02)
    for part in (layer.up.weight, layer.down.weight):
        assert float(part.detach().std()) == pytest.approx((2 / 1280) ** 0.5, rel=0.02)
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            assert (module.bias == 0).all()


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_the_chunk_changes_nothing(chunk: int) -> None:
    def hidden(chunk: int) -> torch.Tensor:
        torch.manual_seed(0)
        model = RetNet(RetNetConfig(width=16, layers=2, heads=2, chunk=chunk)).double().eval()
        return model(torch.randn(2, 23, 16, dtype=torch.float64))

    torch.testing.assert_close(hidden(chunk), hidden(8), rtol=1e-10, atol=1e-10)


def test_peeking_in_training_drops() -> None:
    torch.manual_seed(0)
    model = RetNet(RetNetConfig(width=16, layers=1, heads=2, feed_forward=16)).train()
    blocks, queries = torch.randn(2, 3, 4, 16), torch.randn(4, 16)
    for one, other in zip(*(model.forward_peeking(blocks, queries) for _ in range(2)), strict=True):
        assert not torch.equal(one, other)
    # What the queries share is projected once, yet each block drops something else.
    peeked = model.forward_peeking(blocks, queries).peeked
    assert not torch.equal(peeked[0, 0], peeked[1, 0])


def test_the_memory_layout_of_a_cache_does_not_matter() -> None:
    torch.manual_seed(0)
    model = RetNet(RetNetConfig(width=16, layers=2, heads=2, feed_forward=16)).eval()
    inputs, queries = torch.randn(3, 4, 16), torch.randn(2, 16)
    with torch.inference_mode():
        _, cache = model.extend(inputs, model.initial_cache(3))
        turned = RetNetCache(cache.states.transpose(1, 2).contiguous().transpose(1, 2))
        for method in (model.extend, model.extend_last):
            (hidden, after), (expected, expected_after) = (method(inputs, part) for part in (turned, cache))
            torch.testing.assert_close(hidden, expected)
            torch.testing.assert_close(after.states, expected_after.states)
        torch.testing.assert_close(model.peek(queries, turned), model.peek(queries, cache))


def test_a_very_long_life() -> None:
    """After 20,000 tokens a row knows what the decay lets it: as much as one that has seen the last 12,000 only.

    γ^12,000 is 6e-11 in the slowest head. A state with absolute positions would have lost its precision, or its range.
    """
    torch.manual_seed(0)
    model = RetNet(RetNetConfig(width=16, layers=2, heads=2, feed_forward=16)).eval()
    inputs = torch.randn(1, 20_000, 16)
    with torch.inference_mode():
        old, old_cache = model.extend(inputs, model.initial_cache(1))
        exact = model.double()
        young, young_cache = exact.extend(inputs[:, -12_000:].double(), exact.initial_cache(1))
    assert torch.dist(old[:, -100:].double(), young[:, -100:]) < 1e-5 * young[:, -100:].norm()
    assert torch.dist(old_cache.states.double(), young_cache.states) < 1e-5 * young_cache.states.norm()
    assert old_cache.states.untyped_storage().nbytes() == model.initial_cache(1).states.float().nbytes
