"""Row operations over states."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dreamenvs import tree


class Inner(NamedTuple):
    numbers: Tensor


class Outer(NamedTuple):
    inner: Inner
    flags: Tensor


def make(rows: int = 4) -> Outer:
    return Outer(Inner(torch.arange(rows * 2.0).reshape(rows, 2)), torch.arange(rows) % 2 == 0)


def test_take_rows_takes_a_row_twice() -> None:
    taken = tree.take_rows(make(), torch.tensor([3, 3, 0]))
    assert taken.inner.numbers.tolist() == [[6, 7], [6, 7], [0, 1]]
    assert taken.flags.tolist() == [False, False, True]


def test_put_rows_leaves_its_argument_and_the_other_rows_alone() -> None:
    before = make()
    after = tree.put_rows(before, torch.tensor([1]), tree.take_rows(before, torch.tensor([3])))
    assert after.inner.numbers.tolist() == [[0, 1], [6, 7], [4, 5], [6, 7]]
    assert before.inner.numbers.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_put_rows_in_place() -> None:
    state = make()
    tree.put_rows_(state, torch.tensor([0]), tree.take_rows(state, torch.tensor([1])))
    assert state.inner.numbers[0].tolist() == [2, 3]
    assert state.flags.tolist() == [False, False, True, False]


def test_clone_shares_no_memory() -> None:
    state = make()
    tree.clone(state).inner.numbers.zero_()
    assert state.inner.numbers.sum() > 0


def test_concatenate_puts_rows_one_after_another() -> None:
    assert tree.concatenate([make(2), make(1)]).inner.numbers.tolist() == [[0, 1], [2, 3], [0, 1]]


def test_other_containers_are_refused() -> None:
    with pytest.raises(TypeError, match="dict"):
        tree.map(torch.clone, {"a": torch.zeros(1)})
