"""Parallel observation prediction, POP (REM, sections 2.3 and 2.4): a whole frame's tokens in one pass.

K learned inputs ask the sequence model for the K tokens, from its state before the frame; the state does not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dreamenvs.nn import initialization
from dreamenvs.priors.token_head import TokenHead
from dreamenvs.protocols import Drawn, Foreseen, PeekingModel
from dreamenvs.random import Noise


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How a frame's tokens are drawn."""

    coupled: bool = False
    """Whether with one random number instead of one each, so that one chance event has one outcome: see
    `FactorizedConfig.coupled`. The paper draws them apart."""


class ParallelPrior(TokenHead):
    """Implements `BlockPrior` over sequence models that can `peek`."""

    def __init__(self, config: ParallelConfig, width: int, num_tokens: int, vocabulary: int) -> None:
        super().__init__(width, vocabulary)
        self.config = config
        self.queries = nn.Parameter(torch.empty(num_tokens, width))  # (K, D)
        initialization.normal_(self.queries)

    def read(self, sequence: PeekingModel[Any], latest: Tensor, cache: Any) -> Any:
        """Nothing: a frame's tokens are fed with the action that follows them."""
        return cache

    def advance(self, sequence: PeekingModel[Any], latest: Tensor, action: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """The whole block, of which only the last hidden vector is asked for."""
        return sequence.extend_last(torch.cat([latest, action[:, None]], 1), cache)

    def sample(
        self,
        sequence: PeekingModel[Any],
        hidden: Tensor,
        cache: Any,
        embed: Callable[[Tensor], Tensor],
        noise: Noise,
    ) -> Drawn:
        logits = self.logits(sequence.peek(self.queries, cache)).contiguous()
        tokens = noise.categorical(logits, coupled=self.config.coupled)
        return Drawn(tokens, logits.sum((1, 2)).isfinite(), cache)

    def foresee(self, sequence: PeekingModel[Any], blocks: Tensor) -> Foreseen:
        """All frames at once, each from the state before it (algorithms 1 and 2)."""
        hidden, peeked = sequence.forward_peeking(blocks, self.queries)
        return Foreseen(hidden[:, :, -1], peeked[:, 1:])
