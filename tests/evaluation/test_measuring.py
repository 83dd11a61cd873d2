"""Operations are counted however they are written."""

from __future__ import annotations

import pytest
import torch

from dreamenvs.evaluation.measuring import count_gflop


def test_products_in_place_count() -> None:
    left, right, sums = torch.randn(3, 10, 20), torch.randn(3, 20, 30), torch.randn(3, 10, 30)
    assert count_gflop(lambda: sums[0].addmm_(left[0], right[0])) == pytest.approx(2 * 10 * 20 * 30 / 1e9)
    assert count_gflop(lambda: sums.baddbmm_(left, right)) == pytest.approx(3 * 2 * 10 * 20 * 30 / 1e9)
    assert count_gflop(lambda: torch.addmm(sums[0], left[0], right[0], out=sums[0])) == pytest.approx(1.2e-5)
