"""Playing episodes: exactly those that should count do, whole and once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from dreamenvs.evaluation.episodes import as_policy, play


class Scripted(gym.Env[NDArray[np.float32], np.int64]):
    """Episodes of given lengths, one after another; it shows (episode, age), and its reward is the episode's number."""

    observation_space = gym.spaces.Box(0, 1000, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, lengths: list[int], truncates: bool = False) -> None:
        self.lengths, self.truncates = lengths, truncates
        self.episode, self.age = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.age = self.episode + 1, 0
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.age += 1
        ended = self.age == self.lengths[(self.episode - 1) % len(self.lengths)]
        return self._look(), float(self.episode), ended and not self.truncates, ended and self.truncates, {}

    def _look(self) -> NDArray[np.float32]:
        return np.array([self.episode, self.age], np.float32)


class Recording:
    """Notes what it is shown, and keeps a count in its state."""

    def __init__(self) -> None:
        self.seen: list[tuple[NDArray[Any], NDArray[np.bool_], Any]] = []

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        self.seen.append((observation, episode_start, state))
        return np.zeros(len(observation), np.int64), (state or 0) + 1


def rows(*scripts: list[int], mode: AutoresetMode = AutoresetMode.NEXT_STEP, truncates: bool = False) -> SyncVectorEnv:
    return SyncVectorEnv([lambda script=script: Scripted(script, truncates) for script in scripts], autoreset_mode=mode)


def test_each_row_plays_its_share_to_the_end() -> None:
    """The second row's long episode would be lost if the first to finish counted."""
    played = play(rows([1, 2, 3], [50, 1, 1]), lambda observations: np.zeros(2, np.int64), 5)
    assert played.lengths.tolist() == [1, 2, 3, 50, 1]
    assert played.returns.tolist() == [1, 4, 9, 50, 2]
    assert not played.truncated.any()
    assert not played.failed.any()


def test_returns_up_to_a_horizon() -> None:
    played = play(rows([2, 9]), "random", 2, horizon=4)
    assert played.returns.tolist() == [2, 18]
    assert played.early_returns.tolist() == [2, 8]


def test_cut_episodes_are_told_apart() -> None:
    assert play(rows([3], truncates=True), "random", 2).truncated.tolist() == [True, True]


def test_the_policy_is_told_where_episodes_start() -> None:
    policy = Recording()
    play(rows([2, 3], [3]), policy, 4)
    for number, (observation, starts, state) in enumerate(policy.seen):
        assert np.array_equal(observation[:, 1] == 0, starts)
        assert state == (number or None)


def test_progress_counts_episodes() -> None:
    told: list[tuple[int, int]] = []
    play(rows([2], [3]), "random", 4, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_what_cannot_be_played_is_said() -> None:
    with pytest.raises(ValueError, match="NEXT_STEP"):
        play(rows([2], mode=AutoresetMode.SAME_STEP), "random", 1)
    with pytest.raises(ValueError, match="1 episodes are fewer than the 2 rows"):
        play(rows([2], [2]), "random", 1)
    with pytest.raises(ValueError, match="'best'"):
        as_policy("best", gym.spaces.Discrete(2), 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not 3"):
        as_policy(3, gym.spaces.Discrete(2), 0)  # type: ignore[arg-type]
