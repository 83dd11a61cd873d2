"""The picture of section 3.4 of the Δ-IRIS paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dreamenvs import tree
from dreamenvs.evaluation.delta_tokens import RandomTokens, delta_figure
from dreamenvs.random import Noise
from tests.small import build_small, random_segment


def test_rows_and_columns() -> None:
    model = build_small("DeltaIRIS")
    context = tree.map(lambda leaf: leaf[:1, :3], random_segment())
    real = random_segment(seed=1).observations[0]  # (5, 3, 12, 16)
    actions = torch.tensor([0, 1, 2, 3, 0])
    with_real = delta_figure(model, context, actions, real=real, scale=1, gap=1)
    without = delta_figure(model, context, actions, scale=1, gap=1)
    assert with_real.shape == (3 * 13 + 1, 6 * 17 + 1, 3)
    assert without.shape == (2 * 13 + 1, 6 * 17 + 1, 3)
    assert np.array_equal(with_real[13:], without)
    first = context.observations[0, -1].permute(1, 2, 0).numpy()
    for top in (1, 14, 27):
        assert np.array_equal(with_real[top : top + 12, 1:17], first)
    assert np.array_equal(with_real[1:13, 18:34], real[0].permute(1, 2, 0).numpy())
    dream, at_random = with_real[14:26], with_real[27:39]
    assert not np.array_equal(dream, at_random)
    assert np.array_equal(with_real, delta_figure(model, context, actions, real=real, scale=1, gap=1))


def test_random_tokens_are_even_whatever_is_likely() -> None:
    logits = torch.zeros(4000, 1, 8)
    logits[..., 3] = 50.0
    rows, steps = torch.arange(4000), torch.zeros(4000, dtype=torch.int64)
    tokens = RandomTokens(rows, steps).categorical(logits)
    assert torch.bincount(tokens.flatten(), minlength=8).min() > 400
    assert (Noise(rows, steps).categorical(logits) == 3).all()


def test_what_does_not_fit_is_named() -> None:
    model, context = build_small("DeltaIRIS"), random_segment()
    one = tree.map(lambda leaf: leaf[:1], context)
    with pytest.raises(ValueError, match="8 rows"):
        delta_figure(model, context, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="2 actions"):
        delta_figure(model, one, torch.zeros(2, dtype=torch.int64), real=context.observations[0])
