"""Rows times weights that lie in memory as oneDNN reads them, where torch has oneDNN and no gradient is asked for.

A weight is rearranged when it is first used, and again when it has changed. Torch counts changes, but for those through
`weight.data`; so some of the numbers are looked at, too, and who changes others alone in this way is not noticed.
Against BLAS on plain weights a product of 64 rows took three quarters of the time on one thread of an AMD processor,
and one of a single row, which BLAS had to be given as sixteen, less than half; between other work a call takes some
45 microseconds at least, which eats that up for small weights. Every row is summed alike, whatever their number and
that of the threads.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FusedActivation = Literal["none", "gelu", "relu"]

LONG = 1024
"""Numbers of a row from which on a single one is summed in another order than several are."""
AVAILABLE = torch._C._has_mkldnn and all(
    hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
)
"""Whether torch has what this needs: its operators are those of `torch.compile`, and not promised to stay."""


if AVAILABLE:
    _linear = torch.ops.mkldnn._linear_pointwise.default
    _add_linear = torch.ops.mkldnn._linear_pointwise.binary


class _Packed(NamedTuple):
    """A weight as it was when it was packed."""

    owner: weakref.ref[Tensor]
    version: int
    address: int
    samples: tuple[ctypes.c_uint32, ...]
    """Some of its numbers, where they lie in memory."""
    sampled: tuple[int, ...]
    """What they were."""
    tensor: Tensor

    def still(self, weight: Tensor) -> bool:
        """Whether the weight is the same, and has not changed."""
        return (
            self.version == weight._version
            and self.address == weight.data_ptr()
            and self.owner() is weight
            and self.sampled == tuple([sample.value for sample in self.samples])
        )


class Part(NamedTuple):
    """Rows and columns of a weight, from the first to before the last; None stands for its end."""

    first_row: int = 0
    last_row: int | None = None
    first_column: int = 0
    last_column: int | None = None

    def of(self, weight: Tensor) -> Tensor:
        """The part itself."""
        return weight[self.first_row : self.last_row, self.first_column : self.last_column]


_KNOWN: dict[tuple[int, Part | None], _Packed] = {}
"""By the identity of the weight, and the part of it; an entry goes when the weight does."""


def can_pack(weight: Tensor) -> bool:
    """Whether `packed_linear` takes this weight now: float32 parameters on a CPU, without gradients."""
    return (
        AVAILABLE
        and not torch.is_grad_enabled()
        and weight.dtype is torch.float32
        and isinstance(weight, nn.Parameter)
        and weight.is_cpu
        and not weight.is_inference()  # made in inference mode, it does not tell when it changes
    )


def packed_linear(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: FusedActivation = "none",
    added: Tensor | None = None,
    part: Part | None = None,
) -> Tensor:
    """(..., D') of inputs (..., D): their product with weight (D', D) plus bias, activated, or plus `added` (..., D').

    `can_pack` says whether the weight can be used so. `part` takes some rows and columns of it alone. The result is a
    new tensor, in rows.
    """
    shape = inputs.shape
    if len(shape) != 2:
        inputs = inputs.reshape(-1, shape[-1])
        added = None if added is None else added.reshape(-1, added.shape[-1])
    if len(inputs) == 0:
        return inputs.new_empty(*shape[:-1], len(weight if part is None else part.of(weight)))
    lonely = len(inputs) == 1 and shape[-1] > LONG
    if lonely:
        inputs = F.pad(inputs, (0, 0, 0, 1))
        added = None if added is None else F.pad(added, (0, 0, 0, 1))
    results = _product(inputs, _pack(weight, part), bias, activation, added)
    if lonely:
        results = results[:1]
    return results if len(shape) == 2 else results.view(*shape[:-1], -1)


def _product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, activation: FusedActivation, added: Tensor | None
) -> Tensor:
    results: Tensor
    if added is None:
        algorithm = "none" if activation == "gelu" else ""
        results = _linear(rows.contiguous(), weight, bias, activation, [], algorithm)
    else:
        results = _add_linear(rows.contiguous(), added.contiguous(), weight, bias, "add")
    return results


def _pack(weight: Tensor, part: Part | None) -> Tensor:
    """The weight as it is now, or a part of it, rearranged."""
    key = (id(weight), part)
    known = _KNOWN.get(key)
    if known is not None and known.still(weight):
        return known.tensor
    plain = weight.detach() if part is None else part.of(weight.detach())
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(plain.contiguous(), None)
    address, last = weight.data_ptr(), weight.numel() - 1
    # Only of a weight without gaps does the last number lie so many places behind the first.
    places = {0, last // 3, 2 * last // 3, last} if weight.is_contiguous() else {0}
    samples = tuple(ctypes.c_uint32.from_address(address + 4 * place) for place in sorted(places))
    sampled = tuple([sample.value for sample in samples])
    owner = weakref.ref(weight, lambda _: _KNOWN.pop(key, None))
    _KNOWN[key] = _Packed(owner, weight._version, address, samples, sampled, packed)
    return packed
