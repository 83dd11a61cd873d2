"""Initial weights. A model outlined on `meta` draws none: arithmetic there makes torch import hundreds of modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def normal_(weight: Tensor, std: float = 0.02) -> Tensor:
    """Draw weights from a normal distribution; 0.02 is GPT-2's."""
    return weight if weight.is_meta else nn.init.normal_(weight, std=std)


def xavier_normal_(weight: Tensor) -> Tensor:
    """Draw a matrix as Glorot and Bengio (2010) do."""
    return weight if weight.is_meta else nn.init.xavier_normal_(weight)


def table(count: int, width: int, std: float = 0.02) -> nn.Embedding:
    """An embedding of `count` vectors; `nn.Embedding` would draw its own weights first."""
    return nn.Embedding(count, width, _weight=normal_(torch.empty(count, width), std))


@torch.no_grad()
def copy_scaled(target: Tensor, source: Tensor, scale: float) -> None:
    """Let weights begin as others do, times `scale`."""
    target.copy_(source)
    if not target.is_meta:  # where arithmetic makes torch import hundreds of modules
        target.mul_(scale)
