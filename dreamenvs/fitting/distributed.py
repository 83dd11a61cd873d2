"""Ranks: the processes of `torchrun` that fit one model together, each on its rows of every batch.

Gradients are averaged over the ranks in one call. Losses need no wrapper around the model: they sum through
`dreamenvs.nn.distributed`, which is switched on for them by `together`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dreamenvs.nn import distributed

TIMEOUT = 45.0
"""Seconds after which a rank that does not answer counts as gone."""
_PATIENCE = timedelta(days=7)
"""For what the first rank does alone, such as collecting data: a rank that ends meanwhile is noticed all the same."""


@dataclass(frozen=True)
class Ranks:
    """The group of processes, as one of them sees it; by default there is this process alone."""

    number: int = 0
    """This rank, from 0 to `count` - 1."""
    count: int = 1
    _group: dist.ProcessGroup | None = None
    _patient: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and tells."""
        return self.number == 0

    def rows(self, total: int) -> slice:
        """This rank's rows of a batch; the sizes of ranks differ by one row at most."""
        if total < self.count:
            raise ValueError(f"a batch of {total} rows is too small for {self.count} ranks: start {total} or fewer")
        return slice(total * self.number // self.count, total * (self.number + 1) // self.count)

    def together(self) -> AbstractContextManager[None]:
        """Inside, losses are over the batch of all ranks."""
        return distributed.together(self._group)

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients by their means over all ranks."""
        if self._group is not None:
            gradients = [each.grad for each in parameters if each.grad is not None]
            for part in _by_kind(gradients):
                flat = torch.cat([gradient.flatten() for gradient in part])
                _put(part, distributed.sum_(flat, self._group) / self.count)

    @torch.no_grad()
    def follow_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of the first rank, in place."""
        if self._group is not None:
            for part in _by_kind(tensors):
                _put(part, distributed.broadcast_(torch.cat([tensor.flatten() for tensor in part]), self._group))

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is set on any rank: what is to be done together must be decided together."""
        if self._group is None:
            return flags
        return tuple(bool(count) for count in distributed.sum_(torch.tensor(flags, dtype=torch.int32), self._group))

    def wait(self) -> None:
        """Go on when all ranks have come here, however long one of them takes."""
        if self._patient is not None:
            distributed.wait(self._patient)

    @contextmanager
    def first_ahead(self) -> Iterator[None]:
        """The first rank does what is inside before the others do: they find what it made."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()


ALONE = Ranks()


@contextmanager
def open_ranks(timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """The ranks that `torchrun` has started, or this process alone; `timeout` is in seconds.

    Tensors of the CPU go through gloo, those of CUDA through NCCL.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout))
    patient = dist.new_group(backend="gloo", timeout=_PATIENCE)
    assert patient is not None
    opened = Ranks(dist.get_rank(), dist.get_world_size(), dist.group.WORLD, patient)
    yield opened
    # Not after an exception: where a rank is gone, taking leave of it may hang.
    opened.wait()
    dist.destroy_process_group()


def _by_kind(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors that can be sent as one, in an order that is the same on every rank."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    yield from kinds.values()


def _put(tensors: list[Tensor], flat: Tensor) -> None:
    """Copy what was flattened back to its places."""
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))
