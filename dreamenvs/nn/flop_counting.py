"""Counting floating-point operations, those of products that torch's own counter does not know among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from dreamenvs.nn.cpu.packed import AVAILABLE


def operation_counter() -> FlopCounterMode:
    """Counts the operations of matrix products and convolutions, backward passes included, inside `with`."""
    return FlopCounterMode(display=False, custom_mapping=_UNKNOWN)


def _sum_of_products(into: Sequence[int], left: Sequence[int], right: Sequence[int], **others: Any) -> int:
    """Of shapes (..., m, k) and (..., k, n), onto what is there."""
    return 2 * math.prod(left) * right[-1]


def _packed(rows: Sequence[int], *others: Any, out_shape: Sequence[int]) -> int:
    """Of rows (N, D) times a packed weight, with results (N, D')."""
    return 2 * math.prod(rows) * out_shape[-1]


def _bags(table: Sequence[int], places: Sequence[int], *others: Any, **more: Any) -> int:
    """Of as many vectors of a table (V, D) as there are places, each times a number and added up."""
    return 2 * math.prod(places) * table[-1]


_UNKNOWN: dict[Any, Callable[..., int]] = {
    torch.ops.aten.addmm_: _sum_of_products,
    torch.ops.aten.baddbmm_: _sum_of_products,
    torch.ops.aten._embedding_bag: _bags,
    torch.ops.aten._embedding_bag_forward_only: _bags,
}
if AVAILABLE:
    _UNKNOWN[torch.ops.mkldnn._linear_pointwise] = _packed
