"""Row operations over states: nested NamedTuples whose leaves are tensors with the rows first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

StateT = TypeVar("StateT")


def map(function: Callable[..., Tensor], tree: StateT, *others: StateT) -> StateT:  # noqa: A001 (tree.map reads well)
    """Apply `function` to the matching leaves of one or several trees."""
    if isinstance(tree, Tensor):
        return cast(StateT, function(tree, *others))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        parts = zip(tree, *cast(tuple[Any, ...], others), strict=True)
        return cast(StateT, type(tree)(*(map(function, *part) for part in parts)))
    raise TypeError(f"a state is made of NamedTuples and tensors, not {type(tree).__name__}")


def leaves(tree: Any) -> Iterator[Tensor]:
    """Every tensor of a tree, in field order."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for part in tree:
            yield from leaves(part)


def clone(tree: StateT) -> StateT:
    """A copy that shares no memory."""
    return map(torch.clone, tree)


def take_rows(tree: StateT, rows: Tensor) -> StateT:
    """A new tree with the rows (N,) of another, in that order; a row may be taken twice."""
    return map(lambda leaf: leaf.index_select(0, rows), tree)


def put_rows(tree: StateT, rows: Tensor, values: StateT) -> StateT:
    """A new tree in which `rows` (N,) are replaced by the rows of `values`."""
    return map(lambda leaf, value: leaf.index_copy(0, rows, value), tree, values)


def put_rows_(tree: StateT, rows: Tensor, values: StateT) -> None:
    """`put_rows` in place, for an owner that shares the tree with nobody: a large cache is not copied for one row."""
    map(lambda leaf, value: leaf.index_copy_(0, rows, value), tree, values)


def concatenate(trees: list[StateT]) -> StateT:
    """Several trees as one, row after row."""
    return map(lambda *parts: torch.cat(parts), *trees)


def to(tree: StateT, device: torch.device | str) -> StateT:
    """The tree on another device."""
    return map(lambda leaf: leaf.to(device), tree)
