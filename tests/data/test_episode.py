from __future__ import annotations

import numpy as np
import pytest

from dreamenvs.data.episode import Episode


def blank(steps: int) -> Episode:
    return Episode(
        observations=np.zeros((steps + 1, 4, 4, 3), np.uint8),
        actions=np.zeros(steps, np.int64),
        rewards=np.arange(steps, dtype=np.float32),
        terminated=np.arange(steps) == steps - 1,
        truncated=np.zeros(steps, bool),
    )


def test_length_and_return() -> None:
    assert len(blank(4)) == 4
    assert blank(4).total_reward == 6.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.zeros((3, 4, 4, 3), np.uint8)}, "3 actions need 4 images"),
        ({"rewards": np.zeros(2, np.float32)}, "rewards must have"),
        ({"rewards": np.zeros(3)}, "float64"),
        ({"actions": np.zeros(3, np.float32)}, "1-d float32"),
        ({"terminated": np.array([True, False, False])}, "ends with its last step"),
    ],
)
def test_an_episode_that_does_not_fit_together_is_refused(change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Episode(**{**vars(blank(3)), **change})
