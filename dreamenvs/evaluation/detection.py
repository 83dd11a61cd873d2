"""Detection: precision, recall and F1 of rare events, beside what costs nothing to predict.

An event is a sign: +1 or -1 for a reward, +1 for a termination, 0 for nothing. A claim of the wrong sign is wrong
twice, as a false alarm and as a miss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Signs = NDArray[np.int8]  # (N,)


class Detection(NamedTuple):
    """How well events were foreseen; NaN where nothing was claimed (precision) or nothing happened (recall)."""

    precision: float
    recall: float
    f1: float


class Events(NamedTuple):
    """The model beside two baselines: the last real event again, and always the most common one."""

    steps: int
    positives: int
    """Steps with an event."""
    model: Detection
    copy: Detection
    majority: Detection


def reward_signs(rewards: NDArray[Any], smallest: float) -> Signs:
    """The signs of rewards beyond one half of the smallest real one."""
    # The comparison is false for NaN: a model that breaks down claims nothing.
    signs: Signs = np.where(np.abs(rewards) > smallest / 2, np.sign(rewards), 0).astype(np.int8)
    return signs


def smallest_reward(rewards: NDArray[Any]) -> float:
    """The smallest size of a reward that is not zero; infinity, beyond which nothing is claimed, if there is none."""
    sizes = np.abs(rewards[rewards != 0])
    return float(sizes.min()) if sizes.size else float("inf")


def compare_events(real: Signs, imagined: Signs, last: Signs, *, majority: int) -> Events:
    """Real events (N,) against the model's and the baselines' claims."""
    usual = np.full_like(real, majority)
    return Events(
        steps=len(real),
        positives=int(np.count_nonzero(real)),
        model=_detection(real, imagined),
        copy=_detection(real, last),
        majority=_detection(real, usual),
    )


def majority_sign(real: Signs) -> int:
    """The most common event among (N,), nothing included."""
    return int(np.bincount(real.astype(np.int64) + 1, minlength=3).argmax()) - 1


def _detection(real: Signs, claimed: Signs) -> Detection:
    right = int(np.count_nonzero((real != 0) & (claimed == real)))
    positives, claims = int(np.count_nonzero(real)), int(np.count_nonzero(claimed))
    return Detection(_ratio(right, claims), _ratio(right, positives), _ratio(2 * right, positives + claims))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
