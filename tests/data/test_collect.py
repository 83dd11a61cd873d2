from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from dreamenvs.data.collect import collect, random_policy


class Countdown(gymnasium.Env[np.ndarray, Any]):
    """Frame t shows t; the reward is the action; an episode terminates after four steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.time = 0
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.seeds.append(seed)
        self.time = 0
        return self._frame(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        return self._frame(), float(action), self.time == 4, False, {}

    def _frame(self) -> np.ndarray:
        return np.full((2, 2, 3), self.time, np.uint8)


def test_episodes_hold_what_happened_in_its_order() -> None:
    env = Countdown()
    episodes = list(collect(env, lambda observation, rng: int(observation[0, 0, 0]) % 3, 10, seed=7))
    assert [len(episode) for episode in episodes] == [4, 4, 2]
    assert episodes[0].observations[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert episodes[0].actions.tolist() == [0, 1, 2, 0]
    assert episodes[0].rewards.tolist() == [0.0, 1.0, 2.0, 0.0]
    assert episodes[0].terminated.tolist() == [False, False, False, True]
    assert not episodes[0].truncated.any()
    assert env.seeds == [7, None, None]


def test_the_last_episode_is_cut_and_marked_truncated() -> None:
    *_, last = collect(Countdown(), random_policy(gymnasium.spaces.Discrete(3)), 6, seed=0)
    assert last.truncated.tolist() == [False, True]
    assert not last.terminated.any()


def test_an_episode_that_ends_on_the_last_step_is_not_truncated() -> None:
    *_, last = collect(Countdown(), random_policy(gymnasium.spaces.Discrete(3)), 8, seed=0)
    assert last.terminated[-1]
    assert not last.truncated.any()


def test_a_seed_repeats_the_actions() -> None:
    policy = random_policy(gymnasium.spaces.Discrete(3))
    first, second, other = (
        np.concatenate([episode.actions for episode in collect(Countdown(), policy, 40, seed=seed)])
        for seed in (1, 1, 2)
    )
    assert first.tolist() == second.tolist() != other.tolist()


def test_a_policy_with_a_memory_is_told_when_an_episode_begins() -> None:
    class Counting:
        begun = 0

        def begin(self, rng: np.random.Generator) -> None:
            self.begun += 1

        def __call__(self, observation: np.ndarray, rng: np.random.Generator) -> int:
            return self.begun

    episodes = list(collect(Countdown(), Counting(), 8, seed=0))
    assert [episode.actions.tolist() for episode in episodes] == [[1] * 4, [2] * 4]


def test_random_vectors_stay_in_their_bounds() -> None:
    space = gymnasium.spaces.Box(np.array([-1.0, 2.0], np.float32), np.array([1.0, 5.0], np.float32))
    policy, rng = random_policy(space), np.random.default_rng(0)
    actions = np.stack([policy(np.zeros((1, 1, 1), np.uint8), rng) for _ in range(200)])
    assert actions.dtype == np.float32
    assert ((actions >= space.low) & (actions <= space.high)).all()
    np.testing.assert_allclose(actions.mean(0), [0.0, 3.5], atol=0.25)


def test_unbounded_spaces_have_no_random_policy() -> None:
    with pytest.raises(ValueError, match="no uniform"):
        random_policy(gymnasium.spaces.Box(-np.inf, np.inf, (1,)))
