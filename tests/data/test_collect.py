from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamenvs.data.collect import EpsilonPolicy, RandomPolicy, collect
from dreamenvs.data.episode import Episode

THREE = gymnasium.spaces.Discrete(3)


class Countdown(gymnasium.Env[np.ndarray, Any]):
    """Frame t shows the episode's number and t; the reward is the action plus t; an episode lasts `limit` steps."""

    def __init__(self, limit: int = 4, *, truncates: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8)
        self.action_space = THREE
        self.limit, self.truncates = limit, truncates
        self.time, self.game = 0, -1
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.seeds.append(seed)
        self.time, self.game = 0, self.game + 1
        return self._frame(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.time < self.limit, "stepped after the end"
        self.time += 1
        over = self.time == self.limit
        return self._frame(), float(action) + 10 * self.time, over and not self.truncates, over and self.truncates, {}

    def _frame(self) -> np.ndarray:
        frame = np.full((2, 2, 3), self.time, np.uint8)
        frame[0, 0, 1], frame[0, 0, 2] = self.game, self.limit
        return frame


class Reading:
    """Its action is the time that it reads from the frame, modulo 3; remembers what it was asked."""

    def __init__(self) -> None:
        self.starts: list[list[bool]] = []
        self.states: list[Any] = []

    def predict(
        self, observation: np.ndarray, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        assert observation.ndim == 4
        assert observation.dtype == np.uint8
        self.starts.append(episode_start.tolist())
        self.states.append(state)
        return observation[:, 0, 0, 0].astype(np.int64) % 3, len(self.states)


class Pushed(Countdown):
    """The same with continuous actions, which it remembers; it takes none beyond its bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Box(np.float32([-1, 0]), np.float32([1, 0.5]))
        self.taken: list[np.ndarray] = []

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.taken.append(action)
        return super().step(0)


class Beyond:
    """Always somewhat beyond the upper bounds, in float64."""

    def predict(
        self, observation: np.ndarray, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        return np.tile([1.0 + 1e-7, 0.6], (len(observation), 1)), None


def test_continuous_actions_are_kept_as_they_were_taken() -> None:
    env = Pushed()
    for policy in (Beyond(), RandomPolicy(env.action_space, 0)):
        env.taken.clear()
        episodes = list(collect(env, policy, 8, seed=0))
        actions = np.concatenate([episode.actions for episode in episodes])
        assert actions.dtype == np.float32
        np.testing.assert_array_equal(actions, np.stack(env.taken))
    np.testing.assert_array_equal(next(collect(env, Beyond(), 2, seed=0)).actions, np.float32([[1, 0.5]] * 2))


def check_consistent(episode: Episode, *, cut: bool) -> None:
    """That the episode is one game from its start, with every step in its place."""
    steps = len(episode)
    assert episode.observations[:, 0, 0, 0].tolist() == list(range(steps + 1))
    assert len(set(episode.observations[:, 0, 0, 1].tolist())) == 1
    assert episode.actions.tolist() == [time % 3 for time in range(steps)]
    assert episode.rewards.tolist() == [time % 3 + 10.0 * (time + 1) for time in range(steps)]
    assert bool(episode.truncated[-1]) == cut
    assert bool(episode.terminated[-1]) != cut


def test_episodes_hold_what_happened_in_its_order() -> None:
    env, policy = Countdown(), Reading()
    episodes = list(collect(env, policy, 10, seed=7))
    assert [len(episode) for episode in episodes] == [4, 4, 2]
    for episode, cut in zip(episodes, (False, False, True), strict=True):
        check_consistent(episode, cut=cut)
    assert [episode.observations[0, 0, 0, 1] for episode in episodes] == [0, 1, 2]
    assert env.seeds == [7, None, None]
    assert policy.starts == [[index % 4 == 0] for index in range(10)]
    assert policy.states == [None, *range(1, 10)]


def test_an_episode_that_ends_on_the_last_step_is_not_truncated() -> None:
    *_, last = collect(Countdown(), Reading(), 8, seed=0)
    check_consistent(last, cut=False)


def test_a_truncation_of_the_environment_is_kept() -> None:
    first, _ = collect(Countdown(truncates=True), Reading(), 6)
    assert len(first) == 4
    assert first.truncated.tolist() == [False, False, False, True]
    assert not first.terminated.any()


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("steps", [1, 5, 40, 41, 42, 43])
def test_rows_of_a_vector_env_lose_and_invent_nothing(mode: AutoresetMode, steps: int) -> None:
    limits = (4, 1, 7)
    env = SyncVectorEnv([lambda limit=limit: Countdown(limit) for limit in limits], autoreset_mode=mode)
    policy = Reading()
    episodes = list(collect(env, policy, steps, seed=5))
    assert sum(map(len, episodes)) == steps
    assert [single.seeds[0] for single in env.envs] == [5, 6, 7]
    games: dict[int, list[int]] = {limit: [] for limit in limits}
    for episode in episodes:
        limit = int(episode.observations[0, 0, 0, 2])
        check_consistent(episode, cut=len(episode) < limit)
        games[limit].append(int(episode.observations[0, 0, 0, 1]))
    # Every game of every row from the first on, and at most one of each row was cut.
    assert all(numbers == list(range(len(numbers))) for numbers in games.values())
    assert sum(bool(episode.truncated[-1]) for episode in episodes) <= 3
    assert policy.starts[0] == [True] * 3
    env.close()


def test_a_vector_env_that_does_not_say_how_it_resets_is_refused() -> None:
    env = SyncVectorEnv([Countdown])
    env.metadata = {}
    with pytest.raises(ValueError, match="autoreset_mode"):
        next(collect(env, Reading(), 3))


def test_spaces_that_no_episode_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="H × W × C uint8 images"):
        next(collect(gymnasium.make("CartPole-v1"), Reading(), 3))
    env = Countdown()
    env.action_space = gymnasium.spaces.Discrete(3, start=1)
    with pytest.raises(ValueError, match="Discrete from 0"):
        next(collect(env, Reading(), 3))


def test_a_seed_repeats_the_actions() -> None:
    first, second, other = (
        np.concatenate([episode.actions for episode in collect(Countdown(), RandomPolicy(THREE, seed), 40, seed=0)])
        for seed in (1, 1, 2)
    )
    assert first.tolist() == second.tolist() != other.tolist()


def test_random_vectors_stay_in_their_bounds() -> None:
    space = gymnasium.spaces.Box(np.array([-1.0, 2.0], np.float32), np.array([1.0, 5.0], np.float32))
    actions, _ = RandomPolicy(space, 0).predict(np.zeros((400, 1, 1, 1), np.uint8))
    assert actions.dtype == np.float32
    assert ((actions >= space.low) & (actions <= space.high)).all()
    np.testing.assert_allclose(actions.mean(0), [0.0, 3.5], atol=0.25)


def test_unbounded_spaces_have_no_random_policy() -> None:
    with pytest.raises(ValueError, match="no uniform"):
        RandomPolicy(gymnasium.spaces.Box(-np.inf, np.inf, (1,)))


class Still:
    """Always takes action 0; its state counts the calls."""

    def predict(
        self, observation: np.ndarray, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, int]:
        return np.zeros(len(observation), np.int64), (state or 0) + 1


def played(policy: EpsilonPolicy, rows: int, calls: int, every: int = 10**9) -> np.ndarray:
    """The actions (calls, rows) of a policy whose episodes last `every` calls."""
    state, actions = None, []
    frames = np.zeros((rows, 1, 1, 1), np.uint8)
    for call in range(calls):
        action, state = policy.predict(frames, state, np.full(rows, call % every == 0))
        actions.append(action)
    assert state is not None
    assert state.inner == calls
    return np.stack(actions)


LARGE = gymnasium.spaces.Discrete(1000)


def test_a_share_epsilon_of_the_actions_is_random() -> None:
    for burst in (1.0, 4.0):
        actions = played(EpsilonPolicy(Still(), LARGE, 0.3, 0, burst=burst), 50, 400)
        assert (actions != 0).mean() == pytest.approx(0.3, abs=0.02)
        # Each random action is held for `burst` steps on average.
        changes = (np.diff(actions, axis=0) != 0) & (actions[1:] != 0)
        assert (actions[1:] != 0).sum() / changes.sum() == pytest.approx(burst, rel=0.05)


def test_epsilon_for_each_row() -> None:
    actions = played(EpsilonPolicy(Still(), LARGE, np.array([0.0, 0.5, 1.0]), 0), 3, 2000)
    np.testing.assert_allclose((actions != 0).mean(0), [0.0, 0.5, 1.0], atol=0.04)
    with pytest.raises(ValueError, match="2 epsilons for 3 rows"):
        played(EpsilonPolicy(Still(), LARGE, np.array([0.0, 0.5]), 0), 3, 1)


def test_epsilon_is_drawn_for_each_episode() -> None:
    actions = played(EpsilonPolicy(Still(), LARGE, (0.0, 1.0), 0), 40, 50, every=10)
    episodes = (actions != 0).reshape(5, 10, 40).mean(1)
    # A random action is 0 once in a thousand.
    assert ((episodes == 0) | (episodes > 0.85)).all()
    assert 0.3 < (episodes > 0.5).mean() < 0.7
    assert len({tuple(row) for row in (episodes > 0.5).tolist()}) > 1


def test_epsilon_with_vectors_of_actions() -> None:
    space = gymnasium.spaces.Box(-1, 1, (2,))

    class Zero:
        def predict(self, observation: np.ndarray, *rest: Any) -> tuple[np.ndarray, None]:
            return np.zeros((len(observation), 2), np.float32), None

    actions, _ = EpsilonPolicy(Zero(), space, 0.5, 0).predict(np.zeros((1000, 1, 1, 1), np.uint8))
    assert actions.dtype == np.float32
    assert (actions != 0).all(1).mean() == pytest.approx(0.5, abs=0.05)
    assert ((actions != 0).all(1) == (actions != 0).any(1)).all()


def test_shares_and_bursts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="share from 0 to 1"):
        EpsilonPolicy(Still(), THREE, (0.5, 1.5))
    with pytest.raises(ValueError, match="at least one step"):
        EpsilonPolicy(Still(), THREE, 0.5, burst=0.5)


def test_a_model_of_stable_baselines3_is_a_policy_as_it_is() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    env = gymnasium.wrappers.TransformObservation(
        Countdown(9), lambda frame: np.tile(frame, (18, 18, 1)), gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    )
    model = sb3.PPO("CnnPolicy", env, n_steps=8, batch_size=8, seed=0)
    episodes = list(collect(env, model, 20, seed=0))
    assert [len(episode) for episode in episodes] == [9, 9, 2]
    assert episodes[0].actions.dtype == np.int64
    assert len(set(episodes[0].actions.tolist() + episodes[1].actions.tolist())) > 1
