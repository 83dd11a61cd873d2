"""Outcomes: the reward and the end of a step, read from the hidden vector alone, or from the transition that it made.

The papers read them from the hidden vector, before the next frame is drawn: reward and frame are then two independent
guesses, and a brick vanishes unpaid. `TransitionOutcomes` sees the frame before, the frame after and the memory, at
every place, and draws the reward from the values that the data hold instead of paying a little at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.models.heads import HeadConfig, RewardHead, SignRewardHead, TerminationHead
from dreamenvs.nn import initialization
from dreamenvs.nn.canvas import Canvas, Layout, pool
from dreamenvs.nn.distributions import BINS, masked_mean, two_hot_loss, two_hot_mean
from dreamenvs.nn.layers import RowConv2d, RowLinear
from dreamenvs.random import Noise
from dreamenvs.types import LossTerms, Outcome

REWARD_STEPS = 1
"""Draws after that of the termination: the reward's class."""


class Outcomes(Protocol):
    """Reward and termination of steps; an `nn.Module` too."""

    sees_next: bool
    """Whether a step's outcome can be learned only where the frame after it is shown."""

    def sample(self, hidden: Tensor, before: Tensor, after: Tensor, noise: Noise, draw: int) -> Outcome:
        """Of one step of every row: hidden (B, D) after the action, tokens (B, K) before and after it."""
        ...

    def loss(self, hidden: Tensor, tokens: Tensor, rewards: Tensor, terminated: Tensor, valid: Tensor) -> LossTerms:
        """Of segments: hidden (B, T, D), tokens (B, T, K), and (B, T) rewards, ends and which steps count."""
        ...

    def grow(self, rewards: Tensor) -> None:
        """Take note of rewards (N,) of the data, before anything is learned from them."""
        ...


class HiddenOutcomes(nn.Module):
    """As in the papers: one head each, on the hidden vector."""

    sees_next = False

    def __init__(self, reward: RewardHead | SignRewardHead, termination: TerminationHead) -> None:
        super().__init__()
        self.reward = reward
        self.termination = termination

    def sample(self, hidden: Tensor, before: Tensor, after: Tensor, noise: Noise, draw: int) -> Outcome:
        # DRAMA cuts where the probability passes one half; sampling keeps the learned rate of rare endings.
        ends = self.termination(hidden)
        return Outcome(self.reward(hidden), noise.bernoulli(ends, draw=draw), ends.isfinite())

    def loss(self, hidden: Tensor, tokens: Tensor, rewards: Tensor, terminated: Tensor, valid: Tensor) -> LossTerms:
        flat, counted = hidden.flatten(0, 1), valid.flatten()
        reward = self.reward.loss(flat, rewards.flatten(), counted)
        termination = self.termination.loss(flat, terminated.flatten(), counted)
        return LossTerms(reward + termination, {"reward": reward.detach(), "termination": termination.detach()})

    def grow(self, rewards: Tensor) -> None:
        """The papers' heads know all rewards."""


@dataclass(frozen=True, kw_only=True)
class TransitionConfig:
    """Sizes of the network that looks at a transition."""

    channels: int = 32
    """Numbers at every place."""
    code_width: int = 12
    """Numbers that stand for a token."""
    units: int = 64
    """Of the layer between the places and the outcome."""
    classes: int = 8
    """Rewards of at most so many values are drawn as one of these; where the data hold more, the mean is paid, and
    nothing where it is less than half of the smallest reward of the data."""
    floor: float = 0.03
    """A reward or an end that is less likely does not happen. Outcomes mostly follow from what is seen; what the
    network has not quite ruled out at any of a hundred steps comes together to ends without a cause."""
    weight: float = 5.0
    """Of the outcome's likelihood, next to that of a whole frame."""

    def __post_init__(self) -> None:
        sizes = min(self.channels, self.code_width, self.units) >= 1
        if not 0 <= self.floor < 0.5:
            raise ValueError(f"floor is a probability below one half, not {self.floor}")
        if not (sizes and 2 <= self.classes <= BINS and 0 < self.weight < 1e6):
            raise ValueError(f"sizes are at least 1, classes from 2 to {BINS} and weight above 0: {self}")


class TransitionOutcomes(nn.Module):
    """Reward and end of [hidden, tokens before, tokens after], looked at where they are and gathered over the frame."""

    sees_next = True
    values: Tensor
    kept: Tensor
    quiet: Tensor

    def __init__(self, config: TransitionConfig, canvas: Canvas, vocabulary: int, kernel: int = 3) -> None:
        super().__init__()
        self.config, self.grid = config, canvas.grid
        channels, padding = config.channels, kernel // 2
        self.canvas = canvas
        # What met where is learned sooner as long as a young memory, which says little, does not drown it.
        self.trust = nn.Parameter(torch.zeros(channels, 1, 1))
        self.embed = initialization.table(vocabulary, config.code_width, 1.0)
        self.look = RowConv2d(2 * config.code_width, channels, kernel, padding=padding, bias=False)
        self.think = RowConv2d(channels, channels, kernel, padding=padding)
        self.gather = RowLinear(2 * channels, config.units)
        self.reward = RowLinear(config.units, BINS)
        self.end = RowLinear(config.units, 1)
        self.register_buffer("values", torch.zeros(config.classes))  # (R,), the first is 0
        self.register_buffer("kept", torch.ones((), dtype=torch.int64))  # one more than there are, if there are more
        self.register_buffer("quiet", torch.zeros(()))

    def sample(self, hidden: Tensor, before: Tensor, after: Tensor, noise: Noise, draw: int) -> Outcome:
        rewards, ends = self._logits(hidden, before, after)
        finite = ends.isfinite() & rewards.sum(1).isfinite()
        drawn = noise.bernoulli(ends, draw=draw) & (ends.sigmoid() >= self.config.floor)
        return Outcome(self._reward(rewards, noise, draw + REWARD_STEPS), drawn, finite)

    def loss(self, hidden: Tensor, tokens: Tensor, rewards: Tensor, terminated: Tensor, valid: Tensor) -> LossTerms:
        # The step at t leads to the frame at t + 1; which of these are shown, is seen to by the stage.
        parts = (hidden[:, :-1], tokens[:, :-1], tokens[:, 1:], rewards[:, :-1], terminated[:, :-1], valid[:, :-1])
        flat, before, after, paid, ended, counted = (part.flatten(0, 1) for part in parts)
        found, ends = self._logits(flat, before, after)
        drawn = F.cross_entropy(self._known(found), self._classes(paid), reduction="none")
        reward = masked_mean(torch.where(self._few, drawn, two_hot_loss(found, paid)), counted)
        crossed = F.binary_cross_entropy_with_logits(ends, ended.to(ends.dtype), reduction="none")
        termination = masked_mean(crossed, counted)
        parts_of_loss = {"reward": reward.detach(), "termination": termination.detach()}
        return LossTerms(self.config.weight * (reward + termination), parts_of_loss)

    @torch.no_grad()
    def grow(self, rewards: Tensor) -> None:
        distinct = torch.unique(rewards)
        sizes = distinct[distinct != 0].abs()
        if len(sizes):
            smallest = sizes.min() / 2
            self.quiet.copy_(torch.minimum(self.quiet, smallest) if self.quiet > 0 else smallest)
        count = int(self.kept)
        if count > self.config.classes:
            return
        new = distinct[(distinct[:, None] != self.values[:count]).all(1)][: self.config.classes + 1 - count]
        self.kept += len(new)
        inside = new[: self.config.classes - count]
        self.values[count : count + len(inside)] = inside

    def _reward(self, logits: Tensor, noise: Noise, draw: int) -> Tensor:
        means = two_hot_mean(logits)
        loud = torch.where(means.abs() < self.quiet, 0.0, means)
        known = self._known(logits)
        likely = known.masked_fill(known.softmax(-1) < self.config.floor, -torch.inf)
        return torch.where(self._few, self.values[noise.choose(likely, draw=draw)], loud)

    @property
    def _few(self) -> Tensor:
        """Whether rewards take few values: a tensor, so that no device waits for the answer."""
        return self.kept <= self.config.classes

    def _known(self, logits: Tensor) -> Tensor:
        """Logits (N, classes), with nothing left for values that the data do not hold."""
        classes = torch.arange(self.config.classes, device=logits.device)
        return logits[:, : self.config.classes].masked_fill(classes >= self.kept, -1e9)

    def _classes(self, rewards: Tensor) -> Tensor:
        distances = (rewards[:, None] - self.values).abs()
        return self._known(-distances).argmax(-1)

    def _logits(self, hidden: Tensor, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, R) of the reward and log-odds (N,) of the end."""
        both = torch.cat([self.embed(before), self.embed(after)], -1)
        seen = self.look(rearrange(both, "n (h w) e -> n e h w", h=self.grid[0]).contiguous())
        inner = F.silu(self.think(F.silu(self.trust * self.canvas(hidden) + seen)))
        gathered = F.silu(self.gather(pool(inner)))
        return self.reward(gathered).float(), self.end(gathered)[:, 0].float()


def build_hidden_outcomes(config: HeadConfig, width: int) -> HiddenOutcomes:
    """The papers' heads, with two-hot rewards."""
    return HiddenOutcomes(RewardHead(config, width), TerminationHead(config, width))


def build_outcomes(config: HeadConfig | TransitionConfig, width: int, layout: Layout, vocabulary: int) -> Outcomes:
    """The outcomes of a config, for a hidden vector of `width` and tokens that lie as `layout` says."""
    if isinstance(config, HeadConfig):
        return build_hidden_outcomes(config, width)
    canvas = layout.canvas(width, config.channels)
    return TransitionOutcomes(config, canvas, vocabulary, layout.kernel)
