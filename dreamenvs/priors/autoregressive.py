"""A frame's tokens one after the other, each from the hidden vector of the one before (IRIS, Δ-IRIS).

The last token of a frame is not fed when it is drawn: it waits for the action, and both are fed at once. So K tokens
take K calls of the sequence model and not K + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dreamenvs.priors.token_head import TokenHead
from dreamenvs.protocols import Drawn, Foreseen, SequenceModel
from dreamenvs.random import Noise


@dataclass(frozen=True, kw_only=True)
class AutoregressiveConfig:
    """Token by token. It has no choices."""


class AutoregressivePrior(TokenHead):
    """Implements `BlockPrior` over any sequence model."""

    def __init__(self, config: AutoregressiveConfig, width: int, num_tokens: int, vocabulary: int) -> None:
        super().__init__(width, vocabulary)
        self.num_tokens = num_tokens

    def read(self, sequence: SequenceModel[Any], latest: Tensor, cache: Any) -> Any:
        """All tokens of a real frame but the last, as after drawing it."""
        if latest.shape[1] == 1:
            return cache
        return sequence.extend(latest[:, :-1], cache)[1]

    def advance(self, sequence: SequenceModel[Any], latest: Tensor, action: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """The waiting token and the action at once."""
        hidden, cache = sequence.extend(torch.stack([latest[:, -1], action], 1), cache)
        return hidden[:, -1], cache

    def sample(
        self,
        sequence: SequenceModel[Any],
        hidden: Tensor,
        cache: Any,
        embed: Callable[[Tensor], Tensor],
        noise: Noise,
    ) -> Drawn:
        tokens: list[Tensor] = []
        finite = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
        for place in range(self.num_tokens):
            if place:
                hidden, cache = sequence.step(embed(tokens[-1])[:, 0], cache)
            logits = self.logits(hidden).contiguous()
            finite &= logits.sum(-1).isfinite()
            tokens.append(noise.categorical(logits[:, None], draw=place))
        return Drawn(torch.cat(tokens, 1), finite, cache)

    def foresee(self, sequence: SequenceModel[Any], blocks: Tensor) -> Foreseen:
        """Token k of a frame from the input before it: for the first, that is the last frame's action."""
        rows, steps, length = blocks.shape[:3]
        hidden = sequence(blocks.flatten(1, 2)).view(rows, steps, length, -1)
        before = torch.cat([hidden[:, :-1, -1:], hidden[:, 1:, : length - 2]], 2)
        return Foreseen(hidden[:, :, -1], before)
