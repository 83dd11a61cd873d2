"""A frame's tokens, all at once and independent given the hidden vector (STEP-VQ, equations 4, 6 and 14)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn import initialization
from dreamenvs.nn.distributions import free_bits, kl, masked_mean, unimix
from dreamenvs.nn.layers import RowLinear, RowRMSNorm
from dreamenvs.protocols import Posterior
from dreamenvs.random import Noise
from dreamenvs.types import LossTerms


@dataclass(frozen=True, kw_only=True)
class CrossEntropyObjective:
    """Equation 6: the log-likelihood of the posterior's tokens. It trains the prior alone."""

    weight: float = 1.0
    sampled: int = 0
    """Tokens per frame whose likelihood an update computes, 0 for all. Half of the places go to tokens that change, as
    far as there are as many, the others to a random choice of the rest, weighted so that the expectation is the whole
    sum. Most of a frame stays as it was, and computing all of its logits is most of the work where frames are large."""

    def __post_init__(self) -> None:
        if self.sampled < 0 or self.sampled % 2:
            raise ValueError(f"sampled is an even number of tokens, or 0 for all, not {self.sampled}")


@dataclass(frozen=True, kw_only=True)
class KLObjective:
    """Equation 14: prior and posterior approach each other, each at its own pace. DRAMA's weights."""

    representation: float = 0.1
    """λ1, on the term that moves the posterior."""
    dynamics: float = 1.0
    """λ2, on the term that moves the prior."""
    free_bits: float = 1.0
    """Nats per frame below which a term is not lowered any further."""
    direction: Literal["posterior_prior", "prior_posterior"] = "posterior_prior"
    """KL[posterior ‖ prior] is the ELBO's own term (section B.1), and STORM's and DRAMA's: its minimiser is the
    calibrated predictive distribution. Equation 14 prints KL[prior ‖ posterior], which seeks one mode; fitted on
    a small deterministic world it fell to one constant frame, where the ELBO's direction learned the world."""


@dataclass(frozen=True, kw_only=True)
class FactorizedConfig:
    """How the prior is trained, and the uniform distribution's share in it."""

    objective: KLObjective | CrossEntropyObjective = field(default_factory=KLObjective)
    unimix: float = 0.0
    rank: int = 0
    """0, as in the paper, for one linear layer from the hidden vector to all logits. With a rank R that layer gives R
    numbers per token, and a vector for each code turns them into logits: V / R times fewer weights."""
    norm: bool = True
    """Whether an RMSNorm comes first; STORM's Transformer ends with a norm of its own."""
    coupled: bool = False
    """Whether a frame's tokens are drawn with one random number instead of one each. Each token keeps its distribution,
    and one chance event has one outcome: where an action may not take effect, the paddle stays or moves, while tokens
    drawn apart, as in the paper, show it in both places or in none."""
    exclusive: bool = False
    """Whether the tokens of a frame that may become the same other thing do so in turn, rather than together or apart:
    where an enemy may enter on any of sixteen sides, it enters on one, while coupled ones would enter on all of them
    once in sixteen times. What appears in one place is still missing in the other. It goes before `coupled`."""

    def __post_init__(self) -> None:
        if self.rank < 0 or not 0 <= self.unimix < 1:
            raise ValueError(f"rank is 0 or more and unimix a share below 1, not {self.rank} and {self.unimix}")


class FactorizedPrior(nn.Module):
    """One linear layer from hidden (N, D) to logits (N, K, V), or one of lower rank."""

    def __init__(self, config: FactorizedConfig, width: int, num_tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.norm = RowRMSNorm(width) if config.norm else nn.Identity()
        self.project = RowLinear(width, num_tokens * (config.rank or vocabulary))
        if config.rank:
            self.codes = nn.Parameter(torch.empty(vocabulary, config.rank))
            initialization.normal_(self.codes, config.rank**-0.5)
            self.bias = nn.Parameter(torch.zeros(num_tokens, vocabulary))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (N, K, V) of hidden (N, D); log-probabilities where there is unimix."""
        outputs: Tensor = self.project(self.norm(hidden)).contiguous()
        return self._to_logits(outputs.view(len(hidden), -1, self.config.rank or self.vocabulary))

    def sample(self, hidden: Tensor, noise: Noise, past: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(hidden)
        # NaN and infinity survive a sum, which is one pass where isfinite and all would be two.
        config, finite = self.config, logits.sum((1, 2)).isfinite()
        return noise.categorical(logits, coupled=config.coupled, exclusive=config.exclusive), finite

    def loss(self, hidden: Tensor, target: Posterior, valid: Tensor, past: Tensor) -> LossTerms:
        objective = self.config.objective
        if not isinstance(objective, CrossEntropyObjective):
            return divergences(objective, self.logits(hidden), target.logits, valid)
        tokens = target.tokens
        if not 0 < objective.sampled < tokens.shape[1]:
            return cross_entropy(objective, self.logits(hidden), tokens, valid)
        chosen, weights = choose_tokens(tokens != past[:, -1], objective.sampled)
        outputs: Tensor = self.project(self.norm(hidden))
        outputs = outputs.view(*tokens.shape, -1).take_along_dim(chosen[..., None], 1)
        logits = self._to_logits(outputs, chosen)
        return cross_entropy(objective, logits, tokens.take_along_dim(chosen, 1), valid, weights)

    def _to_logits(self, outputs: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Logits (N, S, V) of what the linear layer gave for all tokens, or for the `chosen` (N, S) ones."""
        logits = outputs
        if self.config.rank:
            products = outputs.reshape(-1, self.config.rank) @ self.codes.t()
            logits = products.view(*outputs.shape[:2], -1) + (self.bias if chosen is None else self.bias[chosen])
        return unimix(logits, self.config.unimix) if self.config.unimix else logits


def choose_tokens(changed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Tokens (N, count) of every frame, and weights (N, count) with which they stand for all of `changed` (N, K)."""
    draws = torch.rand(changed.shape, device=changed.device)
    half = count // 2
    first = (draws + changed.to(draws.dtype)).topk(half, sorted=False).indices  # what changes, then what does not
    second = (draws - changed.to(draws.dtype)).topk(half, sorted=False, largest=True).indices
    chosen = torch.cat([first, second], 1)
    moved = changed.take_along_dim(chosen, 1)
    present = changed.sum(1, keepdim=True)
    taken = moved.sum(1, keepdim=True)
    weights = torch.where(
        moved, present / taken.clamp(min=1), (changed.shape[1] - present) / (count - taken).clamp(min=1)
    )
    return chosen, weights


def cross_entropy(
    objective: CrossEntropyObjective, logits: Tensor, tokens: Tensor, valid: Tensor, weights: Tensor | None = None
) -> LossTerms:
    """Equation 6 for logits (N, K, V) and tokens (N, K) of frames, of which the valid (N,) count, weighted (N, K)."""
    per_token = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
    dynamics = masked_mean((per_token if weights is None else per_token * weights).sum(-1), valid)
    return LossTerms(objective.weight * dynamics, {"dynamics": dynamics.detach()})


def divergences(
    objective: KLObjective, prior: Tensor, posterior: Tensor, valid: Tensor, weights: Tensor | None = None
) -> LossTerms:
    """Both terms of equation 14 for logits (N, K, V) of frames, of which the valid (N,) count, weighted (N, K)."""

    def divergence(prior: Tensor, posterior: Tensor) -> Tensor:
        ordered = (prior, posterior) if objective.direction == "prior_posterior" else (posterior, prior)
        per_token = kl(*ordered)
        return masked_mean((per_token if weights is None else per_token * weights).sum(-1), valid)

    dynamics = divergence(prior, posterior.detach())
    representation = divergence(prior.detach(), posterior)
    total = objective.dynamics * free_bits(dynamics, objective.free_bits)
    total = total + objective.representation * free_bits(representation, objective.free_bits)
    return LossTerms(total, {"dynamics": dynamics.detach(), "representation": representation.detach()})
