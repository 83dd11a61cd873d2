"""How far imagined rewards are from real ones, where every step has a reward and none of them is an event."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dreamenvs.evaluation.one_step import OneStep
from dreamenvs.evaluation.open_loop import OpenLoop


class RewardErrors(NamedTuple):
    """Mean absolute errors, beside two baselines; NaN where there are no steps."""

    steps: int
    model: float
    copy: float
    """Of the last real reward."""
    mean: float
    """Of the mean reward of all held-out steps."""


def reward_errors(steps: OpenLoop | OneStep, counted: NDArray[np.bool_], mean: float) -> RewardErrors:
    """Of the counted steps."""
    real = steps.real_rewards[counted].astype(np.float64)
    if not len(real):
        return RewardErrors(0, float("nan"), float("nan"), float("nan"))
    model, copy = steps.rewards[counted], steps.last_rewards[counted]
    return RewardErrors(len(real), *(float(np.abs(guess - real).mean()) for guess in (model, copy, mean)))
