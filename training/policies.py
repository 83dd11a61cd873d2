"""Policies that gather the data of a first world model, before there is an agent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EPSILONS = (0.1, 0.3, 0.6, 1.0)
"""Shares of random moves, one of which is drawn for each episode."""
TOP, BOTTOM = 11, 59  # the rows of the field between its walls
LEFT, RIGHT = 9, 55  # the columns between the paddles
TOLERANCE = 3.0  # rows, about half of what the shortest move covers; the paddle is five high


class PongTracker:
    """Plays Pong by moving the paddle to where the ball will arrive, with bursts of random moves.

    It reads 64 × 64 RGB frames: the ball is white, the own paddle green, the field brown with little blue in it.
    """

    idle, up, down = (0, 1), (2, 4), (3, 5)  # FIRE does nothing during a rally, so each move has two actions

    def __init__(self, epsilons: tuple[float, ...] = EPSILONS, burst: float = 4.0) -> None:
        self.epsilons, self.burst = epsilons, burst
        self.history: list[float] = []
        """The epsilon of every episode so far."""

    def begin(self, rng: np.random.Generator) -> None:
        """Draw the share of random moves of the next episode."""
        self.history.append(float(rng.choice(self.epsilons)))
        self._random_left = self._random_action = 0
        self._ball: tuple[float, float] | None = None
        self._paddle: float | None = None

    def __call__(self, observation: NDArray[np.uint8], rng: np.random.Generator) -> int:
        moves = self._follow(observation)  # also in a burst, for it remembers what it saw
        if self._random_left == 0 and rng.random() < self._burst_chance(self.history[-1]):
            self._random_left = int(rng.geometric(1 / self.burst))
            self._random_action = int(rng.integers(6))
        if self._random_left > 0:
            self._random_left -= 1
            return self._random_action
        return int(rng.choice(moves))

    def _burst_chance(self, epsilon: float) -> float:
        """The chance that a burst starts, such that a share epsilon of all moves is random."""
        return epsilon / (epsilon + self.burst * (1 - epsilon))

    def _follow(self, frame: NDArray[np.uint8]) -> tuple[int, int]:
        ball, paddle = find_ball(frame), find_paddle(frame)
        before, self._ball = self._ball, ball
        paddle_before, self._paddle = self._paddle, paddle
        if ball is None or paddle is None:
            return self.idle
        target = ball[0] if before is None else arrival(before, ball)
        # The paddle glides on for about one step after a move, so compare where it will be.
        speed = paddle - paddle_before if paddle_before is not None else 0.0
        error = target - (paddle + speed)
        if abs(error) < TOLERANCE:
            return self.idle
        return self.up if error < 0 else self.down


def arrival(before: tuple[float, float], ball: tuple[float, float]) -> float:
    """The row where the ball reaches the own paddle, after reflections; its present row if it flies away."""
    rows, columns = ball[0] - before[0], ball[1] - before[1]
    if columns < 0.5 or columns > 12:
        return ball[0]
    height = BOTTOM - TOP - 1
    unfolded = (ball[0] - TOP + rows * (RIGHT + 1 - ball[1]) / columns) % (2 * height)
    return TOP + min(unfolded, 2 * height - unfolded)


def find_ball(frame: NDArray[np.uint8]) -> tuple[float, float] | None:
    """The (row, column) of the ball between the paddles, or None."""
    field = frame[TOP:BOTTOM, LEFT:RIGHT, 2].astype(float) - 17.0
    field[field < 25] = 0.0
    total = field.sum()
    if total == 0:
        return None
    row, column = field.sum(1) @ np.arange(TOP, BOTTOM), field.sum(0) @ np.arange(LEFT, RIGHT)
    return float(row / total), float(column / total)


def find_paddle(frame: NDArray[np.uint8]) -> float | None:
    """The middle row of the own paddle, on the right, or None."""
    columns = frame[TOP:BOTTOM, RIGHT : RIGHT + 4].astype(int)
    rows = (columns[..., 1] > columns[..., 0] + 20).any(1).nonzero()[0]
    return float(rows.mean()) + TOP if len(rows) else None
