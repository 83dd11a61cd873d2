"""Plays whole episodes in a vector environment, dreamed or real, and counts every one that it should.

Each row plays a fixed number of episodes to their end. The first ones to finish in any row would be the short ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from dreamenvs.data.collect import Policy, RandomPolicy
from dreamenvs.evaluation.results import Progress

PolicyLike = Policy | Callable[[Any], Any] | Literal["random"]


class Played(NamedTuple):
    """Episodes in the order of their rows, and of each row in the order that they were played in."""

    returns: NDArray[np.float64]  # (N,)
    early_returns: NDArray[np.float64]  # (N,) over the first `horizon` steps
    lengths: NDArray[np.int64]  # (N,)
    truncated: NDArray[np.bool_]  # (N,)
    failed: NDArray[np.bool_]  # (N,) ended because the model gave NaN or infinity
    infos: tuple[dict[str, Any], ...]  # (N,) what the environment said with the last step


class Calling:
    """A function from observations to actions as a policy."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """What the function says, deterministic or not."""
        return np.asarray(self.function(observation)), None


def as_policy(policy: PolicyLike, space: gym.Space[Any], seed: int) -> Policy:
    """A policy of anything with `predict`, a function from observations to actions, or `"random"`."""
    if isinstance(policy, str):
        if policy != "random":
            raise ValueError(f"the only policy with a name is 'random', not {policy!r}")
        return RandomPolicy(space, seed)
    if hasattr(policy, "predict"):
        return policy
    if callable(policy):
        return Calling(policy)
    raise TypeError(f"a policy has a method predict, is a function of observations, or is 'random', not {policy!r}")


def play(
    envs: VectorEnv[Any, Any, Any],
    policy: PolicyLike,
    episodes: int,
    *,
    seed: int = 0,
    deterministic: bool = False,
    horizon: int | None = None,
    progress: Progress | None = None,
) -> Played:
    """Play `episodes` episodes, shared out evenly among the rows, in an environment that resets in the next step.

    `seed` is of the environment's rows, of torch, from which Stable-Baselines3 draws, and of random actions.
    """
    if AutoresetMode(envs.metadata["autoreset_mode"]) is not AutoresetMode.NEXT_STEP:
        raise ValueError(
            f"play takes an environment with AutoresetMode.NEXT_STEP, not {envs.metadata['autoreset_mode']}"
        )
    if episodes < envs.num_envs:
        raise ValueError(f"{episodes} episodes are fewer than the {envs.num_envs} rows: take fewer rows")
    player = as_policy(policy, envs.single_action_space, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _play(envs, player, episodes, seed, deterministic, horizon, progress or (lambda done, total: None))


def _play(
    envs: VectorEnv[Any, Any, Any],
    policy: Policy,
    episodes: int,
    seed: int,
    deterministic: bool,
    horizon: int | None,
    progress: Progress,
) -> Played:
    rows = np.arange(envs.num_envs)
    quota = episodes // envs.num_envs + (rows < episodes % envs.num_envs)
    tally = _Tally(quota, horizon)
    observations, _ = envs.reset(seed=seed)
    starts, resetting, state = np.ones(len(rows), bool), np.zeros(len(rows), bool), None
    while tally.missing:
        actions, state = policy.predict(observations, state, starts, deterministic)
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        failed = infos.get("_error", np.zeros(len(rows), bool))
        before = tally.missing
        tally.add(~resetting, rewards, terminated, truncated, failed, infos)
        if tally.missing < before:
            progress(episodes - tally.missing, episodes)
        starts, resetting = resetting, terminated | truncated
    return tally.played()


class _Tally:
    """The episodes that are under way, and those that count."""

    def __init__(self, quota: NDArray[np.int64], horizon: int | None) -> None:
        rows = len(quota)
        self.left = quota.copy()
        self.horizon = np.inf if horizon is None else horizon
        self.total, self.early, self.age = np.zeros(rows), np.zeros(rows), np.zeros(rows, np.int64)
        self.ended: list[list[tuple[float, float, int, bool, bool]]] = [[] for _ in quota]
        self.infos: list[list[dict[str, Any]]] = [[] for _ in quota]

    @property
    def missing(self) -> int:
        return int(self.left.sum())

    def add(
        self, moved: Any, rewards: Any, terminated: Any, truncated: Any, failed: Any, infos: dict[str, Any]
    ) -> None:
        """One step of every row that `moved`; the others were reset instead."""
        self.total += np.where(moved, rewards, 0.0)
        self.early += np.where(moved & (self.age < self.horizon), rewards, 0.0)
        self.age += moved
        for row in np.flatnonzero(moved & (terminated | truncated)):
            if self.left[row]:
                cut = bool(truncated[row] and not terminated[row])
                episode = (self.total[row], self.early[row], int(self.age[row]), cut, bool(failed[row]))
                self.ended[row].append(episode)
                self.infos[row].append(row_info(infos, int(row)))
                self.left[row] -= 1
            self.total[row] = self.early[row] = self.age[row] = 0

    def played(self) -> Played:
        episodes = [episode for row in self.ended for episode in row]
        returns, early, lengths, truncated, failed = (np.array(column) for column in zip(*episodes, strict=True))
        infos = tuple(info for row in self.infos for info in row)
        return Played(returns, early, lengths, truncated, failed, infos)


def row_info(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """What the infos of a vector environment say of one row, as its single environment would."""
    said = {}
    for name, values in infos.items():
        # Gymnasium keeps who said `name` under `_name`.
        if f"_{name}" in infos and infos[f"_{name}"][row]:
            said[name] = row_info(values, row) if isinstance(values, dict) else values[row]
    return said
