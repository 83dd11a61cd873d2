"""Precision, recall and F1, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dreamenvs.evaluation.detection import Signs, compare_events, majority_sign, reward_signs, smallest_reward


def signs(*values: int) -> Signs:
    return np.array(values, np.int8)


def test_scores_by_hand() -> None:
    real = signs(1, 1, -1, 0, 0, 0, 1, 0)
    imagined = signs(1, 0, 1, 1, 0, 0, 1, 0)  # two right, one wrong sign, one false alarm, one missed
    last = signs(0, 1, 1, -1, 0, 0, 0, 1)  # the event of the step before
    events = compare_events(real, imagined, last, majority=0)
    assert (events.steps, events.positives) == (8, 4)
    assert events.model == pytest.approx((2 / 4, 2 / 4, 2 / 4))
    assert events.copy == pytest.approx((1 / 4, 1 / 4, 1 / 4))
    assert math.isnan(events.majority.precision)
    assert events.majority[1:] == (0.0, 0.0)


def test_an_unbalanced_case() -> None:
    model = compare_events(signs(1, 0, 0, 0), signs(1, 1, 1, 0), signs(0, 1, 0, 0), majority=1).model
    assert model == pytest.approx((1 / 3, 1.0, 0.5))


def test_where_nothing_happens_and_nothing_is_claimed_there_is_no_score() -> None:
    events = compare_events(signs(0, 0), signs(0, 0), signs(0, 0), majority=0)
    assert all(math.isnan(score) for score in events.model)
    alarmed = compare_events(signs(0, 0), signs(1, 0), signs(0, 0), majority=0).model
    assert alarmed.precision == alarmed.f1 == 0.0
    assert math.isnan(alarmed.recall)


def test_a_reward_is_claimed_beyond_half_of_the_smallest() -> None:
    smallest = smallest_reward(np.array([0.0, -0.5, 2.0]))
    assert smallest == 0.5
    rewards = np.array([0.25, 0.26, -0.26, -3.0, 0.0, np.nan])
    assert reward_signs(rewards, smallest).tolist() == [0, 1, -1, -1, 0, 0]
    assert reward_signs(np.array([5.0]), smallest_reward(np.zeros(3))).tolist() == [0]


def test_the_majority_is_the_most_common_sign() -> None:
    assert majority_sign(signs(0, 0, 1)) == 0
    assert majority_sign(signs(1, 1, 0, -1)) == 1
    assert majority_sign(signs(-1, -1, 0)) == -1
