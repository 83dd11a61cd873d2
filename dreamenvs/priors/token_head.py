"""The head that token-level priors share: from one hidden vector to the logits of one token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn.distributions import masked_mean
from dreamenvs.nn.layers import RowLinear
from dreamenvs.types import LossTerms


class TokenHead(nn.Module):
    """Linear, ReLU, linear, as IRIS and REM have it."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.inner = RowLinear(width, width)
        self.project = RowLinear(width, vocabulary)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of hidden (..., D)."""
        logits: Tensor = self.project(torch.relu(self.inner(hidden)))
        return logits

    def loss(self, hidden: Tensor, tokens: Tensor, valid: Tensor) -> LossTerms:
        """Cross-entropy of tokens (N, K) with hidden (N, K, D), over the valid (N,) frames.

        It is averaged over the tokens of a frame, as in the papers: so reward and termination weigh as much as one
        token. What people read is their sum, nats per frame.
        """
        # Only what counts reaches the head: padding is never a target.
        logits = self.logits(hidden[valid])
        per_token = F.cross_entropy(logits.flatten(0, 1), tokens[valid].flatten(), reduction="none")
        frames = per_token.view(-1, tokens.shape[1]).sum(1)
        dynamics = masked_mean(frames, torch.ones_like(frames, dtype=torch.bool))
        return LossTerms(dynamics / tokens.shape[1], {"dynamics": dynamics.detach()})
