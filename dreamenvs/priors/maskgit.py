"""A frame's tokens by masked prediction, drawn in a few rounds, each given those before (GIT-STORM, section 3.2).

A bidirectional Transformer learns to fill in hidden tokens of the next frame from the hidden vector and from the tokens
that are shown. All tokens at once are drawn independently, as from `FactorizedPrior`; what one pass cannot do is make
them agree, and that takes two or more draft rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn import initialization
from dreamenvs.nn.bidirectional_transformer import BidirectionalTransformer
from dreamenvs.nn.cpu.packed import Part
from dreamenvs.nn.distributions import unimix
from dreamenvs.nn.layers import RowLayerNorm, RowLinear, gelu_linear, part_linear, row_linear
from dreamenvs.priors.factorized import CrossEntropyObjective, KLObjective, cross_entropy, divergences
from dreamenvs.priors.mask_schedules import MAX_PASSES, draft_and_revise, hide_some
from dreamenvs.protocols import Posterior
from dreamenvs.random import Noise
from dreamenvs.types import LossTerms

GROUP_TOKENS = 1024
"""Tokens, of whole rows, that a CPU takes through the head together: what they need stays in its cache, and in memory
that the process already has, where larger pieces would be asked from the system again and again."""


@dataclass(frozen=True, kw_only=True)
class MaskGITConfig:
    """Sizes of the head, how it is trained and in how many passes it draws; the defaults are table 8's.

    At these sizes it has 0.44 million weights, while STORM's linear prior has 0.53: the paper keeps them similar.
    """

    objective: KLObjective | CrossEntropyObjective = field(default_factory=lambda: KLObjective(dynamics=0.5))
    width: int = 128
    """Of the tokens' embeddings and of the Transformer; the paper's figure 13 varies it."""
    layers: int = 4
    heads: int = 8
    feed_forward: int = 128
    """The paper does not name it; the released code has 128."""
    dropout: float = 0.0
    unimix: float = 0.01
    """The uniform distribution's share, mixed in once; the released code does so twice in training."""
    tied: bool = True
    """Whether logits are dot products with the tokens' embeddings, or come from a matrix of their own (section E.1)."""
    channels: int = 16
    """Numbers of the hidden vector that each token is given, where it is not cut into K equal pieces: where K does not
    divide its size, or where tokens lie on a grid."""
    draft: int = 1
    """T_draft, the parts in which all tokens are drawn. One is table 8's; then tokens are drawn independently."""
    revise: int = 2
    """T_revise, the parts in which all tokens are drawn once more, each part given all the others."""
    repetitions: int = 0
    """Γ, how often they are. Table 8 has T_draft = T_revise = Γ = 1. A revision in one part hides everything, so that
    it is another draft, and the first is thrown away: the same distribution as with no repetition, at twice the cost,
    or with a draft in parts a worse one. So there is none by default, and a revision takes two parts or more."""

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.heads, self.feed_forward, self.channels) < 1 or self.width % self.heads:
            raise ValueError(f"sizes are 1 or more, and heads divide width: {self}")
        if not 0 <= self.unimix < 1 or not 0 <= self.dropout < 1:
            raise ValueError(f"unimix and dropout are shares below 1, not {self.unimix} and {self.dropout}")
        if self.draft < 1 or self.repetitions < 0 or self.revise < 1:
            raise ValueError(f"draft and revise are 1 or more, repetitions 0 or more: {self}")
        if self.revise == 1 and self.repetitions:
            raise ValueError(
                f"revise=1 hides all tokens and so throws the draft away; repetitions=0 in place of {self.repetitions} "
                "draws from the distribution of draft=1, and revise=2 or more revises"
            )
        if self.passes > MAX_PASSES:
            raise ValueError(f"draft + repetitions · revise is at most {MAX_PASSES} passes, not {self.passes}")
        if isinstance(self.objective, CrossEntropyObjective) and self.objective.sampled:
            raise ValueError(f"masks choose the tokens that count: sampled is 0, not {self.objective.sampled}")

    @property
    def phases(self) -> tuple[int, ...]:
        """Into how many parts the draft and each revision divide the tokens."""
        return (self.draft, *[self.revise] * self.repetitions)

    @property
    def passes(self) -> int:
        """Calls of the Transformer for one frame."""
        return sum(self.phases)


class MaskGITPrior(nn.Module):
    """Logits (N, S, V) of hidden tokens from hidden vectors (N, D) and shown tokens; implements `FramePrior`.

    Every token is given its own numbers of the hidden vector: a K-th part of it, or, for tokens on a grid (H', W'),
    what a learned map puts on its cell (TECO's arrangement).
    """

    def __init__(
        self,
        config: MaskGITConfig,
        width: int,
        num_tokens: int,
        vocabulary: int,
        grid: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        if max(config.phases) > num_tokens:
            raise ValueError(f"a frame of {num_tokens} tokens has no {max(config.phases)} parts: lower draft or revise")
        if grid is not None and grid[0] * grid[1] != num_tokens:
            raise ValueError(f"a grid of {grid} has no {num_tokens} cells")
        self.config, self.num_tokens, self.vocabulary = config, num_tokens, vocabulary
        cut = grid is None and width % num_tokens == 0
        self.spread = None if cut else RowLinear(width, num_tokens * config.channels)
        channels = width // num_tokens if cut else config.channels
        self.embed = initialization.table(vocabulary + 1, config.width)  # the last: hidden
        self.project = nn.Linear(config.width + channels, config.width)
        sizes = [(num_tokens, config.width)] if grid is None else [(length, config.width) for length in grid]
        self.positions = nn.ParameterList(initialization.normal_(torch.empty(size)) for size in sizes)
        self.transformer = BidirectionalTransformer(
            width=config.width,
            layers=config.layers,
            heads=config.heads,
            feed_forward=config.feed_forward,
            dropout=config.dropout,
        )
        self.inner = nn.Linear(config.width, config.width)
        self.inner_norm = RowLayerNorm(config.width)
        if not config.tied:
            self.output = nn.Parameter(initialization.normal_(torch.empty(vocabulary, config.width)))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def one_pass_logits(self, hidden: Tensor) -> Tensor:
        """Logits (N, K, V) with no token shown: what one draft round draws from.

        They compare with `FactorizedPrior.logits`: both say what each token is, given the past alone.
        """
        return self._logits(self._condition(hidden), self._nothing(hidden))

    def chain_logits(self, hidden: Tensor, tokens: Tensor, noise: Noise, rounds: int | None = None) -> Tensor:
        """Logits (N, K, V) of all tokens, each given the true ones (N, K) of the parts before its own.

        By the chain rule their log-likelihoods, or their divergences from the posterior that `tokens` are a sample of,
        sum to those of the joint distribution which `rounds` draft rounds draw from, for one random order of the parts.
        With as many rounds as tokens nothing is taken to be independent. Compare the sums, not single tokens, with the
        factorised prior's: what `one_pass_logits` cannot know of a token is what the others tell of it.
        """
        rounds = rounds or self.config.draft
        if not 1 <= rounds <= self.num_tokens:
            raise ValueError(f"rounds is 1 to {self.num_tokens}, the tokens of a frame, not {rounds}")
        own, shown = self._condition(hidden), self._nothing(hidden)
        logits = own.new_empty(*tokens.shape, self.vocabulary)
        for chosen, _ in draft_and_revise(noise, self.num_tokens, (rounds,)):
            part = self._logits(own, shown, chosen)
            if chosen is None:
                return part
            logits.scatter_(1, chosen[..., None].expand_as(part), part)
            shown.scatter_(1, chosen, tokens.gather(1, chosen))
        return logits

    def log_likelihood(self, hidden: Tensor, tokens: Tensor, past: Tensor) -> Tensor:
        """(N, K) nats, negative, of tokens (N, K) in the rounds of the draft: implements `ScoringPrior`.

        The order of the parts is random, but the same for the same hidden vector, and none of the tokens' business: so
        the sum is a frame's probability. How likely a revision makes a frame nobody can say; the draft stands for it.
        """
        seeds = hidden.float().sum(1).view(torch.int32).long()
        logits = self.chain_logits(hidden, tokens, Noise(seeds, torch.zeros_like(seeds)))
        return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def sample(self, hidden: Tensor, noise: Noise, past: Tensor) -> tuple[Tensor, Tensor]:
        """Draft and revise (algorithms 1 and 2), all rows at once: as many passes as the config says."""
        own, tokens = self._condition(hidden), self._nothing(hidden)
        finite = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
        for chosen, draw in draft_and_revise(noise, self.num_tokens, self.config.phases):
            if chosen is not None:
                tokens.scatter_(1, chosen, self.vocabulary)
            logits = self._logits(own, tokens, chosen)
            finite &= logits.sum((1, 2)).isfinite()
            drawn = noise.categorical(logits, draw, places=chosen)
            tokens = drawn if chosen is None else tokens.scatter_(1, chosen, drawn)
        return tokens, finite

    def loss(self, hidden: Tensor, target: Posterior, valid: Tensor, past: Tensor) -> LossTerms:
        """How badly hidden tokens of the target frames are filled in, in nats per frame.

        The tokens that are shown are the target's, as in TECO and as when a draft is drawn. The released code shows
        those of the frame before, which a prior never meets in a dream.

        A frame of which M tokens are hidden counts K / M times their sum, as in TECO; the released code does not
        rescale. So the loss is a mean over tokens, times K, whatever the mask: with all hidden it is STORM's, free bits
        and the weights beside reconstruction mean what they mean there, and over masks of even sizes its expectation
        would be the divergence of the joint distribution itself.
        """
        hide = hide_some(len(hidden), self.num_tokens, hidden.device)
        logits = self._logits(self._condition(hidden), target.tokens.masked_fill(hide, self.vocabulary))
        weights = hide * (self.num_tokens / hide.sum(1, keepdim=True))
        objective = self.config.objective
        if isinstance(objective, CrossEntropyObjective):
            return cross_entropy(objective, logits, target.tokens, valid, weights)
        return divergences(objective, logits, target.logits, valid, weights)

    def _nothing(self, hidden: Tensor) -> Tensor:
        """Tokens (N, K), all hidden."""
        return torch.full((len(hidden), self.num_tokens), self.vocabulary, device=hidden.device)

    def _condition(self, hidden: Tensor) -> Tensor:
        """Each token's own numbers (N, K, C) of hidden (N, D)."""
        numbers: Tensor = hidden if self.spread is None else self.spread(hidden)
        return numbers.reshape(len(hidden), self.num_tokens, -1)

    def _logits(self, own: Tensor, shown: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Logits (N, S, V) of the chosen (N, S) tokens, or of all, with tokens (N, K) shown, V where hidden."""
        rows = len(own)
        if not torch.is_grad_enabled() and own.device.type == "cpu":
            rows = max(1, GROUP_TOKENS // self.num_tokens)
        groups = [slice(first, first + rows) for first in range(0, len(own), rows)]
        parts = [self._predict(own[at], shown[at], None if chosen is None else chosen[at]) for at in groups]
        logits = torch.cat(parts)
        return unimix(logits, self.config.unimix) if self.config.unimix else logits

    def _predict(self, own: Tensor, shown: Tensor, chosen: Tensor | None) -> Tensor:
        """`_logits` of a group of rows, before the uniform distribution's share."""
        # Embedding and own numbers are to be concatenated and projected, which is the sum of the two projected apart.
        # So the embeddings are projected as a table, of which there are fewer than tokens.
        width, given = self.config.width, own.shape[-1]
        table = part_linear(self.embed.weight, self.project.weight, Part(last_column=width), self.project.bias)
        first, *others = self.positions
        positions = (first[:, None] + others[0]).flatten(0, 1) if others else first
        conditions = part_linear(own, self.project.weight, Part(first_column=width, last_column=width + given))
        found = self.transformer(conditions + (F.embedding(shown, table) + positions), chosen)
        inner = self.inner_norm(gelu_linear(found, self.inner.weight, self.inner.bias))
        if self.config.tied:
            return part_linear(inner, self.embed.weight, Part(last_row=-1), self.bias)
        return row_linear(inner, self.output, self.bias)
