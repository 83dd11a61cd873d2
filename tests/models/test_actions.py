from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from dreamenvs.models.actions import (
    ActionEncoder,
    action_space,
    check_actions,
    from_space,
    sample_actions,
    zero_actions,
)
from dreamenvs.types import ContinuousActions, DiscreteActions

FOUR = DiscreteActions(count=4)
ARM = ContinuousActions(low=(-2.0, 0.0), high=(2.0, 1.0))


def test_discrete_actions_are_encoded_one_hot() -> None:
    encoder = ActionEncoder(FOUR)
    assert encoder.width == 4
    encoded = encoder.encode(torch.tensor([[2, 0]]))
    assert encoded.dtype == torch.float32
    assert encoded.tolist() == [[[0, 0, 1, 0], [1, 0, 0, 0]]]


def test_continuous_actions_are_scaled_to_one() -> None:
    encoder = ActionEncoder(ARM)
    assert encoder.width == 2
    encoded = encoder(torch.tensor([[-2.0, 0.0], [0.0, 0.5], [2.0, 1.0], [1.0, 0.25]]))
    assert encoded.tolist() == [[-1, -1], [0, 0], [1, 1], [0.5, -0.5]]
    assert not encoder.state_dict()


@pytest.mark.parametrize(
    "given",
    [
        np.array([0, 3, 1]),
        np.array([0, 3, 1], np.uint8),
        torch.tensor([0, 3, 1]),
        torch.tensor([0, 3, 1], dtype=torch.int32),
        [0, 3, 1],
        (np.int64(0), 3, 1),
    ],
)
def test_discrete_actions_of_every_make(given: Any) -> None:
    checked = check_actions(FOUR, given, 3)
    assert checked.dtype == torch.int64
    assert checked.tolist() == [0, 3, 1]


@pytest.mark.parametrize("make", [np.float32, np.float64, torch.float32, torch.float64])
def test_continuous_actions_of_every_make(make: Any) -> None:
    given = [[-2.0, 1.0], [0.5, 0.0]]
    actions = torch.tensor(given, dtype=make) if isinstance(make, torch.dtype) else np.array(given, make)
    checked = check_actions(ARM, actions, 2)
    assert checked.dtype == torch.float32
    assert checked.tolist() == given


def test_bounds_that_float32_rounds_are_inside() -> None:
    kind = ContinuousActions(low=(-0.1,), high=(0.1,))
    space = action_space(kind)
    for bound in (space.low, space.high, np.array([-0.1]), np.array([0.1])):  # type: ignore[attr-defined]
        check_actions(kind, bound[None], 1)


def test_what_scaling_to_the_bounds_rounds_is_put_on_them() -> None:
    """As Stable-Baselines3 does it, low + (high - low) can be the next number after high."""
    low, high = np.float32(-0.6), np.float32(0.8)
    beyond = low + np.float32(0.5) * np.float32(2) * (high - low)
    kind = ContinuousActions(low=(float(low),), high=(float(high),))
    assert beyond > high
    assert check_actions(kind, np.array([[beyond]]), 1).item() == high
    assert check_actions(kind, np.array([[low - 1e-7]]), 1).item() == low
    with pytest.raises(ValueError, match=r"action 0.80001 of row 0, dimension 0, is not in \[-0.6, 0.8\]"):
        check_actions(kind, np.array([[0.80001]]), 1)


@pytest.mark.parametrize(
    ("kind", "given", "error", "message"),
    [
        (FOUR, np.array([0, 4, 1]), ValueError, "action 4 of row 1 is not one of 0 to 3"),
        (FOUR, torch.tensor([0, 1, -1]), ValueError, "action -1 of row 2 is not one of 0 to 3"),
        (FOUR, np.array([0, 1]), ValueError, r"shape \(3,\), one per row, not \(2,\)"),
        (FOUR, np.array([[0, 1, 1]]), ValueError, r"shape \(3,\), one per row, not \(1, 3\)"),
        (FOUR, 2, ValueError, r"shape \(3,\), one per row, not \(\)"),
        (FOUR, np.array([0.0, 1.0, 2.0]), TypeError, "must be integers, not float64"),
        (FOUR, np.array([True, False, True]), TypeError, "must be integers, not bool"),
        (FOUR, torch.tensor([True, False, True]), TypeError, r"must be integers, not torch\.bool"),
        (FOUR, ["up", "up", "up"], TypeError, "must be integers, not <U2"),
        (FOUR, None, TypeError, "must be integers, not object"),
        (ARM, np.zeros((3, 1)), ValueError, r"shape \(3, 2\), one per row, not \(3, 1\)"),
        (ARM, np.zeros((3, 2), np.int64), TypeError, "must be floats, not int64"),
        (
            ARM,
            np.array([[0, 0], [0, 0], [0, 1.5]]),
            ValueError,
            r"action 1.5 of row 2, dimension 1, is not in \[0, 1\]",
        ),
        (
            ARM,
            np.array([[0, 0], [np.nan, 0], [0, 1]]),
            ValueError,
            r"action nan of row 1, dimension 0, is not in \[-2, 2\]",
        ),
        (ARM, torch.tensor([[-torch.inf, 0.0]] * 3), ValueError, "action -inf of row 0, dimension 0"),
    ],
)
def test_wrong_actions_are_named(kind: Any, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_actions(kind, given, 3)


def test_a_checked_array_is_a_copy_even_of_read_only_memory() -> None:
    array = np.array([1, 2])
    array.setflags(write=False)
    checked = check_actions(FOUR, array, 2)
    checked[0] = 3
    assert array.tolist() == [1, 2]


@pytest.mark.parametrize("kind", [FOUR, ARM])
def test_spaces_there_and_back(kind: DiscreteActions | ContinuousActions) -> None:
    space = action_space(kind)
    assert from_space(space) == kind
    space.seed(0)
    check_actions(kind, np.stack([space.sample() for _ in range(20)]), 20)


def test_spaces_have_gymnasiums_types() -> None:
    assert action_space(FOUR) == spaces.Discrete(4)
    box = action_space(ARM)
    assert box == spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32), dtype=np.float32)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=1),
        spaces.MultiDiscrete([2, 2]),
        spaces.Box(0, 1, (2, 2)),
        spaces.Box(0, 4, (2,), np.int64),
        spaces.Box(-np.inf, np.inf, (2,)),
    ],
)
def test_other_spaces_are_refused(space: Space[Any]) -> None:
    with pytest.raises(ValueError, match=r"need a Discrete action space|finite bounds"):
        from_space(space)


@pytest.mark.parametrize("kind", [FOUR, ARM])
def test_zero_and_random_actions_are_allowed(kind: DiscreteActions | ContinuousActions) -> None:
    assert not ActionEncoder(ARM)(zero_actions(ARM, 3)).any()
    assert check_actions(kind, zero_actions(kind, 3), 3).tolist() == zero_actions(kind, 3).tolist()
    drawn = [sample_actions(kind, 500, torch.Generator().manual_seed(0)) for _ in range(2)]
    assert torch.equal(*drawn)
    check_actions(kind, drawn[0], 500)
    assert len(drawn[0].unique()) >= 4
