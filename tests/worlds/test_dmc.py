"""Tasks of the DeepMind Control Suite, drawn without a display."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dreamenvs.ids import DMC
from dreamenvs.types import ContinuousActions, Scalar, SourceEnv
from dreamenvs.worlds.dmc import DMCConfig, DMCEnv
from dreamenvs.worlds.source import default_source, describe, make_source

CARTPOLE = default_source("dm_control/cartpole-swingup-v0")
DOMAINS = {task.partition("-")[0]: task for task in DMC.values()}
drawn = pytest.mark.usefixtures("drawing")


def make(task: str = "cartpole-swingup", **options: Scalar) -> Any:
    source = default_source(f"dm_control/{task}-v0")
    return make_source(replace(source, options={**source.options, **options}))


def actions_of(env: Any, count: int, seed: int = 0) -> np.ndarray:
    space = env.action_space
    return np.random.default_rng(seed).uniform(space.low, space.high, (count, *space.shape)).astype(np.float32)


def play(env: Any, actions: np.ndarray, seed: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Frames and rewards."""
    frames, rewards = [env.reset(seed=seed)[0]], []
    for action in actions:
        observation, reward, *_ = env.step(action)
        frames.append(observation)
        rewards.append(reward)
    return np.stack(frames), np.array(rewards)


@pytest.mark.parametrize("task", DMC.values())
def test_every_task_of_the_catalogue_has_the_usual_settings(task: str) -> None:
    source = default_source(f"dm_control/{task}-v0")
    camera = 2 if task.startswith("quadruped") else 0
    assert source.preprocessing == "dmc"
    assert source.options == {"size": 64, "repeat": 2, "camera": camera, "quality": "fast"}


@drawn
def test_a_task_is_described_with_the_bounds_of_its_actions() -> None:
    env = make_source(CARTPOLE, (3, 64, 64))
    spec = describe(env, world="CartpoleSwingup", source=CARTPOLE)
    assert spec.observation_shape == (3, 64, 64)
    assert spec.actions == ContinuousActions(low=(-1.0,), high=(1.0,))
    assert spec.source is not None
    assert spec.source.options["quality"] == "fast"
    quadruped = make("quadruped-run").action_space
    assert quadruped.dtype == np.float32
    assert quadruped.high[:3].tolist() == [1.0, np.float32(1.1), np.float32(0.8)]


@pytest.fixture
def registered(drawing: None) -> Iterator[str]:
    """An id under which Gymnasium's checker can build the environment again, with another render mode."""

    def build(render_mode: str | None = None) -> DMCEnv:
        return DMCEnv(DMCConfig(size=40), "cartpole", "swingup", render_mode=render_mode)

    gymnasium.register("CheckedCartpole-v0", build)
    yield "CheckedCartpole-v0"
    del gymnasium.registry["CheckedCartpole-v0"]


def test_both_checkers_have_nothing_to_say(registered: str) -> None:
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    env = gymnasium.make(registered, render_mode="rgb_array").unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)
        sb3.check_env(env)


@drawn
@pytest.mark.parametrize("task", ["cartpole-swingup", "reacher-easy", "finger-turn_hard", "quadruped-walk"])
def test_a_seed_gives_the_same_episode_whatever_was_played_before(task: str) -> None:
    """Reacher and finger move their targets in the model itself, which a reset of the physics leaves alone."""
    env = make(task)
    actions = actions_of(env, 8)
    frames, rewards = play(env, actions, seed=3)
    play(env, actions_of(env, 13, seed=1))
    again, rewards_again = play(env, actions, seed=3)
    np.testing.assert_array_equal(frames, again)
    np.testing.assert_array_equal(rewards, rewards_again)
    unseeded, _ = play(env, actions)
    np.testing.assert_array_equal(frames, play(make(task), actions, seed=3)[0])
    other = make(task)
    other.reset(seed=3)
    other.step(actions[0])  # the second episode does not hang on how much of the first was played
    np.testing.assert_array_equal(unseeded, play(other, actions)[0])
    assert not np.array_equal(frames, unseeded)
    assert not np.array_equal(frames, play(env, actions, seed=4)[0])


@drawn
def test_an_action_is_repeated_and_its_rewards_add_up() -> None:
    twice, once = make(repeat=2), make(repeat=1)
    actions = actions_of(twice, 6)
    frames, rewards = play(twice, actions, seed=0)
    single_frames, single_rewards = play(once, actions.repeat(2, axis=0), seed=0)
    np.testing.assert_array_equal(frames, single_frames[::2])
    np.testing.assert_allclose(rewards, single_rewards.reshape(-1, 2).sum(1))
    assert (np.diff(frames.astype(int), axis=0) != 0).any((1, 2, 3)).all()


@drawn
@pytest.mark.parametrize("task", DOMAINS.values(), ids=DOMAINS)
def test_an_episode_is_truncated_after_a_thousand_control_steps(task: str) -> None:
    env = make(task, repeat=60, size=8)
    assert env.reset(seed=0)[0].shape == (8, 8, 3)
    action = actions_of(env, 1)[0]
    ends = [env.step(action)[2:4] for _ in range(17)]  # the last action is taken 40 times
    assert ends == [(False, False)] * 16 + [(False, True)]
    env.close()


@drawn
def test_fast_pictures_differ_from_full_ones_by_their_shadows() -> None:
    fast, full = (make("walker-walk", quality=quality).reset(seed=0)[0].astype(int) for quality in ("fast", "full"))
    assert 1 < np.abs(fast - full).mean() < 20
    camera = make("walker-walk", camera=1).reset(seed=0)[0].astype(int)
    assert np.abs(fast - camera).mean() > 1


@drawn
def test_rows_draw_side_by_side_as_alone_and_one_that_is_closed_does_not_take_the_other_with_it() -> None:
    actions = actions_of(make(), 5)
    alone, _ = play(make(), actions, seed=1)
    first, second = make(), make("pendulum-swingup")
    frames = [first.reset(seed=1)[0]]
    second.reset(seed=1)
    for action in actions:
        second.step(action)
        frames.append(first.step(action)[0])
    np.testing.assert_array_equal(np.stack(frames), alone)
    second.close()
    second.close()
    np.testing.assert_array_equal(play(first, actions, seed=1)[0], alone)
    kept = frames[0].copy()
    first.step(actions[0])
    np.testing.assert_array_equal(frames[0], kept)  # a picture is not drawn over


@drawn
def test_render_shows_the_observation() -> None:
    env = make_source(CARTPOLE, render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), observation)
    assert env.metadata["render_fps"] == 50
    assert make().render() is None


@drawn
@pytest.mark.parametrize("action", [np.zeros(2, np.float32), np.float32(0), np.array([np.nan], np.float32)])
def test_wrong_actions_are_refused(action: Any) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"an action is \(1,\) finite numbers"):
        env.step(action)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("cartpole-juggle", {}, "no task cartpole-juggle; it has .*walker-walk"),
        ("lqr-lqr_2_1", {}, "have no bounds"),
        ("cartpole-swingup", {"camera": 7}, "cartpole has 2 cameras, numbered from 0, and no camera 7"),
        ("cartpole-swingup", {"camera": -2}, "no sensible pictures"),
        ("cartpole-swingup", {"repeat": 0}, "no sensible pictures"),
        ("cartpole-swingup", {"quality": "best"}, "'fast' or 'full', not 'best'"),
        ("cartpole-swingup", {"shadows": True}, "does not take these settings"),
    ],
)
def test_settings_that_are_refused(task: str, options: dict[str, Scalar], message: str, drawing: None) -> None:
    with pytest.raises(ValueError, match=message):
        make(task, **options)


@drawn
def test_sources_of_before_are_still_drawn_by_shimmy() -> None:
    pytest.importorskip("shimmy")
    old = SourceEnv(
        id="dm_control/cartpole-swingup-v0",
        preprocessing="pixels",
        options={"size": 64, "repeat": 2, "camera_id": 0},
    )
    env = make_source(old, (3, 64, 64))
    assert env.action_space == gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    env.reset(seed=0)
    assert env.step(np.ones(1, np.float32))[0].shape == (64, 64, 3)
    with pytest.raises(ValueError, match="is no task of the DeepMind Control Suite"):
        make_source(SourceEnv(id="dm_control/RodentEscapeBowl-v0", preprocessing="dmc"))


DRAW = """
import os, sys
from dreamenvs.worlds.dmc import RenderingError
from dreamenvs.worlds.source import default_source, make_source
{before}
try:
    make_source(default_source("dm_control/cartpole-swingup-v0")).reset(seed=0)
except RenderingError as error:
    print(error)
else:
    print("drawn with", os.environ["MUJOCO_GL"])
"""


def draw_elsewhere(before: str = "", **variables: str) -> list[str]:
    """What a process of its own, without a display, has to say."""
    pytest.importorskip("dm_control", exc_type=ImportError)
    unset = {"DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM"}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | variables
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRAW.format(before=before)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MuJoCo finds a display of its own")
@drawn
def test_without_a_display_egl_is_chosen() -> None:
    assert draw_elsewhere() == ["drawn with egl"]


@pytest.mark.parametrize(
    ("before", "variables", "reason"),
    [
        ("", {"MUJOCO_GL": "paper"}, "MUJOCO_GL=paper"),
        ("", {"PYOPENGL_PLATFORM": "osmesa"}, "PYOPENGL_PLATFORM"),
        ("sys.modules['OpenGL'] = None", {"MUJOCO_GL": "osmesa"}, "OpenGL"),
        ("", {"MUJOCO_GL": "off"}, "No OpenGL rendering backend"),  # as where the context cannot be made
    ],
    ids=["name", "platform", "library", "context"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the packages are those of Linux")
def test_what_is_missing_for_drawing_is_said_in_one_sentence(
    before: str, variables: dict[str, str], reason: str
) -> None:
    (said,) = draw_elsewhere(before, **variables)
    assert said.startswith("MuJoCo cannot draw with MUJOCO_GL=")
    assert reason in said
    assert "libegl1, libegl-mesa0 and libgl1-mesa-dri" in said
    assert "MUJOCO_GL=osmesa" in said
