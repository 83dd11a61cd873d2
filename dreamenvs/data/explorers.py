"""Players that get about without knowing the game: a third of the rows act uniformly, the others have tastes.

Uniformly random actions take each other back and hardly leave where an episode begins; actions that are always held
hardly show what happens when they are reversed. A world model needs both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dreamenvs.data.collect import RandomPolicy

UNIFORM = 1 / 3
"""The share of the time in which a row acts uniformly."""
STEPS = 100
"""For which a row keeps its taste, on average."""
CONCENTRATION = 0.5
"""Of the Dirichlet distribution that tastes for actions are drawn from: low, so that few actions are liked."""
REPEATS = (0.0, 0.5, 0.9)
"""Chances of repeating the last action, one of which belongs to a taste."""


class Tastes(NamedTuple):
    """What an Explorer keeps in mind, for every row."""

    likes: NDArray[np.float64]  # (N, actions) cumulative chances; of continuous actions (N, 0)
    repeats: NDArray[np.float64]  # (N,)
    actions: NDArray[Any]  # (N,) or (N, A), the last ones


class Explorer:
    """Actions by tastes that are drawn anew about every hundred steps; the observation is not looked at."""

    def __init__(self, space: gymnasium.Space[Any], seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._random = RandomPolicy(space, int(self._rng.integers(2**63)))
        self._count = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0

    def predict(
        self,
        observation: NDArray[np.uint8],
        state: Tastes | None = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Tastes]:
        """An action for every row (N, …), deterministic or not."""
        rows = len(observation)
        uniform = self._random.predict(observation)[0]
        if state is None:
            state = Tastes(np.zeros((rows, self._count)), np.zeros(rows), uniform)
            renewed = np.ones(rows, bool)
        else:
            renewed = self._rng.random(rows) < 1 / STEPS
        likes, repeats = self._draw_tastes(rows)
        likes = np.where(renewed[:, None], likes, state.likes)
        repeats = np.where(renewed, repeats, state.repeats)
        actions = uniform
        if self._count:
            actions = (self._rng.random((rows, 1)) >= likes[:, :-1]).sum(1)
        repeated = self._rng.random(rows) < repeats
        actions = np.where(repeated.reshape(-1, *[1] * (actions.ndim - 1)), state.actions, actions)
        return actions, Tastes(likes, repeats, actions)

    def _draw_tastes(self, rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        plain = self._rng.random(rows) < UNIFORM
        repeats = np.where(plain, 0.0, self._rng.choice(REPEATS, rows))
        if not self._count:
            return np.zeros((rows, 0)), repeats
        liked = self._rng.dirichlet(np.full(self._count, CONCENTRATION), rows)
        return np.where(plain[:, None], 1 / self._count, liked).cumsum(1), repeats
