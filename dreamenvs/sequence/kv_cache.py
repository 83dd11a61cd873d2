"""The ring of projected keys and values behind the Transformer's cache.

A ring has `window` slots and some slack. Input n of a row lives in slot n % slots, over one that nobody attends to any
more. So new inputs are written in place, and the cache before them still shows what it did while no more than the slack
and one were written; writing twice from one cache copies the ring first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dreamenvs.nn.attention import Bags, bags_of


class TransformerCache(NamedTuple):
    """The last `window` inputs of each row, and how many it has seen."""

    # Heads before layers: so all heads of all rows in one layer are one batch of matrices, without a copy.
    keys: Tensor  # (B, heads, layers, slots, head_dim), rotated
    values: Tensor  # (B, heads, layers, slots, head_dim)
    position: Tensor  # (B,) int64, inputs seen; never written in place
    tip: Tensor  # (B,) int64, inputs in the ring: one tensor that all caches over the same ring share and advance


class Plan(NamedTuple):
    """Where the next T inputs of every row go, and what they see of the first `span` slots: the same in all layers."""

    span: int
    concealed: Tensor | None  # (B · heads, T, span) bool; None if all are seen
    first: int | None
    """The first of their slots, if it is that of all rows and the others follow it."""
    slots: Tensor | None  # (layers, B · heads · T) otherwise: indices into the vectors of a ring
    bags: Bags | None
    """Where the values of the first layer lie among the vectors of a ring, if the inputs are few, on a CPU."""


FEW = 3
"""Inputs for which values are read as bags: BLAS is as fast for more."""
BLOCK = 32


def initial_ring(shape: tuple[int, int, int, int, int], like: Tensor) -> TransformerCache:
    """An empty cache for rings of `shape`, with the device and dtype of another tensor."""
    position = torch.zeros(shape[0], dtype=torch.int64, device=like.device)
    return TransformerCache(like.new_zeros(shape), like.new_zeros(shape), position, position.clone())


def check_fresh(cache: TransformerCache, window: int) -> bool:
    """Whether the ring ends with the cache's last input; raises if inputs that the cache shows are gone from it."""
    slots = cache.keys.shape[3]
    behind = cache.tip != cache.position
    # What the next input sees begins at position - window + 1, whose slot is taken `slots` inputs later.
    stale = cache.tip > (cache.position + 1 + slots - window).clamp(min=slots)
    any_behind, any_stale = torch.stack((behind.any(), stale.any())).tolist()
    if any_stale:
        raise ValueError(
            "this cache is too old: steps from later caches have overwritten inputs that it needs; "
            "keep a tree.clone of a cache that you want to come back to"
        )
    return not any_behind


def copy_ring(cache: TransformerCache, window: int) -> TransformerCache:
    """The same cache over a ring of its own, zero wherever the cache shows nothing."""
    # A branch may have left NaN there, and a weight of zero does not silence NaN.
    out_of_sight = held_inputs(cache) <= (cache.position[:, None] - window).clamp(min=-1)
    out_of_sight = out_of_sight[:, None, None, :, None]
    return TransformerCache(
        cache.keys.masked_fill(out_of_sight, 0),
        cache.values.masked_fill(out_of_sight, 0),
        cache.position,
        cache.position.clone(),
    )


def claim_ring(cache: TransformerCache, window: int) -> TransformerCache:
    """The cache itself if more inputs can be written to its ring, else a copy for which that holds."""
    # Tensors made in inference mode cannot be written outside it.
    writable = torch.is_inference_mode_enabled() or not cache.keys.is_inference()
    return cache if check_fresh(cache, window) and writable else copy_ring(cache, window)


def next_slots(cache: TransformerCache, count: int) -> Tensor:
    """(layers, B · heads · T) where the next `count` inputs go, as indices into the vectors of a ring."""
    rows, heads, layers, slots, _ = cache.keys.shape
    device = cache.keys.device
    starts = torch.arange(rows * heads * layers, device=device).view(rows, heads, layers, 1) * slots
    places = (cache.position[:, None] + torch.arange(count, device=device)) % slots
    return (starts + places[:, None, None]).permute(2, 0, 1, 3).reshape(layers, -1)


def plan_inputs(cache: TransformerCache, window: int, count: int) -> Plan:
    """How the next `count` inputs of every row go into the ring, and what they read of it."""
    rows, heads, layers, slots, _ = cache.keys.shape
    device = cache.keys.device
    youngest, oldest = (int(age) for age in torch.aminmax(cache.position))
    # A whole number of blocks, so that a row's sums are added up alike whatever the ages of the others.
    span = min(slots, ((oldest + count - 1) // BLOCK + 1) * BLOCK)
    concealed = None
    if count > 1 or youngest < span - 1 or (slots != window and oldest >= window):
        ages = cache.position[:, None] + torch.arange(count, device=device)  # (B, T)
        held = held_inputs(cache._replace(position=cache.position + count))[:, None, :span]
        seen = (held >= 0) & (held <= ages[..., None]) & (held > ages[..., None] - window)
        concealed = (~seen).repeat_interleave(heads, 0)
    few = count <= FEW and device.type == "cpu"
    side_by_side = youngest == oldest and oldest % slots + count <= slots
    return Plan(
        span=span,
        concealed=concealed,
        first=oldest % slots if side_by_side else None,
        slots=None if side_by_side else next_slots(cache, count),
        bags=bags_of(rows * heads, layers * slots, span, count, device) if few else None,
    )


def writers(ring: Tensor, plan: Plan, count: int) -> list[Callable[[Tensor], object]]:
    """For each layer, what puts entries (B, heads, T, head_dim) into a ring, as planned for `count` inputs."""
    if plan.slots is None:
        first = plan.first or 0
        return [place.copy_ for place in ring[:, :, :, first : first + count].unbind(2)]
    vectors = ring.view(-1, ring.shape[-1])
    return [partial(_scatter, vectors, slots) for slots in plan.slots.unbind()]


def _scatter(vectors: Tensor, slots: Tensor, entries: Tensor) -> None:
    vectors.index_copy_(0, slots, entries.reshape(-1, vectors.shape[-1]))


def held_inputs(cache: TransformerCache) -> Tensor:
    """(B, slots) the number of the input in each slot; negative where there is none yet."""
    last = cache.position[:, None] - 1
    return last - (last - torch.arange(cache.keys.shape[3], device=last.device)) % cache.keys.shape[3]


def write_last(ring: Tensor, position: Tensor, layer: int, entries: Tensor) -> None:
    """Put the last entries of (B, heads, T, head_dim), which follow `position` inputs, into one layer of a ring."""
    slots, head_dim = ring.shape[3:]
    count = min(slots, entries.shape[2])
    first = position + entries.shape[2] - count
    places = (first[:, None] + torch.arange(count, device=ring.device)) % slots
    indices = places[:, None, :, None].expand(-1, ring.shape[1], -1, head_dim)
    ring[:, :, layer].scatter_(2, indices, entries[:, :, -count:])
