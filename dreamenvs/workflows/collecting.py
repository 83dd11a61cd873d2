"""Who plays the real environment when data is collected, and how many environments are played at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from dreamenvs.data.collect import AnyEnv, EpsilonPolicy, Policy, RandomPolicy
from dreamenvs.data.explorers import Explorer
from dreamenvs.types import SourceEnv
from dreamenvs.worlds.players.cartpole import CartpoleSwingup, states_of
from dreamenvs.worlds.players.minatar import PLAYERS, MinAtarPlayer
from dreamenvs.worlds.players.pong import BURST, EPSILONS, PongTracker
from dreamenvs.worlds.source import make_source

PolicyName = Literal["random", "persistent", "explorer", "tracker", "swingup"]
HOLD = 16.0
"""Steps for which the persistent policy holds a move, on average: enough to cross MinAtar's field in Freeway, and to
throw the pole of dm_control's cartpole up, where moves that change at every step leave it hanging."""


def default_policy(env_id: str) -> PolicyName:
    """Who plays when nobody is asked for."""
    if env_id.startswith("ALE/Pong-"):
        return "tracker"
    return "persistent" if env_id.startswith("dm_control/") else "random"


def build_policy(
    name: PolicyName,
    env_id: str,
    space: gymnasium.Space[Any],
    seed: int,
    epsilons: tuple[float, ...] = EPSILONS,
    rows: AnyEnv | None = None,
) -> Policy:
    """A policy by its name, for one row or many; `swingup` reads the state of the physics from the `rows`."""
    if name == "random":
        return RandomPolicy(space, seed)
    if name == "persistent":
        return EpsilonPolicy(RandomPolicy(space, seed), space, 1.0, seed + 1, burst=HOLD)
    if name == "explorer":
        return Explorer(space, seed)
    if name == "swingup":
        if rows is None or not env_id.startswith("dm_control/cartpole-"):
            raise ValueError(f"swingup plays dm_control/cartpole only, not {env_id}; use the persistent policy")
        return EpsilonPolicy(CartpoleSwingup(states_of(rows)), space, epsilons, seed + 1, burst=BURST)
    if not env_id.startswith("ALE/Pong-") and env_id not in PLAYERS:
        known = ", ".join(PLAYERS)
        raise ValueError(f"the tracker plays ALE/Pong, {known} only, not {env_id}; use the random policy")
    player: Policy = MinAtarPlayer(env_id) if env_id in PLAYERS else PongTracker(seed)
    return EpsilonPolicy(player, space, epsilons, seed + 1, burst=BURST)


def make_rows(source: SourceEnv, num_envs: int) -> AnyEnv:
    """Several of the same environment; where each has a process of its own, they step at once."""

    def make() -> Any:
        return make_source(source)

    makers: list[Callable[[], Any]] = [make] * num_envs
    if source.preprocessing not in ("atari", "pixels", "crafter", "dmc"):
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    # What draws for MuJoCo has been set up in this process, and must not be copied into another.
    context = "spawn" if source.id.startswith("dm_control/") else None
    return AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, context=context)
