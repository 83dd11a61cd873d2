"""A policy that swings up and balances the pole of dm_control's cartpole, for data that covers what chance never finds.

It reads the state of the physics, which no dream shows: it gathers data, and is no agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dreamenvs.data.collect import AnyEnv

States = Callable[[], NDArray[np.float64]]
"""Positions and velocities (N, 4) of the present: cart, angle from upright, and how fast each of them changes."""

WEIGHT, INERTIA = 0.1 * 9.81 * 0.5, 0.0344
"""Torque of the lying pole about its joint (N m), and its inertia there (kg m²)."""
PUMP, RETURN, BRAKE = 6.0, 0.3, 0.5
"""How strongly the cart pumps energy into the pole, goes back to the middle, and slows down."""
BALANCE = np.array([0.86, 7.0, 1.06, 1.72])
"""Of cart, angle and their speeds: the linear-quadratic regulator at 50 actions a second with the weights 1, 10, 0.1
and 0.1, and 1 on the action."""
CATCH = 0.8
"""The angle, with a quarter of the speed, up to which the pole is balanced and not pumped."""


class CartpoleSwingup:
    """Pumps the pole up to the energy of standing still upright, then balances it in the middle.

    It does not look at observations but asks `states`, which must be of the same rows at the same time.
    """

    def __init__(self, states: States) -> None:
        self.states = states

    def predict(
        self,
        observation: NDArray[np.uint8],
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[np.float32], None]:
        """Actions (N, 1), deterministic in any case."""
        cart, angle, cart_speed, speed = self.states().T
        angle = (angle + np.pi) % (2 * np.pi) - np.pi
        # The energy that is missing is negative; the cart gives to the pole when it moves against its swing.
        energy = INERTIA * speed**2 / 2 + WEIGHT * (np.cos(angle) - 1)
        pumped = PUMP * energy * speed * np.cos(angle) - RETURN * cart - BRAKE * cart_speed
        balanced = np.stack([cart, angle, cart_speed, speed], axis=1) @ BALANCE
        action = np.where(np.abs(angle) + np.abs(speed) / 4 < CATCH, balanced, pumped)
        return np.clip(action, -1, 1).astype(np.float32)[:, None], None


def states_of(env: AnyEnv) -> States:
    """What reads the state of the physics from an environment, or from every row of a vector environment."""
    if isinstance(env, gymnasium.Env):
        return lambda: np.asarray(env.get_wrapper_attr("physics_state"))[None]
    return lambda: np.stack(env.get_attr("physics_state"))  # type: ignore[attr-defined]
