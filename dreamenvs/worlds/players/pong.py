"""A policy that gathers the data of a first world model of Pong, before there is an agent."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

EPSILONS = (0.1, 0.3, 0.6, 1.0)
"""Shares of random moves, one of which is drawn for each episode."""
BURST = 4.0
"""Steps of the same random move, on average."""
TOP, BOTTOM = 11, 59  # the rows of the field between its walls
LEFT, RIGHT = 9, 55  # the columns between the paddles
TOLERANCE = 3.0  # rows, about half of what the shortest move covers; the paddle is five high


class Seen(NamedTuple):
    """What the tracker saw last; NaN where there was nothing."""

    ball: NDArray[np.float64]  # (N, 2), row and column
    paddle: NDArray[np.float64]  # (N,)


class PongTracker:
    """Plays Pong by moving the paddle to where the ball will arrive.

    It reads 64 × 64 RGB frames: the ball is white, the own paddle green, the field brown with little blue in it.
    """

    idle, up, down = (0, 1), (2, 4), (3, 5)  # FIRE does nothing during a rally, so each move has two actions

    def __init__(self, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def predict(
        self,
        observation: NDArray[np.uint8],
        state: Seen | None = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[np.int64], Seen]:
        """Actions (N,); of the two that make a move, one is drawn."""
        seen = Seen(find_ball(observation), find_paddle(observation))
        moves = self._follow(seen, state, episode_start)
        second = 0 if deterministic else self._rng.integers(2, size=len(moves))
        return np.array([self.idle, self.up, self.down])[moves, second], seen

    def _follow(self, seen: Seen, before: Seen | None, begins: Any) -> NDArray[np.int64]:
        """For every row 0 to stay, 1 to go up, 2 to go down."""
        new = np.ones(len(seen.paddle), bool) if before is None else np.zeros(len(seen.paddle), bool)
        if begins is not None:
            new |= np.asarray(begins, bool)
        if before is None:
            before = seen
        known = ~new & ~np.isnan(before.ball[:, 0])
        target = np.where(known, arrival(before.ball, seen.ball), seen.ball[:, 0])
        # The paddle glides on for about one step after a move, so compare where it will be.
        speed = np.where(new | np.isnan(before.paddle), 0.0, seen.paddle - before.paddle)
        error = target - (seen.paddle + speed)
        # NaN, where ball or paddle is out of sight, compares false and stays.
        return np.where(error <= -TOLERANCE, 1, np.where(error >= TOLERANCE, 2, 0))


def arrival(before: NDArray[np.float64], ball: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows (N,) where the balls (N, 2) reach the own paddle, after reflections; the present ones of others."""
    rows, columns = (ball - before).T
    coming = (columns >= 0.5) & (columns <= 12)
    height = BOTTOM - TOP - 1
    travel = rows * (RIGHT + 1 - ball[:, 1]) / np.where(coming, columns, 1.0)
    unfolded = (ball[:, 0] - TOP + travel) % (2 * height)
    return np.where(coming, TOP + np.minimum(unfolded, 2 * height - unfolded), ball[:, 0])


def find_ball(frames: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The rows and columns (N, 2) of the balls between the paddles, NaN where there is none."""
    field = frames[:, TOP:BOTTOM, LEFT:RIGHT, 2].astype(float) - 17.0
    field[field < 25] = 0.0
    total = field.sum((1, 2))
    row, column = field.sum(2) @ np.arange(TOP, BOTTOM), field.sum(1) @ np.arange(LEFT, RIGHT)
    return np.where(total > 0, np.stack([row, column]) / np.maximum(total, 1.0), np.nan).T


def find_paddle(frames: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The middle rows (N,) of the own paddles, on the right, NaN where there is none."""
    columns = frames[:, TOP:BOTTOM, RIGHT : RIGHT + 4].astype(int)
    rows = (columns[..., 1] > columns[..., 0] + 20).any(2)
    count = rows.sum(1)
    return np.where(count > 0, rows @ np.arange(TOP, BOTTOM) / np.maximum(count, 1), np.nan)
