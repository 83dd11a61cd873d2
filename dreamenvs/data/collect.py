"""Collects real episodes from a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dreamenvs.data.episode import Episode


class Policy(Protocol):
    """Chooses actions; `rng` is its only source of randomness."""

    def __call__(self, observation: NDArray[np.uint8], rng: np.random.Generator) -> Any: ...


def random_policy(space: gymnasium.Space[Any]) -> Policy:
    """Uniformly random actions."""
    if isinstance(space, gymnasium.spaces.Discrete):
        low, count = int(space.start), int(space.n)
        return lambda observation, rng: low + int(rng.integers(count))
    if isinstance(space, gymnasium.spaces.Box) and space.is_bounded():
        return lambda observation, rng: rng.uniform(space.low, space.high).astype(np.float32)
    raise ValueError(f"no uniform distribution over {space}")


def collect(
    env: gymnasium.Env[NDArray[np.uint8], Any], policy: Policy, steps: int, seed: int | None = None
) -> Iterator[Episode]:
    """Episodes of `steps` steps altogether; the one that reaches the number is cut there, and marked truncated.

    The policy is called once for each observation but the last of an episode. One that keeps something in mind from
    step to step can have a method `begin(rng)`, which is called before each episode.
    """
    rng = np.random.default_rng(seed)
    begin = getattr(policy, "begin", None)
    while steps > 0:
        if begin is not None:
            begin(rng)
        episode = _collect_one(env, policy, steps, rng, seed)
        seed = None
        steps -= len(episode)
        yield episode


def _collect_one(
    env: gymnasium.Env[NDArray[np.uint8], Any], policy: Policy, limit: int, rng: np.random.Generator, seed: int | None
) -> Episode:
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards = [observation], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = policy(observation, rng)
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))
        truncated = truncated or (len(actions) == limit and not terminated)
    ends = np.zeros((2, len(actions)), bool)
    ends[:, -1] = terminated, truncated
    return Episode(
        observations=np.stack(observations),
        actions=np.asarray(
            actions, np.int64 if isinstance(env.action_space, gymnasium.spaces.Discrete) else np.float32
        ),
        rewards=np.asarray(rewards, np.float32),
        terminated=ends[0],
        truncated=ends[1],
    )
