"""The ring of projected keys and values behind the Transformer's cache.

Input n of a row lives in slot n % window, over input n - window, which nobody attends to any more. So `step` writes in
place, and the cache before it still shows what it did; stepping twice from one cache copies the ring first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TransformerCache(NamedTuple):
    """The last `window` inputs of each row, and how many it has seen."""

    # Heads before layers: so all heads of all rows in one layer are one batch of matrices, without a copy.
    keys: Tensor  # (B, heads, layers, window, head_dim), rotated
    values: Tensor  # (B, heads, layers, window, head_dim)
    position: Tensor  # (B,) int64, inputs seen; never written in place
    tip: Tensor  # (B,) int64, inputs in the ring: one tensor that all caches over the same ring share and advance


class View(NamedTuple):
    """The part of a ring that is read: its first `span` slots, and which of them each row sees."""

    span: int
    visible: Tensor | None  # (B · heads, span) bool; None if every row sees them all


_BLOCK = 32


def initial_ring(shape: tuple[int, int, int, int, int], like: Tensor) -> TransformerCache:
    """An empty cache for rings of `shape`, with the device and dtype of another tensor."""
    position = torch.zeros(shape[0], dtype=torch.int64, device=like.device)
    return TransformerCache(like.new_zeros(shape), like.new_zeros(shape), position, position.clone())


def check_fresh(cache: TransformerCache) -> bool:
    """Whether the ring ends with the cache's last input; raises if inputs that the cache shows are gone from it."""
    window = cache.keys.shape[3]
    behind = cache.tip != cache.position
    # Two inputs written past a full ring are one too many: the first took the place of one that is out of sight.
    stale = cache.tip > (cache.position + 1).clamp(min=window)
    any_behind, any_stale = torch.stack((behind.any(), stale.any())).tolist()
    if any_stale:
        raise ValueError(
            "this cache is too old: steps from later caches have overwritten inputs that it needs; "
            "keep a tree.clone of a cache that you want to come back to"
        )
    return not any_behind


def copy_ring(cache: TransformerCache) -> TransformerCache:
    """The same cache over a ring of its own, zero wherever the cache shows nothing."""
    # A branch may have left NaN there, and a weight of zero does not silence NaN.
    out_of_sight = held_inputs(cache) <= (cache.position[:, None] - cache.keys.shape[3]).clamp(min=-1)
    out_of_sight = out_of_sight[:, None, None, :, None]
    return TransformerCache(
        cache.keys.masked_fill(out_of_sight, 0),
        cache.values.masked_fill(out_of_sight, 0),
        cache.position,
        cache.position.clone(),
    )


def claim_ring(cache: TransformerCache) -> TransformerCache:
    """The cache itself if one more input can be written to its ring, else a copy for which that holds."""
    # Tensors made in inference mode cannot be written outside it.
    writable = torch.is_inference_mode_enabled() or not cache.keys.is_inference()
    return cache if check_fresh(cache) and writable else copy_ring(cache)


def next_slots(cache: TransformerCache) -> Tensor:
    """(layers, B · heads) where the next input goes, as indices into the vectors of a ring."""
    rows, heads, layers, window, _ = cache.keys.shape
    device = cache.keys.device
    starts = torch.arange(rows * heads * layers, device=device).view(rows, heads, layers) * window
    return (starts + (cache.position % window)[:, None, None]).view(-1, layers).t().contiguous()


def next_view(cache: TransformerCache) -> View:
    """What the next input of every row sees of the ring, itself included."""
    heads, window = cache.keys.shape[1], cache.keys.shape[3]
    youngest, oldest = (int(age) for age in torch.aminmax(cache.position))
    # A whole number of blocks, so that a row's sums are added up alike whatever the ages of the others.
    span = min(window, (oldest // _BLOCK + 1) * _BLOCK)
    if youngest >= span - 1:
        return View(span, None)
    visible = torch.arange(span, device=cache.keys.device) <= cache.position[:, None]
    return View(span, visible.repeat_interleave(heads, 0))


def held_inputs(cache: TransformerCache) -> Tensor:
    """(B, window) the number of the input in each slot; negative where there is none yet."""
    last = cache.position[:, None] - 1
    return last - (last - torch.arange(cache.keys.shape[3], device=last.device)) % cache.keys.shape[3]


def write_last(ring: Tensor, position: Tensor, layer: int, entries: Tensor) -> None:
    """Put the last `window` of entries (B, heads, T, head_dim), which follow `position` inputs, into one layer."""
    window, head_dim = ring.shape[3:]
    count = min(window, entries.shape[2])
    first = position + entries.shape[2] - count
    slots = (first[:, None] + torch.arange(count, device=ring.device)) % window
    indices = slots[:, None, :, None].expand(-1, ring.shape[1], -1, head_dim)
    ring[:, :, layer].scatter_(2, indices, entries[:, :, -count:])
