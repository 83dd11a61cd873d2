"""Products with packed weights: what they are, that they follow the weights, and that rows do not notice each other."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dreamenvs.nn.cpu import packed
from dreamenvs.nn.cpu.packed import Part, can_pack, packed_linear
from dreamenvs.nn.layers import RowLinear, add_linear, gelu_linear, row_linear
from tests.rounding import rows_agree

pytestmark = [
    pytest.mark.portable,
    pytest.mark.skipif(not packed.AVAILABLE, reason="this torch has no oneDNN"),
]
ROWS = 100
SIZES = [(256, 768), (1024, 256), (1042, 512), (2048, 512), (8210, 64), (7, 3), (512, 18)]


def parts(inputs: int, outputs: int) -> tuple[Tensor, nn.Parameter, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(outputs, inputs, generator=generator) / inputs**0.5)
    rows, bias, added = (
        torch.randn(*size, generator=generator) for size in ((ROWS, inputs), (outputs,), (ROWS, outputs))
    )
    return rows, weight, bias, added


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_products(inputs: int, outputs: int) -> None:
    rows, weight, bias, added = parts(inputs, outputs)
    with torch.no_grad():
        exact = rows.double() @ weight.double().T
        narrow = rows[:, 2:5].double() @ weight[:-1, 2:5].double().T
        cases = (
            (packed_linear(rows, weight), exact),
            (packed_linear(rows, weight, bias), exact + bias),
            (packed_linear(rows, weight, bias, "gelu"), F.gelu(exact + bias)),
            (packed_linear(rows, weight, bias, "relu"), F.relu(exact + bias)),
            (packed_linear(rows, weight, bias, added=added), exact + bias + added),
            (packed_linear(rows.view(4, 25, -1), weight, bias).flatten(0, 1), exact + bias),
            (packed_linear(rows.t().contiguous().t(), weight), exact),
            (packed_linear(rows, weight, part=Part(1, 3)), exact[:, 1:3]),
            (packed_linear(rows[:, 2:5], weight, part=Part(0, -1, 2, 5)), narrow),
        )
        for found, expected in cases:
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        assert packed_linear(rows[:0], weight).shape == (0, outputs)


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_rows_do_not_notice_each_other(inputs: int, outputs: int, threads: int) -> None:
    rows, weight, bias, added = parts(inputs, outputs)

    def results(some: slice) -> list[Tensor]:
        return [
            packed_linear(rows[some], weight, bias),
            packed_linear(rows[some], weight, bias, "gelu"),
            packed_linear(rows[some], weight, bias, added=added[some]),
        ]

    torch.set_num_threads(1)
    with torch.inference_mode():
        expected = results(slice(ROWS))
        torch.set_num_threads(threads)
        for count in (*range(1, 20), 33, 64, ROWS):
            for some in (slice(count), slice(ROWS - count, ROWS)):
                for found, all_of_them in zip(results(some), expected, strict=True):
                    assert rows_agree(found, all_of_them[some])


def change_in_place(linear: RowLinear) -> None:
    with torch.no_grad():
        linear.weight.mul_(2)


def change_in_inference(linear: RowLinear) -> None:
    with torch.inference_mode():
        linear.weight.mul_(2)


def change_behind_torch(linear: RowLinear) -> None:
    linear.weight.data.mul_(2)


def load_others(linear: RowLinear) -> None:
    linear.load_state_dict({"weight": torch.randn(4, 6), "bias": torch.zeros(4)})


def learn(linear: RowLinear) -> None:
    optimizer = torch.optim.AdamW(linear.parameters(), lr=1.0)
    linear(torch.randn(3, 6)).sum().backward()
    optimizer.step()


def give_another(linear: RowLinear) -> None:
    linear.weight = nn.Parameter(torch.randn(4, 6))


def replace_the_data(linear: RowLinear) -> None:
    linear.double()
    linear.weight.data = torch.randn(4, 6)
    linear.bias.data = torch.zeros(4)


@pytest.mark.parametrize(
    "change",
    [change_in_place, change_in_inference, change_behind_torch, load_others, learn, give_another, replace_the_data],
)
def test_a_weight_that_changes_is_packed_again(change: Any) -> None:
    torch.manual_seed(0)
    linear, rows = RowLinear(6, 4), torch.randn(3, 6)
    with torch.no_grad():
        before = linear(rows)
    change(linear)
    with torch.no_grad():
        after = linear(rows)
        torch.testing.assert_close(after, F.linear(rows, linear.weight, linear.bias))
    assert not torch.equal(before, after)


def test_a_weight_is_packed_once_and_forgotten_with_it() -> None:
    gc.collect()
    known = len(packed._KNOWN)
    linear, rows = RowLinear(6, 4), torch.randn(3, 6)
    with torch.no_grad():
        linear(rows)
        first = packed._KNOWN[id(linear.weight), None].tensor
        linear(rows)
    assert packed._KNOWN[id(linear.weight), None].tensor is first
    assert len(packed._KNOWN) == known + 1
    del linear
    gc.collect()
    assert len(packed._KNOWN) == known


def test_a_module_with_packed_weights_can_be_copied_and_sent() -> None:
    linear, rows = RowLinear(6, 4), torch.randn(3, 6)
    with torch.no_grad():
        expected = linear(rows)
        for other in (copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))):
            assert torch.equal(other(rows), expected)


def test_what_cannot_be_packed() -> None:
    """Training, other dtypes, what is no parameter, and parameters that do not tell when they change."""
    weight = nn.Parameter(torch.randn(4, 6))
    assert not can_pack(weight)
    with torch.inference_mode():
        unaware = nn.Parameter(torch.randn(4, 6))
    with torch.no_grad():
        assert can_pack(weight)
        for other in (weight[:2], nn.Parameter(weight.double()), weight.detach(), unaware):
            assert not can_pack(other)
            rows = torch.randn(3, 6, dtype=other.dtype)
            torch.testing.assert_close(row_linear(rows, other), rows @ other.T)


def test_the_same_without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weight, bias, added = parts(256, 64)
    with torch.no_grad():
        fast = row_linear(rows, weight, bias), gelu_linear(rows, weight, bias), add_linear(added, rows, weight, bias)
        monkeypatch.setattr(packed, "AVAILABLE", False)
        slow = row_linear(rows, weight, bias), gelu_linear(rows, weight, bias), add_linear(added, rows, weight, bias)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other)
