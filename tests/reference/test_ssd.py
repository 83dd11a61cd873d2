"""The state-space dual against the recurrence written out in loops, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dreamenvs.sequence.ssd import ssd_chunked, ssd_recurrent

pytestmark = pytest.mark.portable
HEADS, HEAD_DIM, STATE = 4, 3, 2


def problem(length: int, groups: int, dtype: torch.dtype = torch.float64, rows: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length + 100 * groups)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    x, dt, a = normal(rows, length, HEADS, HEAD_DIM), normal(rows, length, HEADS).exp(), -4 * normal(HEADS).exp()
    b, c = normal(rows, length, groups, STATE), normal(rows, length, groups, STATE)
    return [x, dt, a, b, c, normal(rows, HEADS, STATE, HEAD_DIM)]


def naive(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One number at a time, straight from the definition."""
    outputs, state = torch.zeros_like(x), state.clone()
    for row in range(x.shape[0]):
        for head in range(HEADS):
            group = head * b.shape[2] // HEADS
            for p in range(HEAD_DIM):
                memory = [float(state[row, head, n, p]) for n in range(STATE)]
                for t in range(x.shape[1]):
                    step = float(dt[row, t, head])
                    for n in range(STATE):
                        inflow = step * float(b[row, t, group, n]) * float(x[row, t, head, p])
                        memory[n] = math.exp(step * float(a[head])) * memory[n] + inflow
                        outputs[row, t, head, p] += float(c[row, t, group, n]) * memory[n]
                state[row, head, :, p] = torch.tensor(memory, dtype=torch.float64)
    return outputs, state


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_recurrence_matches_the_definition(groups: int) -> None:
    arguments = problem(9, groups)
    for result, expected in zip(ssd_recurrent(*arguments), naive(*arguments), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("chunk", [1, 4, 7, 64])
@pytest.mark.parametrize("length", [1, 7, 8, 30])
def test_chunks_match_the_definition(groups: int, chunk: int, length: int) -> None:
    arguments = problem(length, groups, rows=1)
    for result, expected in zip(ssd_chunked(*arguments, chunk), naive(*arguments), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk", [16, 128])
def test_float32_stays_exact_over_strong_decay(chunk: int) -> None:
    """Differences of a float32 cumulative sum would be off by 1e-4 here."""
    arguments = problem(500, 1, torch.float32)
    expected = ssd_recurrent(*(part.double() for part in arguments))
    for result, exact in zip(ssd_chunked(*arguments, chunk), expected, strict=True):
        assert result.dtype == torch.float32
        assert float((result - exact).abs().max() / exact.abs().max()) < 2e-6


def test_gradients() -> None:
    arguments = [part.requires_grad_() for part in problem(5, 2, rows=1)]
    assert torch.autograd.gradcheck(lambda *parts: ssd_chunked(*parts, 3), arguments)


def test_gradients_match_the_recurrence() -> None:
    def gradients(chunk: int | None) -> tuple[Tensor, ...]:
        leaves = [part.requires_grad_() for part in problem(20, 2)]
        outputs, state = ssd_recurrent(*leaves) if chunk is None else ssd_chunked(*leaves, chunk)
        return torch.autograd.grad(outputs.square().sum() + state.square().sum(), leaves)

    for result, expected in zip(gradients(8), gradients(None), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)
