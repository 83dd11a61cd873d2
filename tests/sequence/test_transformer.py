"""The Transformer's ring: appending without copies, branching, stale caches, and its window."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dreamenvs import tree
from dreamenvs.sequence.kv_cache import TransformerCache, held_inputs
from dreamenvs.sequence.transformer import Transformer, TransformerConfig

pytestmark = pytest.mark.portable
WINDOW = 4


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(width=16, layers=2, heads=2, feed_forward=24, window=WINDOW)).eval()


def advance(model: Transformer, cache: TransformerCache, steps: int, seed: int = 0) -> TransformerCache:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        _, cache = model.step(torch.randn(len(cache.position), 16, generator=generator), cache)
    return cache


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_paper_sizes() -> None:
    config = TransformerConfig()
    assert (config.width, config.layers, config.heads, config.feed_forward) == (512, 4, 8, 2048)
    assert (config.dropout, config.window) == (0.1, 128)


@pytest.mark.parametrize("bad", [{"width": 20, "heads": 4}, {"window": 0}, {"layers": 0}])
def test_impossible_sizes_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"width must|at least 1"):
        TransformerConfig(**bad)


def test_steps_do_not_copy_the_ring(model: Transformer) -> None:
    cache = model.initial_cache(3)
    later = advance(model, cache, 10)
    assert address(later.keys) == address(cache.keys)
    assert address(later.values) == address(cache.values)
    assert later.tip is cache.tip
    assert cache.position.tolist() == [0, 0, 0]
    assert later.position.tolist() == [10, 10, 10]


def test_a_branch_copies_the_ring_once(model: Transformer) -> None:
    cache = advance(model, model.initial_cache(2), 9)
    one = advance(model, cache, 1, seed=1)
    two = advance(model, cache, 1, seed=2)
    assert address(one.keys) == address(cache.keys)
    assert address(two.keys) != address(cache.keys)
    assert address(advance(model, two, 5).keys) == address(two.keys)
    assert address(advance(model, one, 5).keys) == address(one.keys)


def test_a_stale_cache_is_refused(model: Transformer) -> None:
    cache = advance(model, model.initial_cache(2), 9)
    kept = tree.clone(cache)
    advance(model, cache, 2)
    with pytest.raises(ValueError, match=r"tree\.clone"):
        model.step(torch.zeros(2, 16), cache)
    with pytest.raises(ValueError, match=r"tree\.clone"):
        model.extend(torch.zeros(2, 3, 16), cache)
    model.step(torch.zeros(2, 16), kept)


def test_a_young_cache_is_usable_until_its_ring_is_full(model: Transformer) -> None:
    inputs = torch.randn(1, WINDOW + 1, 16, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        start = model.step(inputs[:, 0], model.initial_cache(1))[1]
        latest = start
        for t in range(1, WINDOW):
            _, latest = model.step(inputs[:, t], latest)
        hidden, _ = model.step(inputs[:, 1], start)
        torch.testing.assert_close(hidden, model(inputs[:, :2])[:, 1])
        model.step(inputs[:, WINDOW], latest)
        with pytest.raises(ValueError, match="too old"):
            model.step(inputs[:, 1], start)


def test_one_stale_row_is_enough(model: Transformer) -> None:
    cache = advance(model, model.initial_cache(2), 9)
    cache = tree.put_rows(cache, torch.tensor([0]), model.initial_cache(1))
    advance(model, cache, 2)
    with pytest.raises(ValueError, match="too old"):
        model.step(torch.zeros(2, 16), cache)


def test_what_a_branch_left_behind_is_not_seen(model: Transformer) -> None:
    """Not even NaN, which a weight of zero does not silence."""
    inputs = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(3))
    broken = torch.full((2, 16), torch.nan)
    with torch.no_grad():
        expected = model(inputs)
        for age in (1, 2, 9):
            _, cache = model.extend(inputs[:, :age], model.initial_cache(2))
            after = model.step(broken, cache)[1]
            if age == 1:
                model.step(broken, after)
            torch.testing.assert_close(model.extend(inputs[:, age:], cache)[0], expected[:, age:])
            torch.testing.assert_close(model.step(inputs[:, age], cache)[0], expected[:, age])


def test_held_inputs(model: Transformer) -> None:
    cache = model.initial_cache(3)._replace(position=torch.tensor([0, 2, 9]))
    assert held_inputs(cache).tolist() == [[-4, -3, -2, -1], [0, 1, -2, -1], [8, 5, 6, 7]]


def test_the_window_is_a_band_in_every_layer(model: Transformer) -> None:
    """Through two layers an input reaches 2 (window - 1) further, and not one more."""
    inputs = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(4))
    changed = inputs.clone()
    changed[:, 2] += 1
    with torch.no_grad():
        differs = (model(inputs) != model(changed)).any(-1)[0]
    reach = 2 * (WINDOW - 1)
    assert differs.tolist() == [2 <= t <= 2 + reach for t in range(12)]


def test_only_the_distance_between_inputs_matters(model: Transformer) -> None:
    """A row a million steps old gives what a new one does, once both have seen the same window."""
    inputs = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(6))
    old = model.initial_cache(1)
    position = torch.tensor([1_000_000])
    with torch.no_grad():
        expected = model(inputs)[:, -1]
        hidden, _ = model.extend(inputs, old._replace(position=position, tip=position.clone()))
        torch.testing.assert_close(hidden[:, -1], expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def slack_model() -> Transformer:
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": WINDOW}
    return Transformer(TransformerConfig(**sizes, slack=2, layer="gpt")).eval()


def test_a_few_inputs_are_appended_in_place(slack_model: Transformer) -> None:
    """By blocks of up to slack + 1, for rows of different ages, the same as without a cache."""
    inputs = torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected = slack_model(inputs)
        _, cache = slack_model.extend(inputs[:, :5], slack_model.initial_cache(2))
        _, young = slack_model.extend(inputs[1:, :2], slack_model.initial_cache(1))
        cache = tree.put_rows(cache, torch.tensor([1]), young)
        ages, first = [5, 2], address(cache.keys)
        for count in (3, 1, 2, 3, 3, 2):
            more = torch.stack([inputs[row, age : age + count] for row, age in enumerate(ages)])
            hidden, cache = slack_model.extend(more, cache)
            for row, age in enumerate(ages):
                torch.testing.assert_close(hidden[row], expected[row, age : age + count])
            ages = [age + count for age in ages]
        assert address(cache.keys) == first


def test_slack_keeps_a_cache_usable(slack_model: Transformer) -> None:
    """After a block of slack + 1 inputs, a cache of a full ring shows what it did; much later it is refused."""
    inputs = torch.randn(1, 43, 16, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        _, cache = slack_model.extend(inputs[:, :40], slack_model.initial_cache(1))
        _, later = slack_model.extend(torch.randn(1, 3, 16), cache)
        hidden, _ = slack_model.extend(inputs[:, 40:], cache)
        torch.testing.assert_close(hidden, slack_model(inputs)[:, 40:])
        for _ in range(40):
            _, later = slack_model.step(torch.randn(1, 16), later)
        with pytest.raises(ValueError, match="too old"):
            slack_model.step(inputs[:, 40], cache)


def test_flops() -> None:
    config = TransformerConfig()
    matrices = 512 * 1536 + 512 * 512 + 2 * 512 * 2048
    assert Transformer(config).flops_per_step() == 4 * (2 * matrices + 2 * 2 * 128 * 512)
