"""Collects real episodes from a Gymnasium environment or vector environment, and the simplest policies to do it with.

What a reader would get wrong: after an episode ends, a vector environment either spends one more call of `step` on the
reset, has reset already, or waits to be reset. Here none of that shows: every recorded step was really taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from dreamenvs.data.episode import Episode

AnyEnv = gymnasium.Env[NDArray[np.uint8], Any] | VectorEnv[NDArray[np.uint8], Any, Any]


class Policy(Protocol):
    """Chooses the actions of N rows, with the signature of Stable-Baselines3, whose models are policies as they are."""

    def predict(
        self,
        observation: NDArray[np.uint8],
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Any]:
        """Actions (N,) or (N, A) for observations (N, H, W, C), and what the policy keeps in mind until the next call.

        `state` is None in the first call; `episode_start` (N,) marks the rows whose memory is to be forgotten.
        """
        ...


class RandomPolicy:
    """Uniformly random actions."""

    def __init__(self, space: gymnasium.Space[Any], seed: int | None = None) -> None:
        bounded = isinstance(space, gymnasium.spaces.Box) and space.is_bounded()
        if not bounded and not isinstance(space, gymnasium.spaces.Discrete):
            raise ValueError(f"no uniform distribution over {space}; Discrete and bounded Box spaces have one")
        self.space = space
        self._rng = np.random.default_rng(seed)

    def predict(
        self,
        observation: NDArray[np.uint8],
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], None]:
        """A random action for every row, deterministic or not."""
        space, rows = self.space, len(observation)
        if isinstance(space, gymnasium.spaces.Discrete):
            return int(space.start) + self._rng.integers(int(space.n), size=rows), None
        box = cast(gymnasium.spaces.Box, space)
        return self._rng.uniform(box.low, box.high, (rows, *box.shape)).astype(np.float32), None


class EpsilonState(NamedTuple):
    """What an EpsilonPolicy keeps in mind, for every row."""

    inner: Any
    epsilon: NDArray[np.float64]  # (N,), of the present episode
    left: NDArray[np.int64]  # (N,), how often the random action comes yet
    actions: NDArray[Any]  # (N, …), the random actions


class EpsilonPolicy:
    """Another policy with a share `epsilon` of random actions, each held for `burst` steps on average.

    `epsilon` is a number, an array with one for each row, or a tuple from which one is drawn for each episode.
    """

    def __init__(
        self,
        policy: Policy,
        space: gymnasium.Space[Any],
        epsilon: float | tuple[float, ...] | NDArray[np.float64],
        seed: int | None = None,
        *,
        burst: float = 1.0,
    ) -> None:
        choices = np.atleast_1d(np.asarray(epsilon, np.float64))
        if not len(choices) or not ((choices >= 0) & (choices <= 1)).all():
            raise ValueError(f"epsilon is a share from 0 to 1, not {epsilon}")
        if not burst >= 1:
            raise ValueError(f"a burst lasts at least one step, not {burst}")
        self.policy, self.burst = policy, burst
        self._epsilons, self._drawn = choices, isinstance(epsilon, tuple)
        self._rng = np.random.default_rng(seed)
        self._random = RandomPolicy(space, int(self._rng.integers(2**63)))

    def predict(
        self,
        observation: NDArray[np.uint8],
        state: EpsilonState | None = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], EpsilonState]:
        """The other policy's actions, some of them replaced; it is asked in a burst too, for it may remember."""
        rows = len(observation)
        begins = np.zeros(rows, bool) if episode_start is None else np.asarray(episode_start, bool)
        inner = None if state is None else state.inner
        actions, inner = self.policy.predict(observation, inner, episode_start, deterministic)
        actions = np.array(actions)
        if state is None:
            begins = np.ones(rows, bool)
            state = EpsilonState(inner, np.zeros(rows), np.zeros(rows, np.int64), np.zeros_like(actions))
        epsilon = np.where(begins, self._draw_epsilons(rows), state.epsilon)
        left = np.where(begins, 0, state.left)
        # The chance that a burst starts, such that a share epsilon of all steps is random.
        chance = epsilon / (epsilon + self.burst * (1 - epsilon))
        starts = (left == 0) & (self._rng.random(rows) < chance)
        left = np.where(starts, self._rng.geometric(1 / self.burst, rows), left)
        held = state.actions.copy()
        held[starts] = self._random.predict(observation)[0][starts]
        replaced = left > 0
        actions[replaced] = held[replaced]
        # A policy that watches what comes of its actions must know which were really taken.
        took = getattr(self.policy, "took", None)
        if took is not None:
            inner = took(inner, actions)
        return actions, EpsilonState(inner, epsilon, left - replaced, held)

    def _draw_epsilons(self, rows: int) -> NDArray[np.float64]:
        if self._drawn:
            return self._rng.choice(self._epsilons, rows)
        if len(self._epsilons) not in (1, rows):
            raise ValueError(f"there are {len(self._epsilons)} epsilons for {rows} rows")
        return np.broadcast_to(self._epsilons, rows)


def collect(env: AnyEnv, policy: Policy, steps: int, seed: int | None = None) -> Iterator[Episode]:
    """Episodes of `steps` steps altogether, as they end; those that are not over then are cut and marked truncated.

    `seed` is of the environment, whose rows begin with seed, seed + 1, …; a policy has its own. The environment stays
    open.
    """
    rows = _OneRow(env) if isinstance(env, gymnasium.Env) else _ManyRows(env)
    check_spaces(rows.observation_space, rows.action_space)
    dtype = np.int64 if isinstance(rows.action_space, gymnasium.spaces.Discrete) else np.float32
    observations = rows.reset(seed)
    begins = np.ones(len(observations), bool)
    tracks = [_Track(observation, dtype) for observation in observations]
    state: Any = None
    while steps > 0:
        actions, state = policy.predict(observations, state, begins)
        if isinstance(rows.action_space, gymnasium.spaces.Box):
            # A policy that scales its actions to the bounds may miss them by a rounding; what is kept was taken so.
            actions = np.clip(np.asarray(actions, np.float32), rows.action_space.low, rows.action_space.high)
        moved = rows.step(np.asarray(actions))
        # In the last call more rows may have moved than are asked for.
        taken = moved.real.nonzero()[0][:steps]
        steps -= len(taken)
        for row in taken.tolist():
            tracks[row].add(moved, row, actions[row])
            if moved.terminated[row] or moved.truncated[row]:
                yield tracks[row].episode()
                tracks[row] = _Track(None, dtype)
        if steps == 0:
            break  # before a row that moved but was not taken loses its track
        observations, begins = moved.observations, moved.begins
        for row in begins.nonzero()[0].tolist():
            tracks[row] = _Track(observations[row], dtype)
    yield from (track.episode(cut=True) for track in tracks if track.actions)


def check_spaces(observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> None:
    """Refuse what an `Episode` cannot hold."""
    images = isinstance(observations, gymnasium.spaces.Box) and len(observations.shape) == 3
    if not images or observations.dtype != np.uint8:
        raise ValueError(f"observations must be H × W × C uint8 images, not {observations}; wrap the environment")
    discrete = isinstance(actions, gymnasium.spaces.Discrete) and actions.start == 0
    if not discrete and not (isinstance(actions, gymnasium.spaces.Box) and len(actions.shape) == 1):
        raise ValueError(
            f"actions must be Discrete from 0 or a one-dimensional Box, not {actions}; wrap the environment"
        )


class _Moved(NamedTuple):
    """What a step did to every row."""

    real: NDArray[np.bool_]  # (N,), False where the call was spent on a reset
    results: NDArray[np.uint8]  # (N, H, W, C), what followed the action, also at the end of an episode
    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    observations: NDArray[np.uint8]  # (N, H, W, C), what the next action answers
    begins: NDArray[np.bool_]  # (N,), where that is the first of an episode


class _OneRow:
    """A single environment as one row."""

    def __init__(self, env: gymnasium.Env[NDArray[np.uint8], Any]) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, seed: int | None) -> NDArray[np.uint8]:
        return np.array(self.env.reset(seed=seed)[0])[None]

    def step(self, actions: NDArray[Any]) -> _Moved:
        result, reward, terminated, truncated, _ = self.env.step(actions[0])
        results = np.array(result)[None]
        over = bool(terminated or truncated)
        observations = self.reset(None) if over else results
        flags = np.array([[True], [terminated], [truncated], [over]], bool)
        return _Moved(flags[0], results, np.array([float(reward)]), flags[1], flags[2], observations, flags[3])


class _ManyRows:
    """A vector environment in any autoreset mode."""

    def __init__(self, env: VectorEnv[NDArray[np.uint8], Any, Any]) -> None:
        if "autoreset_mode" not in env.metadata:
            raise ValueError(
                f"{env} does not say how it resets; set its metadata['autoreset_mode'] to an AutoresetMode"
            )
        self.env, self.mode = env, AutoresetMode(env.metadata["autoreset_mode"])
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self._over = np.zeros(env.num_envs, bool)

    def reset(self, seed: int | None) -> NDArray[np.uint8]:
        self._over[:] = False
        return np.array(self.env.reset(seed=seed)[0])

    def step(self, actions: NDArray[Any]) -> _Moved:
        stepped, rewards, terminated, truncated, infos = self.env.step(actions)
        results = observations = np.array(stepped)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        over = terminated | truncated
        if self.mode == AutoresetMode.NEXT_STEP:
            begins, self._over = self._over, over
            return _Moved(~begins, results, np.array(rewards), terminated, truncated, observations, begins)
        if over.any() and self.mode == AutoresetMode.SAME_STEP:
            results = observations.copy()
            results[over] = np.stack(list(infos["final_obs"][over]))
        elif over.any():
            observations = np.array(self.env.reset(options={"reset_mask": over})[0])
        real = np.ones_like(over)
        return _Moved(real, results, np.array(rewards), terminated, truncated, observations, over)


class _Track:
    """An episode that is going on."""

    def __init__(self, first: NDArray[np.uint8] | None, dtype: type[np.generic]) -> None:
        self.dtype = dtype
        self.observations = [] if first is None else [first.copy()]
        self.actions: list[Any] = []
        self.rewards: list[float] = []
        self.ends = (False, False)

    def add(self, moved: _Moved, row: int, action: Any) -> None:
        self.observations.append(moved.results[row].copy())
        self.actions.append(action)
        self.rewards.append(float(moved.rewards[row]))
        self.ends = bool(moved.terminated[row]), bool(moved.truncated[row])

    def episode(self, *, cut: bool = False) -> Episode:
        flags = np.zeros((2, len(self.actions)), bool)
        flags[:, -1] = self.ends[0], self.ends[1] or cut
        return Episode(
            observations=np.stack(self.observations),
            actions=np.asarray(self.actions, self.dtype),
            rewards=np.asarray(self.rewards, np.float32),
            terminated=flags[0],
            truncated=flags[1],
        )
