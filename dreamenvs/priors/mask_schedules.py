"""Which tokens are hidden: the cosine schedule of training, and the random partitions of draft-and-revise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dreamenvs.random import Noise

MAX_PASSES = 500
"""Draws of a step: pass i takes draw i, the partition of phase p takes draw 500 + p, and 1,000 is the termination's."""


class Pass(NamedTuple):
    """One pass of the head: what it draws, and with which number."""

    chosen: Tensor | None  # (B, S) the tokens that are hidden and drawn, None for all
    draw: int


def draft_and_revise(noise: Noise, tokens: int, phases: tuple[int, ...]) -> Iterator[Pass]:
    """The passes of algorithms 1 and 2: for each phase a partition of the tokens into as many parts, one pass each.

    The parts are random and of the same size, or differ by one token. Every row has its own, which follow from its own
    noise; the released code has one partition for all rows, with which a row's future would hang on its neighbours.
    """
    draw = 0
    for phase, parts in enumerate(phases):
        if parts == 1:
            yield Pass(None, draw)
            draw += 1
            continue
        order = noise.uniform(tokens, MAX_PASSES + phase).argsort(dim=1, stable=True)
        for part in range(parts):
            yield Pass(order[:, part * tokens // parts : (part + 1) * tokens // parts], draw)
            draw += 1


def masked_counts(shares: Tensor, tokens: int) -> Tensor:
    """How many of a frame's tokens (N,) training hides, for shares r (N,) in [0, 1): ⌈cos(πr/2)·K⌉, at least one.

    The paper rounds up and the released code down. Up is what it says, and hides all tokens, as a first draft does,
    in 16 % of the frames of 32 tokens; rounded down that happens for r = 0 alone, and never.
    """
    return (torch.cos(shares * (math.pi / 2)) * tokens).ceil().long().clamp(1, tokens)


def hide_some(rows: int, tokens: int, device: torch.device) -> Tensor:
    """(N, K) bool: True on a random choice of as many tokens of each frame as a random place in the schedule says."""
    counts = masked_counts(torch.rand(rows, device=device), tokens)
    ranks = torch.rand(rows, tokens, device=device).argsort(1).argsort(1)
    return ranks < counts[:, None]
