"""A world model that watches many rows sees in each what it would see alone."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

import dreamenvs
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.dream import padded_rows
from dreamenvs.envs.vector import DreamVectorEnv
from dreamenvs.types import Segment
from dreamenvs.worlds.watching import Watcher, WatchingPolicy
from tests.small import CONFIGS
from tests.toy_worlds import Count, CountingWorld
from tests.worlds.test_real import checkpoint

ROWS, STEPS = 5, 30


class Script:
    """Plays given actions (T, N), and notes what it is shown."""

    def __init__(self, actions: NDArray[np.int64]) -> None:
        self.actions = actions
        self.views: list[NDArray[Any]] = []

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        self.views.append(observation)
        return self.actions[state or 0], (state or 0) + 1


def random_actions(rows: int = ROWS, steps: int = STEPS) -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, 3, (steps, rows))


def alone(world: Checkpoint, obs_type: Any, seed: int, actions: NDArray[np.int64]) -> list[NDArray[Any]]:
    """What a single environment shows; a step after an end is spent on the reset."""
    env = dreamenvs.make_real(world, obs_type=obs_type)
    views, over = [env.reset(seed=seed)[0]], False
    for action in actions:
        if over:
            views.append(env.reset()[0])
            over = False
        else:
            view, _, terminated, truncated, _ = env.step(action)
            views.append(view)
            over = terminated or truncated
    return views


@pytest.mark.parametrize("family", list(CONFIGS))
def test_a_watching_policy_sees_what_single_environments_show(family: str) -> None:
    world, actions = checkpoint(family), random_actions()
    envs = dreamenvs.make_real_vec(world, ROWS)
    script = Script(actions)
    policy = WatchingPolicy(script, world.model, "latent")
    frames, _ = envs.reset(seed=3)
    starts, over, state = np.ones(ROWS, bool), np.zeros(ROWS, bool), None
    mixed = 0
    for _ in range(STEPS):
        taken, state = policy.predict(frames, state, starts)
        frames, _, terminated, truncated, _ = envs.step(taken)
        starts, over = over, terminated | truncated
        mixed += bool(starts.any() and not starts.all())
    assert mixed >= 2
    for row in range(ROWS):
        expected = alone(world, "latent", 3 + row, actions[: STEPS - 1, row])
        for step, view in enumerate(expected):
            assert np.array_equal(script.views[step][row], view), (row, step)


@pytest.mark.parametrize("obs_type", ["latent", "tokens"])
def test_real_rows_show_what_single_environments_show(obs_type: Any) -> None:
    world, actions = checkpoint(), random_actions()
    envs = dreamenvs.make_real_vec(world, ROWS, obs_type=obs_type)
    views = [envs.reset(seed=3)[0], *(envs.step(row)[0] for row in actions)]
    dreams = DreamVectorEnv(ROWS, checkpoint=world, obs_type=obs_type)
    assert envs.observation_space == dreams.observation_space
    assert envs.single_observation_space == dreams.single_observation_space
    for row in range(ROWS):
        assert np.array_equal([view[row] for view in views], alone(world, obs_type, 3 + row, actions[:, row]))
    assert views[0].dtype == envs.observation_space.dtype


def test_all_autoreset_modes_show_the_same_episodes() -> None:
    """The views of each row without those of the resets, which come at other times in each mode."""
    world, actions = checkpoint(), random_actions()
    found = {mode: episodes_of(world, mode, actions) for mode in AutoresetMode}
    for row in range(ROWS):
        one, other, third = (found[mode][row] for mode in AutoresetMode)
        assert len(one) > 1
        # A mode that spends a step on the reset comes less far.
        for episode in range(min(len(one), len(other), len(third)) - 1):
            assert np.array_equal(one[episode][0], other[episode][0])
            assert np.array_equal(one[episode][0], third[episode][0])


def episodes_of(world: Checkpoint, mode: AutoresetMode, actions: NDArray[np.int64]) -> list[list[list[NDArray[Any]]]]:
    """For each row its episodes as lists of views, the last one under way."""
    envs = dreamenvs.make_real_vec(world, ROWS, obs_type="latent", autoreset_mode=mode)
    views, _ = envs.reset(seed=3)
    episodes = [[[view]] for view in views]
    over = np.zeros(ROWS, bool)
    for taken in actions:
        if mode is AutoresetMode.DISABLED and over.any():
            views, _ = envs.reset(options={"reset_mask": over.copy()})
            for row in np.flatnonzero(over):
                episodes[row].append([views[row]])
        resetting = over if mode is AutoresetMode.NEXT_STEP else np.zeros(ROWS, bool)
        views, _, terminated, truncated, infos = envs.step(taken)
        over = terminated | truncated
        for row in range(ROWS):
            final = mode is AutoresetMode.SAME_STEP and over[row]
            if resetting[row]:
                episodes[row].append([views[row]])
            else:
                episodes[row][-1].append(infos["final_obs"][row] if final else views[row])
            if final:
                episodes[row].append([views[row]])
    return episodes


def test_final_observations_are_what_the_model_sees_of_the_last_frame() -> None:
    world, actions = checkpoint(), random_actions()
    next_step, same_step = (
        episodes_of(world, mode, actions) for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
    )
    for one, other in zip(next_step, same_step, strict=True):
        assert np.array_equal(np.stack(one[0]), np.stack(other[0]))  # same actions until the first end
        assert len(one[0]) > 2


def test_the_model_is_told_what_was_really_taken() -> None:
    """The CountingWorld's features are the count and the last action."""
    policy = WatchingPolicy(Script(np.ones((9, 3), np.int64)), CountingWorld(), "latent")
    script = policy.policy
    assert isinstance(script, Script)
    frames = np.zeros((3, 4, 6, 3), np.uint8)
    actions, state = policy.predict(frames, None, np.ones(3, bool))
    assert actions.tolist() == [1, 1, 1]
    _, state = policy.predict(frames, state)
    assert script.views[1].tolist() == [[0, 1], [0, 1], [0, 1]]
    state = policy.took(state, np.array([2, 1, 0]))
    _, state = policy.predict(frames + 5, state, np.array([False, True, False]))
    assert script.views[2].tolist() == [[5, 2], [5, 0], [5, 0]]
    with pytest.raises(ValueError, match=r"\(3,\), not \(2,\)"):
        policy.took(state, np.array([1, 1]))


def test_rows_are_padded_as_a_dreams_are() -> None:
    class Counted(CountingWorld):
        sizes: ClassVar[list[int]] = []

        def observe(self, context: Segment) -> Count:
            self.sizes.append(len(context.observations))
            return super().observe(context)

        def update(self, state: Count, actions: Tensor, observations: Tensor) -> Count:
            self.sizes.extend({len(state.count), len(actions), len(observations)})
            return super().update(state, actions, observations)

    policy = WatchingPolicy(Script(np.ones((9, 9), np.int64)), Counted(), "latent")
    frames = np.zeros((9, 4, 6, 3), np.uint8)
    _, state = policy.predict(frames)
    policy.predict(frames, state, np.arange(9) < 2)
    assert Counted.sizes == [padded_rows(9), padded_rows(9), padded_rows(2)] == [12, 12, 8]


def test_states_are_values() -> None:
    world = checkpoint("STEPVQT")
    frames, _ = dreamenvs.make_real_vec(world, ROWS).reset(seed=0)
    script = Script(np.ones((9, ROWS), np.int64))
    policy = WatchingPolicy(script, world.model, "latent")
    _, early = policy.predict(frames)
    for _ in range(2):
        _, later = policy.predict(frames, early)
        policy.predict(frames, later, np.arange(ROWS) < 2)
    assert np.array_equal(script.views[1], script.views[3])
    assert np.array_equal(script.views[2], script.views[4])


def test_what_cannot_be_watched_is_said() -> None:
    world = checkpoint()
    frames, _ = dreamenvs.make_real_vec(world, 3).reset(seed=0)
    policy = WatchingPolicy(Script(np.ones((9, 3), np.int64)), world.model)
    _, state = policy.predict(frames)
    with pytest.raises(ValueError, match="3 rows, the observation of 2"):
        policy.predict(frames[:2], state)
    with pytest.raises(ValueError, match=r"\(N, 40, 40, 3\)"):
        policy.predict(frames[:, ::2])
    with pytest.raises(ValueError, match="needs no model"):
        Watcher(world.model, "rgb")


def test_no_gradients_and_no_shared_arrays() -> None:
    world = checkpoint()
    watcher = Watcher(world.model, "latent")
    frames, _ = dreamenvs.make_real_vec(world, 2).reset(seed=0)
    state = watcher.begin(frames)
    view = watcher.view(state, 2)
    view[:] = 0
    assert watcher.view(state, 2).any()
    assert not state.hidden.requires_grad
