from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dreamenvs.data.explorers import Explorer


def play(explorer: Explorer, rows: int, steps: int) -> NDArray[Any]:
    """(T, N, …) actions."""
    state, taken = None, []
    for _ in range(steps):
        actions, state = explorer.predict(np.zeros((rows, 2, 2, 3), np.uint8), state)
        taken.append(actions)
    return np.stack(taken)


def test_a_third_of_the_rows_act_uniformly_and_the_others_have_tastes() -> None:
    space = gymnasium.spaces.Discrete(5)
    taken = play(Explorer(space, seed=0), 600, 30)
    assert set(np.unique(taken)) == set(range(5))
    favourite = np.stack([(taken == action).mean(0) for action in range(5)]).max(0)
    # Uniform rows take their most frequent action in about a third of thirty steps.
    assert 0.2 < (favourite < 0.45).mean() < 0.6
    assert (favourite > 0.8).mean() > 0.05
    repeated = (taken[1:] == taken[:-1]).mean(0)
    assert (repeated > 0.85).mean() > 0.15


def test_tastes_change() -> None:
    taken = play(Explorer(gymnasium.spaces.Discrete(4), seed=1), 200, 600)
    early, late = ((taken[part] == 0).mean(0) for part in (slice(0, 60), slice(540, 600)))
    assert abs(np.corrcoef(early, late)[0, 1]) < 0.3


def test_continuous_actions_are_held() -> None:
    space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    taken = play(Explorer(space, seed=0), 300, 40)
    assert taken.shape == (40, 300, 2)
    assert space.contains(taken[0, 0])
    held = (taken[1:] == taken[:-1]).all(-1).mean(0)
    assert (held > 0.75).mean() > 0.1
    assert (held == 0).mean() > 0.3


def test_the_same_seed_gives_the_same_actions() -> None:
    space = gymnasium.spaces.Discrete(3)
    assert np.array_equal(play(Explorer(space, seed=4), 20, 50), play(Explorer(space, seed=4), 20, 50))
