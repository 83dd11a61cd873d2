"""A block's tokens one after the other, each given those before it (IRIS, section 2.2; Δ-IRIS, section 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn.distributions import masked_mean
from dreamenvs.nn.layers import RowLinear, RowRMSNorm, RowSiLU
from dreamenvs.protocols import SequenceModel
from dreamenvs.random import Noise
from dreamenvs.types import LossTerms


@dataclass(frozen=True, kw_only=True)
class AutoregressiveConfig:
    units: int = 512
    weight: float = 1.0


class Sampled(NamedTuple):
    tokens: Tensor  # (B, K) int64
    finite: Tensor  # (B,)
    hidden: Tensor  # (B, D)
    cache: Any


class AutoregressivePrior(nn.Module):
    def __init__(self, config: AutoregressiveConfig, width: int, num_tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.config, self.num_tokens = config, num_tokens
        self.trunk = nn.Sequential(RowLinear(width, config.units), RowRMSNorm(config.units), RowSiLU())
        self.project = RowLinear(config.units, vocabulary)

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.project(self.trunk(hidden))
        return logits.contiguous()

    def sample(
        self,
        hidden: Tensor,
        cache: Any,
        sequence: SequenceModel[Any],
        embed: Callable[[Tensor], Tensor],
        noise: Noise,
    ) -> Sampled:
        tokens: list[Tensor] = []
        finite = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
        for place in range(self.num_tokens):
            if place:
                hidden, cache = sequence.step(embed(tokens[-1]), cache)
            logits = self.logits(hidden)
            tokens.append(noise.categorical(logits[:, None], draw=place)[:, 0])
            finite = finite & logits.sum(1).isfinite()
        return Sampled(torch.stack(tokens, 1), finite, hidden, cache)

    def loss(self, hidden: Tensor, tokens: Tensor, valid: Tensor) -> LossTerms:
        """hidden (N, K, D), tokens (N, K), valid (N,)."""
        logits = self.logits(hidden)
        per_token = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
        dynamics = masked_mean(per_token.mean(-1), valid)
        return LossTerms(self.config.weight * dynamics, {"dynamics": dynamics.detach()})
