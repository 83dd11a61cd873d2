"""Sums and means over the batch of all processes ("ranks") that fit one model together, where there are several.

Each rank holds some rows of the batch. A mean of means is not the mean where ranks have different numbers of valid
frames, nor is a bound on it (free bits) the mean of bounds: so whatever is summed over the batch is summed here.
Outside `together` every function is the plain one, also in a process that belongs to a group: what one rank measures
or draws by itself waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

_group: ContextVar[dist.ProcessGroup | None] = ContextVar("group", default=None)


class RankError(RuntimeError):
    """Another rank has ended, or has not answered in time."""


@contextmanager
def together(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Inside, sums are over all ranks of the group, all of which must ask for the same ones in the same order."""
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def shared() -> bool:
    """Whether the batch is shared by several ranks."""
    return _group.get() is not None


def all_sum(values: Tensor) -> Tensor:
    """Values (…) summed over all ranks, the same bits on each; gradients are summed over the ranks as well.

    So if every rank computes the same loss of such sums, the mean over ranks of their parameters' gradients is the
    gradient of that loss.
    """
    group = _group.get()
    return values if group is None else cast(Tensor, _AllSum.apply(values, group))  # type: ignore[no-untyped-call]


def mean(values: Tensor) -> Tensor:
    """The mean () of values (…) over all ranks, which may hold different numbers of them."""
    if _group.get() is None:
        return values.mean()
    return ratio(values.sum(), torch.tensor(values.numel(), device=values.device))


def ratio(amount: Tensor, count: Tensor) -> Tensor:
    """What all ranks' amounts () add up to, divided by what their counts () do; by one if that is zero."""
    if _group.get() is None:
        return amount / count.clamp(min=1)
    # Half precision would not even hold the count.
    kind = torch.promote_types(amount.dtype, torch.float32)
    amounts, counts = all_sum(torch.stack([amount.to(kind), count.to(kind)]))
    quotient: Tensor = amounts / counts.clamp(min=1)
    return quotient.to(amount.dtype)


@torch.no_grad()
def gather(vectors: Tensor) -> Tensor:
    """The vectors (N, D) of all ranks, one rank after the other: in the order of the whole batch."""
    group = _group.get()
    if group is None:
        return vectors
    sizes = _sizes(vectors, group)
    padded = vectors.new_zeros(max(sizes), *vectors.shape[1:])
    padded[: len(vectors)] = vectors
    parts = [torch.empty_like(padded) for _ in sizes]
    with _naming_the_cause():
        dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


@torch.no_grad()
def choose(vectors: Tensor, count: int) -> Tensor:
    """Random ones (count, D) of the vectors (N, D) of all ranks, the same on each rank; none again before all were."""
    group = _group.get()
    if group is None:
        return vectors[_places(count, len(vectors), vectors.device)]
    sizes = _sizes(vectors, group)
    places = broadcast_(_places(count, sum(sizes), vectors.device), group)
    own = places - sum(sizes[: dist.get_rank(group)])
    mine = (own >= 0) & (own < len(vectors))
    chosen = vectors.new_zeros(count, *vectors.shape[1:])
    chosen[mine] = vectors[own[mine]]
    return sum_(chosen, group)


def _places(count: int, total: int, device: torch.device) -> Tensor:
    """Random numbers (count,) below `total`."""
    # Two codes in the place of one vector are one too few, and rounding would decide which of them is the nearest.
    rounds = max(1, -(-count // total))
    return torch.cat([torch.randperm(total, device=device) for _ in range(rounds)])[:count]


@torch.no_grad()
def follow_first(values: Tensor) -> None:
    """Replace values (…) by those of the first rank, which alone drew the random numbers behind them that count."""
    group = _group.get()
    if group is not None:
        broadcast_(values, group)


def sum_(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sum values (…) over the ranks of a group, in place."""
    with _naming_the_cause():
        dist.all_reduce(values, group=group)
    return values


def broadcast_(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Replace values (…) by those of the group's first rank, in place."""
    with _naming_the_cause():
        dist.broadcast(values, group_src=0, group=group)
    return values


def wait(group: dist.ProcessGroup) -> None:
    """Go on when all ranks of a group have come here."""
    with _naming_the_cause():
        dist.barrier(group=group)


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group  # kept, since gradients may be computed in another thread
        return sum_(values.clone(memory_format=torch.contiguous_format), group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return sum_(gradients[0].clone(memory_format=torch.contiguous_format), ctx.group), None


def _sizes(vectors: Tensor, group: dist.ProcessGroup) -> list[int]:
    """How many vectors each rank has."""
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=vectors.device)
    sizes[dist.get_rank(group)] = len(vectors)
    return [int(size) for size in sum_(sizes, group).tolist()]


@contextmanager
def _naming_the_cause() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"another rank has ended or does not answer ({str(error).splitlines()[0]:.200})") from error
