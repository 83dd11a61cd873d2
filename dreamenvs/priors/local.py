"""A frame's tokens, all at once, each from the hidden vector and from what was near it in the two frames before.

What moves in a game moves a little: where a ball will be follows from where it was and was before, in the same way all
over the screen. `FactorizedPrior` reads that out of one vector, for every place anew, and loses small things: in a
dream of Pong half of the balls were gone after five steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn.layers import RowLinear, RowRMSNorm, row_silu
from dreamenvs.priors.factorized import CrossEntropyObjective, choose_tokens, cross_entropy
from dreamenvs.protocols import Posterior
from dreamenvs.random import Noise
from dreamenvs.types import LossTerms

PAST = 2
"""Frames that are looked at: the fewest that show how fast something moves."""


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """Sizes of the network that all tokens share, and how the prior is trained."""

    objective: CrossEntropyObjective = field(default_factory=CrossEntropyObjective)
    reach: int = 2
    """Tokens that are seen to each side of the predicted one."""
    code_width: int = 6
    """Numbers that stand for a token of the frames before."""
    units: int = 64
    """Of both hidden layers."""
    rank: int = 8
    """Numbers per token that a vector for each code turns into logits."""
    coupled: bool = True
    """Whether a frame's tokens are drawn with one random number, as in `FactorizedConfig`."""

    def __post_init__(self) -> None:
        if self.reach < 0 or min(self.code_width, self.units, self.rank) < 1:
            raise ValueError(f"reach is 0 or more, code_width, units and rank are 1 or more: {self}")


class LocalPrior(nn.Module):
    """Logits (N, K, V) of hidden (N, D) and the past (N, 2, K), tokens on a grid (H', W')."""

    neighbours: Tensor

    def __init__(self, config: LocalConfig, width: int, grid: tuple[int, int], vocabulary: int) -> None:
        super().__init__()
        self.config, self.grid, self.vocabulary = config, grid, vocabulary
        tokens, side, seen = grid[0] * grid[1], 2 * config.reach + 1, PAST * config.code_width
        self.norm = RowRMSNorm(width)
        self.project = RowLinear(width, tokens * config.rank)
        self.condition = RowLinear(width, 2 * config.units)
        self.embed = nn.Embedding(vocabulary + 1, config.code_width, padding_idx=vocabulary)  # the last: outside
        self.look = nn.Conv2d(seen, config.units, side, padding=config.reach)
        self.think = RowLinear(config.units, config.units)
        self.answer = RowLinear(config.units + seen, config.rank)
        self.codes = nn.Parameter(torch.empty(vocabulary, config.rank))
        self.bias = nn.Parameter(torch.zeros(tokens, vocabulary))
        nn.init.normal_(self.codes, std=config.rank**-0.5)
        # At first as `FactorizedPrior` with a rank, whose weights are a place to start from.
        nn.init.zeros_(self.answer.weight)
        nn.init.zeros_(self.answer.bias)
        self.register_buffer("neighbours", _neighbours(grid, config.reach), persistent=False)

    def logits(self, hidden: Tensor, past: Tensor) -> Tensor:
        """Logits (N, K, V) of all tokens."""
        return self._logits(hidden, past, None)

    def sample(self, hidden: Tensor, noise: Noise, past: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(hidden, past)
        return noise.categorical(logits, coupled=self.config.coupled), logits.sum((1, 2)).isfinite()

    def loss(self, hidden: Tensor, target: Posterior, valid: Tensor, past: Tensor) -> LossTerms:
        objective, tokens = self.config.objective, target.tokens
        if not 0 < objective.sampled < tokens.shape[1]:
            return cross_entropy(objective, self.logits(hidden, past), tokens, valid)
        chosen, weights = choose_tokens(tokens != past[:, -1], objective.sampled)
        logits = self._logits(hidden, past, chosen)
        return cross_entropy(objective, logits, tokens.take_along_dim(chosen, 1), valid, weights)

    def _logits(self, hidden: Tensor, past: Tensor, chosen: Tensor | None) -> Tensor:
        """Logits (N, S, V) of all tokens, or of the `chosen` (N, S) ones."""
        hidden = self.norm(hidden)
        whole: Tensor = self.project(hidden).reshape(len(hidden), -1, self.config.rank)
        bias: Tensor = self.bias
        if chosen is not None:
            whole, bias = whole.take_along_dim(chosen[..., None], 1), bias[chosen]
        looked, own = self._look_everywhere(past) if chosen is None else self._look_at(past, chosen)
        scale, shift = self.condition(hidden)[:, None].chunk(2, -1)
        inner = row_silu(torch.addcmul(shift, looked, 1 + scale))
        inner = row_silu(self.think(inner))
        numbers: Tensor = whole + self.answer(torch.cat([inner, own], -1))
        products = numbers.reshape(-1, self.config.rank) @ self.codes.t()
        return products.view(*numbers.shape[:2], -1) + bias

    def _look_everywhere(self, past: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer (N, K, units) of all tokens, and (N, K, 2·E) what was at their own places before."""
        vectors = rearrange(self.embed(past), "n p (h w) e -> n (p e) h w", h=self.grid[0]).contiguous()
        looked = F.conv2d(vectors, self.look.weight, self.look.bias, padding=self.config.reach)
        return looked.flatten(2).mT.contiguous(), vectors.flatten(2).mT

    def _look_at(self, past: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The same for the `chosen` (N, S) tokens alone, from their neighbourhoods: far less work for a few of them."""
        reach = self.config.reach
        grid = rearrange(past, "n p (h w) -> n p h w", h=self.grid[0])
        padded = F.pad(grid, (reach,) * 4, value=self.vocabulary).flatten(2)
        around = _take(padded, self.neighbours[chosen])
        vectors = self.embed(around)  # (N, 2, S, side², E)
        middle = vectors[:, :, :, vectors.shape[3] // 2]
        weight = rearrange(self.look.weight, "u (p e) i j -> u (p i j e)", p=PAST)
        looked = F.linear(rearrange(vectors, "n p s o e -> n s (p o e)"), weight, self.look.bias)
        return looked, rearrange(middle, "n p s e -> n s (p e)")


def _take(padded: Tensor, places: Tensor) -> Tensor:
    """Values (N, 2, S, side²) of padded frames (N, 2, L) at places (N, S, side²)."""
    flat = places.flatten(1)[:, None].expand(-1, padded.shape[1], -1)
    return padded.gather(2, flat).view(*padded.shape[:2], *places.shape[1:])


def _neighbours(grid: tuple[int, int], reach: int) -> Tensor:
    """Where (K, side²) the neighbourhood of each token lies in the flattened grid with a border as wide as `reach`."""
    wide, side = grid[1] + 2 * reach, torch.arange(2 * reach + 1)
    corners = torch.arange(grid[0])[:, None] * wide + torch.arange(grid[1])
    return corners.view(-1, 1) + (side[:, None] * wide + side).view(1, -1)
