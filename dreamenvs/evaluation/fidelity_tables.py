"""Figures: what the raw comparisons of `open_loop.py` and `one_step.py` come to."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dreamenvs.evaluation.detection import Events, compare_events, majority_sign, reward_signs, smallest_reward
from dreamenvs.evaluation.one_step import OneStep
from dreamenvs.evaluation.open_loop import OpenLoop


class PixelFigures(NamedTuple):
    """PSNR in dB, of the mean squared error over all frames; 100 at most."""

    frames: int
    psnr: float
    copy_psnr: float
    """Of the last real frame, shown again and again."""
    change_psnr: float
    """Over the pixels in which two real frames in a row differ."""
    copy_change_psnr: float


class TokenFigures(NamedTuple):
    """Tokens against those of the real frame."""

    accuracy: float
    """Of drawn tokens in the open loop; one step ahead, of the most likely ones."""
    copy_accuracy: float
    majority_accuracy: float
    """Of each place's most common token."""
    perplexity: float
    """Of the true tokens under the prediction, exp of the mean of -ln p over all tokens: the lower, the better, from 1
    to V for one that knows nothing. NaN in a family that has no likelihood. GIT-STORM defines it so (appendix K), yet
    reads higher as better, as the use of tokens; how many values are in use is `CodebookUse.perplexity` here."""
    marginal_perplexity: float
    """Under each place's frequencies."""


class EventFigures(NamedTuple):
    """Non-zero rewards and terminations."""

    rewards: Events
    terminations: Events


class CodebookUse(NamedTuple):
    """Which values the tokens of real frames take."""

    codes: int
    used: float
    """The share of values that occur."""
    perplexity: float
    """How many equally frequent values would be as varied."""


class EventScale(NamedTuple):
    """What counts as an event in these episodes, and what usually happens."""

    smallest: float
    """The smallest non-zero reward."""
    usual_reward: int
    """The sign of the most common reward."""
    usual_end: int
    """1 if most steps terminate."""


def pixel_figures(column: OpenLoop) -> PixelFigures:
    """PSNR at one horizon."""
    framed = column.framed > 0
    changed = column.changed[framed].sum()
    whole = [_psnr(_mean(error[framed])) for error in (column.error, column.copy_error)]
    change = [
        _psnr(float(error[framed].sum() / changed) if changed else math.nan)
        for error in (column.change_error, column.copy_change_error)
    ]
    return PixelFigures(int(framed.sum()), *whole, *change)


def token_figures(column: OpenLoop) -> TokenFigures:
    """Accuracy and perplexity at one horizon."""
    framed = column.framed > 0
    shares = (column.accuracy, column.copy_accuracy, column.majority_accuracy)
    surprises = (column.surprise, column.marginal_surprise)
    return TokenFigures(
        *(_mean(share[framed]) for share in shares), *(_perplexity(_mean(nats[framed])) for nats in surprises)
    )


def one_step_tokens(single: OneStep, marginal: NDArray[np.float64]) -> TokenFigures:
    """Accuracy and perplexity one step ahead; `marginal` (K, V) are the tokens' frequencies."""
    framed, count = single.framed, int(single.histogram.sum())
    nats = -(single.histogram * np.log(marginal)).sum()
    return TokenFigures(
        accuracy=_mean(single.accuracy[framed]),
        copy_accuracy=_mean(single.copy_accuracy[framed]),
        majority_accuracy=float(single.histogram.max(1).sum() / count) if count else math.nan,
        perplexity=_perplexity(_mean(single.surprise[framed])),
        marginal_perplexity=_perplexity(float(nats / count)) if count else math.nan,
    )


def event_scale(single: OneStep) -> EventScale:
    """The scale of the rewards and terminations of all episodes."""
    smallest = smallest_reward(single.real_rewards)
    usual_reward = majority_sign(reward_signs(single.real_rewards, smallest))
    return EventScale(smallest, usual_reward, majority_sign(single.real_terminated.astype(np.int8)))


def event_figures(steps: OpenLoop | OneStep, counted: NDArray[np.bool_], scale: EventScale) -> EventFigures:
    """Rewards and terminations of the counted steps."""
    signs = (
        reward_signs(rewards[counted], scale.smallest)
        for rewards in (steps.real_rewards, steps.rewards, steps.last_rewards)
    )
    ends, own_ends = (flags[counted].astype(np.int8) for flags in (steps.real_terminated, steps.terminated))
    return EventFigures(
        rewards=compare_events(*signs, majority=scale.usual_reward),
        terminations=compare_events(ends, own_ends, np.zeros_like(ends), majority=scale.usual_end),
    )


def codebook_use(histogram: NDArray[np.int64]) -> CodebookUse:
    """How varied the tokens of (K, V) counts are, over all their places."""
    counts = histogram.sum(0)
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return CodebookUse(len(counts), float((counts > 0).mean()), float(np.exp(-(shares * np.log(shares)).sum())))


def frequencies(histogram: NDArray[np.int64]) -> NDArray[np.float64]:
    """(K, V) of counts, with one more of each, so that no value is impossible."""
    shares: NDArray[np.float64] = (histogram + 1) / (histogram.sum(1, keepdims=True) + histogram.shape[1])
    return shares


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else math.nan


def _psnr(error: float) -> float:
    return math.nan if math.isnan(error) else -10 * math.log10(max(error, 1e-10))


def _perplexity(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.nan
