"""Fidelity: how far an imagined future stays like the real one, given the same start and the same actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dreamenvs import tree
from dreamenvs.data.episode import Episode
from dreamenvs.data.segments import start_contexts
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise
from dreamenvs.types import Segment


class Fidelity(NamedTuple):
    """Figures over held-out episodes; a list has one entry for each imagined step."""

    psnr: float
    """Of imagined frames, averaged over the steps, in dB."""
    psnr_by_step: list[float]
    copy_psnr_by_step: list[float]
    """Of the last real frame, shown again and again."""
    token_accuracy: float
    """Of the first imagined frame."""
    copy_token_accuracy: float
    reward_recall: float
    """The share of steps with a reward whose sign was imagined in that very step."""
    reward_precision: float
    rewards_seen: int
    starts: int


@torch.inference_mode()
def measure(
    model: WorldModel[Any],
    episodes: Sequence[Episode],
    rng: np.random.Generator,
    *,
    starts: int = 128,
    context: int = 4,
    horizon: int = 15,
) -> Fidelity:
    """Dream `horizon` steps from `starts` real contexts under the real actions, and compare with what really came.

    Where no episode is that long, fewer steps are dreamed; the result has as many entries.
    """
    horizon = min(horizon, max(map(len, episodes)) - context)
    if horizon < 1:
        raise ValueError(f"no episode has a step beyond a context of {context}: nothing can be compared")
    segment = start_contexts(episodes, starts, context + horizon, rng)
    observed, last = tree.map(lambda leaf: leaf[:, :context], segment), context - 1
    state = model.observe(observed)
    copy_tokens = model.tokens(state).clone()
    seeds = torch.from_numpy(rng.integers(2**62, size=starts))
    errors, copy_errors, imagined = [], [], []
    accuracy = copy_accuracy = 0.0
    for step in range(horizon):
        noise = Noise(seeds, torch.full_like(seeds, step))
        state, outcome = model.step(state, segment.actions[:, last + step], noise)
        imagined.append(outcome.rewards)
        real = segment.observations[:, context + step]
        errors.append(_error(model.decode(state), real))
        copy_errors.append(_error(segment.observations[:, last], real))
        if step == 0:
            tokens = model.tokens(model.observe(_one_frame(segment, context)))
            accuracy = float((model.tokens(state) == tokens).float().mean())
            copy_accuracy = float((copy_tokens == tokens).float().mean())
    recall, precision, seen = _reward_agreement(torch.stack(imagined, 1), segment.rewards[:, last : last + horizon])
    by_step = [_psnr(error) for error in errors]
    return Fidelity(
        psnr=round(sum(by_step) / horizon, 2),
        psnr_by_step=by_step,
        copy_psnr_by_step=[_psnr(error) for error in copy_errors],
        token_accuracy=round(accuracy, 4),
        copy_token_accuracy=round(copy_accuracy, 4),
        reward_recall=recall,
        reward_precision=precision,
        rewards_seen=seen,
        starts=starts,
    )


def _one_frame(segment: Segment, index: int) -> Segment:
    return tree.map(lambda leaf: leaf[:, index : index + 1], segment)


def _error(imagined: Tensor, real: Tensor) -> float:
    return float((imagined.float() - real.float()).square().mean()) / 255**2


def _psnr(error: float) -> float:
    return round(-10 * math.log10(max(error, 1e-10)), 2)


def _reward_agreement(imagined: Tensor, real: Tensor) -> tuple[float, float, int]:
    """Recall and precision of the sign of rewards beyond one half of the smallest real one, and how many there were."""
    rewarded = real != 0
    seen = int(rewarded.sum())
    if seen == 0:
        return float("nan"), float("nan"), 0
    claimed = imagined.abs() > real[rewarded].abs().min() / 2
    right = int((claimed & rewarded & (imagined.sign() == real.sign())).sum())
    return round(right / seen, 3), round(right / max(int(claimed.sum()), 1), 3), seen
