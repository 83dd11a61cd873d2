"""Scripted players of MinAtar games, for data in which something happens. They read the drawn field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dreamenvs.worlds.minatar import colours

SIDE = 10
"""Cells of the field."""
CHANNELS = 4
PADDLE, BALL, TRAIL = 1, 2, 3
"""Of Breakout, the places of their colours; 0 is an empty cell."""
BRICKS = 3
"""The row in which a ball that rises is thrown back, while there are bricks."""
STAY, LEFT, RIGHT = 0, 1, 2
UP = 1


def follow_ball(observation: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Breakout: the paddle goes to where the ball will come down, once the bricks have thrown it back."""
    field, paint = cells(observation), colours(CHANNELS)
    (trail_row, trail), (_, paddle) = find(field, paint[TRAIL]), find(field, paint[PADDLE])
    ball_row, ball = find(field, paint[BALL], otherwise=(trail_row, trail))
    steps = np.where(ball_row < trail_row, ball_row + SIDE - 1 - 2 * BRICKS, SIDE - 1 - ball_row)
    target = mirrored(ball + (ball - trail) * steps)
    return np.where(target < paddle, LEFT, np.where(target > paddle, RIGHT, STAY))


def go_up(observation: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Freeway."""
    return np.full(len(observation), UP)


PLAYERS: Mapping[str, Callable[[NDArray[np.uint8]], NDArray[np.int64]]] = {
    "MinAtar/Breakout-v1": follow_ball,
    "MinAtar/Freeway-v1": go_up,
}
"""Actions (N,) for drawn fields (N, H, W, 3)."""


class MinAtarPlayer:
    """The player of a game, as a policy."""

    def __init__(self, env_id: str) -> None:
        self.choose = PLAYERS[env_id]

    def predict(
        self, observation: NDArray[np.uint8], state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[NDArray[np.int64], None]:
        """Actions (N,), deterministic in any case."""
        return self.choose(observation), None


def cells(observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The colours (N, 10, 10, 3) of drawn fields (N, H, W, 3)."""
    if observation.shape[-1] != 3:
        raise SystemExit("the tracker of MinAtar reads colours; leave out --drawing channels")
    scale = observation.shape[1] // SIDE
    return observation[:, ::scale, ::scale]


def find(
    field: NDArray[np.uint8], colour: NDArray[np.uint8], otherwise: tuple[Any, Any] = (SIDE - 1, SIDE // 2)
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns (N,) of the first cell of a colour, where there is one: a ball may lie below its own trail."""
    there = (field == colour).all(-1).reshape(len(field), -1)
    rows, columns = np.divmod(there.argmax(1), SIDE)
    return np.where(there.any(1), rows, otherwise[0]), np.where(there.any(1), columns, otherwise[1])


def mirrored(column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where a ball is that would be in a column beyond the walls."""
    turned = np.abs(column) % (2 * SIDE)
    return np.where(turned < SIDE, turned, 2 * SIDE - 1 - turned)
