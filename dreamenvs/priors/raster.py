"""A frame's tokens one after the other, each given those before it, at hardly more than the cost of all at once.

A prior that draws tokens each by itself shows two players where one of two places is uncertain, or none. Here the
places are taken row by row, as in PixelCNN (van den Oord et al., 2016), so that the likelihood of a frame is exact.
It is drawn by fixed-point iteration (Wiggers and Hoogeboom, 2020): all tokens are guessed, then all are drawn again
given the guesses before them, at the same random numbers, until none changes. What comes out is the very frame that
drawing token by token gives, and in most steps of a game the first guess is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn import initialization
from dreamenvs.nn.canvas import Canvas, pool
from dreamenvs.nn.layers import RowConv2d, RowLinear
from dreamenvs.priors.factorized import CrossEntropyObjective, KLObjective, cross_entropy, divergences
from dreamenvs.protocols import Posterior
from dreamenvs.random import Noise
from dreamenvs.types import LossTerms

SAME = 0.5
PAST = 2
"""Frames that are looked at, besides what is remembered."""


@dataclass(frozen=True, kw_only=True)
class RasterConfig:
    """Sizes of the network that all places share, and how the prior is trained."""

    objective: CrossEntropyObjective | KLObjective = field(default_factory=CrossEntropyObjective)
    channels: int = 32
    """Numbers at every place."""
    code_width: int = 12
    """Numbers that stand for a token."""
    reach: int = 2
    """Places above and to the left that are seen by themselves; of all others before a place, the sum is."""
    marginals: float = 1.0
    """Weight of the likelihood of each token by itself, from which guesses are made and expectations: a token enters
    as it is and as what was not expected, for "nobody here" says little in most places, and all where somebody was
    expected."""
    floor: float = 1e-3
    """What is less likely at its place is not drawn. Of a hundred places with a dozen tokens each, what the network has
    not quite ruled out anywhere comes together to a thing out of nowhere every few steps."""
    joint: bool = True
    """Whether tokens are given those before them; without it each is drawn by itself."""

    def __post_init__(self) -> None:
        if min(self.channels, self.code_width, self.reach) < 1 or not 0 < self.marginals < 1e6:
            raise ValueError(f"channels, code_width and reach are at least 1, and marginals above 0: {self}")
        if not 0 <= self.floor < 0.5:
            raise ValueError(f"floor is a probability below one half, not {self.floor}")
        if isinstance(self.objective, CrossEntropyObjective) and self.objective.sampled:
            raise ValueError("every token is given all tokens before it: leave sampled at 0")


class Scene(NamedTuple):
    """What is known before any token of the next frame is."""

    maps: Tensor  # (N, K, C)
    own: Tensor  # (N, K, E), the tokens of the frame before at their own places
    logits: Tensor  # (N, K, V), of each token by itself
    expected: Tensor  # (N, K, E), the mean token at each place by these; where tokens are joint


class RasterPrior(nn.Module):
    """Tokens (N, K) from hidden (N, D) and the past (N, 2, K), in the order of their places."""

    def __init__(self, config: RasterConfig, canvas: Canvas, vocabulary: int, kernel: int = 3) -> None:
        super().__init__()
        self.config, self.vocabulary, self.grid = config, vocabulary, canvas.grid
        channels, width = config.channels, config.code_width
        self.canvas = canvas
        self.embed = initialization.table(vocabulary, width, 1.0)
        self.look = RowConv2d(PAST * width, channels, kernel, padding=kernel // 2, bias=False)
        self.mix = RowConv2d(channels, channels, kernel, padding=kernel // 2)
        self.anywhere = RowLinear(2 * channels, channels)
        self.guess = RowLinear(channels + width, vocabulary)
        if config.joint:
            self.nearby = CausalConv2d(2 * width, channels, config.reach) if kernel > 1 else None
            self.earlier = RowLinear(2 * width, channels, bias=False)
            self.think = RowLinear(channels, channels)
            self.answer = RowLinear(channels + width, vocabulary)
        for layer in (self.guess, self.answer) if config.joint else (self.guess,):
            # At first every place is expected to stay as it is: what moves is learned from there.
            initialization.copy_scaled(layer.weight[:, channels:], self.embed.weight, SAME)

    def sample(self, hidden: Tensor, noise: Noise, past: Tensor) -> tuple[Tensor, Tensor]:
        scene = self._look(hidden, past)
        finite = scene.logits.sum((1, 2)).isfinite()
        tokens = noise.categorical(self._likely(scene.logits))
        if not self.config.joint:
            return tokens, finite
        tokens = tokens.clone()
        rows = torch.arange(len(tokens), device=tokens.device)
        some, their = scene, noise
        # A pass settles at least one more token of every row that is not settled yet.
        for _ in range(tokens.shape[1]):
            drawn = their.categorical_again(self._likely(self._given_before(some, tokens[rows])))
            changing = (drawn != tokens[rows]).any(1)
            tokens[rows] = drawn
            left = changing.nonzero()[:, 0]
            if not len(left):
                break
            rows = rows[left]
            some = Scene(*(part[rows] for part in scene))
            their = noise.of_rows(rows)
        return tokens, finite

    def loss(self, hidden: Tensor, target: Posterior, valid: Tensor, past: Tensor) -> LossTerms:
        scene, objective = self._look(hidden, past), self.config.objective
        logits = self._given_before(scene, target.tokens) if self.config.joint else scene.logits
        if isinstance(objective, KLObjective):
            # The posterior's tokens are each by themselves, so that this is the KL of frames, with the tokens before a
            # place sampled from it.
            terms = divergences(objective, logits, target.logits, valid)
        else:
            terms = cross_entropy(objective, logits, target.tokens, valid)
        if not self.config.joint:
            return terms
        each = cross_entropy(CrossEntropyObjective(), scene.logits, target.tokens, valid)
        return LossTerms(terms.total + self.config.marginals * each.total, terms.parts)

    def log_likelihood(self, hidden: Tensor, tokens: Tensor, past: Tensor) -> Tensor:
        """(N, K) nats of tokens (N, K), each given those before it."""
        scene = self._look(hidden, past)
        logits = self._given_before(scene, tokens) if self.config.joint else scene.logits
        return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def _likely(self, logits: Tensor) -> Tensor:
        """Logits (N, K, V) with nothing left for what is less likely than `floor`."""
        if not self.config.floor:
            return logits
        return logits.masked_fill(logits.log_softmax(-1) < math.log(self.config.floor), -torch.inf)

    def _look(self, hidden: Tensor, past: Tensor) -> Scene:
        embedded = rearrange(self.embed(past), "n p (h w) e -> n (p e) h w", h=self.grid[0]).contiguous()
        inner = F.silu(self.canvas(hidden) + self.look(embedded))
        maps = self.mix(inner) + self.anywhere(pool(inner))[:, :, None, None]
        maps, own = maps.flatten(2).mT, self.embed(past[:, -1])
        logits = self.guess(torch.cat([F.silu(maps), own], -1)).float()
        if not self.config.joint:
            return Scene(maps, own, logits, own)
        # Expectations say what is news; that they are right is learned from the tokens by themselves.
        expected = logits.detach().softmax(-1).to(own.dtype) @ self.embed.weight
        return Scene(maps, own, logits, expected)

    def _given_before(self, scene: Scene, tokens: Tensor) -> Tensor:
        """Logits (N, K, V) of every token given those before it among tokens (N, K)."""
        known = self.embed(tokens)
        entered = torch.cat([known - scene.own, known - scene.expected], -1)
        sums: Tensor = self.earlier(entered)
        # Of all before a place, itself not included.
        total = scene.maps + sums.cumsum(1) - sums
        if self.nearby is not None:
            on_grid = rearrange(entered, "n (h w) e -> n e h w", h=self.grid[0]).contiguous()
            total = total + self.nearby(on_grid).flatten(2).mT
        inner = F.silu(self.think(F.silu(total)))
        logits: Tensor = self.answer(torch.cat([inner, scene.own], -1))
        return logits.float()


class CausalConv2d(nn.Module):
    """A convolution of maps (N, C, H, W) that sees the places above and those to the left, and not its own."""

    def __init__(self, inputs: int, outputs: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.above = RowConv2d(inputs, outputs, (reach, 2 * reach + 1), bias=False)
        self.left = RowConv2d(inputs, outputs, (1, reach), bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        reach = self.reach
        above: Tensor = self.above(F.pad(maps[:, :, :-1], (reach, reach, reach, 0)))
        left: Tensor = self.left(F.pad(maps[:, :, :, :-1], (reach, 0)))
        # The first row has nothing above it.
        return above + left
