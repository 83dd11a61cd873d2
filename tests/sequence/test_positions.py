"""Learned positions on a circle as large as the window."""

from __future__ import annotations

import pytest
import torch

from dreamenvs import tree
from dreamenvs.sequence.positions import LearnedPositions
from dreamenvs.sequence.transformer import Transformer, TransformerConfig

pytestmark = pytest.mark.portable
WINDOW = 6
CONFIG = TransformerConfig(
    width=16, layers=2, heads=2, feed_forward=24, window=WINDOW, layer="post", positions="learned"
)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(CONFIG).eval()


def test_inputs_that_see_each_other_have_different_positions() -> None:
    positions = LearnedPositions(16, WINDOW)
    with torch.no_grad():
        placed = positions.place(torch.zeros(1, 4 * WINDOW, 16), torch.arange(4 * WINDOW)[None])[0]
    for t in range(4 * WINDOW):
        same = (placed == placed[t]).all(-1).nonzero().flatten()
        assert torch.equal(same % WINDOW, torch.full_like(same, t % WINDOW))
        assert len(same) == 4


def test_order_is_heard(model: Transformer) -> None:
    inputs = torch.randn(1, 4, 16)
    swapped = inputs[:, [1, 0, 2, 3]]
    with torch.no_grad():
        assert (model(inputs)[:, -1] - model(swapped)[:, -1]).abs().max() > 1e-3


def test_a_row_many_circles_old_is_like_a_new_one(model: Transformer) -> None:
    """Once both have seen as much as two layers reach, whatever was before."""
    inputs = torch.randn(1, 2 * WINDOW, 16)
    fresh = model.initial_cache(1)
    position = torch.tensor([WINDOW * 1_000_000])
    with torch.no_grad():
        expected = model(inputs)[:, -1]
        hidden, _ = model.extend(inputs, fresh._replace(position=position, tip=position.clone()))
    torch.testing.assert_close(hidden[:, -1], expected, rtol=1e-5, atol=1e-5)


def test_evaluation_draws_nothing(model: Transformer) -> None:
    inputs, before = torch.randn(3, 9, 16), torch.get_rng_state()
    with torch.no_grad():
        assert torch.equal(model(inputs), model(inputs))
    assert torch.equal(torch.get_rng_state(), before)


def test_cached_steps_equal_a_forward_for_many_circles(model: Transformer) -> None:
    inputs = torch.randn(2, 5 * WINDOW + 3, 16)
    with torch.no_grad():
        expected, cache = model(inputs), model.initial_cache(2)
        for t in range(inputs.shape[1]):
            if t == 2 * WINDOW + 1:
                kept = tree.clone(cache)
            hidden, cache = model.step(inputs[:, t], cache)
            torch.testing.assert_close(hidden, expected[:, t], rtol=1e-5, atol=1e-5)
        again, _ = model.extend(inputs[:, 2 * WINDOW + 1 :], kept)
        torch.testing.assert_close(again, expected[:, 2 * WINDOW + 1 :], rtol=1e-5, atol=1e-5)


def test_rotary_transformers_have_no_new_weights() -> None:
    names = Transformer(TransformerConfig(width=16, layers=1, heads=2, feed_forward=24)).state_dict()
    assert not [name for name in names if "positions" in name]


def test_unknown_positions_are_named() -> None:
    with pytest.raises(ValueError, match="not 'absolute'"):
        TransformerConfig(positions="absolute")  # type: ignore[arg-type]
