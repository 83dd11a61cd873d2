from __future__ import annotations

import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dreamenvs.types import ContinuousActions, DiscreteActions, SourceEnv
from dreamenvs.worlds.source import EXTRAS, default_source, describe, make_source

PONG = default_source("ALE/Pong-v5")


class DrawnEnv(gymnasium.Env[np.ndarray, Any]):
    """Shows its step number as brightness; its actions are float64."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium reads it from the class)

    def __init__(self, actions: str = "box", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = {
            "box": gymnasium.spaces.Box(-2.0, 3.0, (2,), np.float64),
            "shifted": gymnasium.spaces.Discrete(3, start=5),
            "binary": gymnasium.spaces.MultiBinary(2),
        }[actions]
        self.time, self.taken = 0, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        self.taken.append(action)
        return np.zeros(2, np.float32), 1.0, self.time == 5, False, {}

    def render(self) -> np.ndarray:
        return np.full((20, 30, 3), self.time, np.uint8)


@pytest.fixture(autouse=True)
def _drawn_env() -> Any:
    gymnasium.register("DrawnEnv-v0", DrawnEnv)
    yield
    del gymnasium.registry["DrawnEnv-v0"]


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "MinAtar/Breakout-v1", "MinAtar/SpaceInvaders-v0"])
def test_gymnasium_checker_accepts(env_id: str) -> None:
    pytest.importorskip("ale_py" if "ALE" in env_id else "minatar")
    env = make_source(default_source(env_id))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UserWarning)
        warnings.filterwarnings("ignore", ".*different from the unwrapped version.*")
        check_env(env, skip_render_check=True)


def test_pong_is_described_with_every_setting_of_its_protocol() -> None:
    pytest.importorskip("ale_py")
    env = make_source(PONG, (3, 64, 64))
    spec = describe(env, world="Pong", source=PONG)
    assert spec.observation_shape == (3, 64, 64)
    assert spec.actions == DiscreteActions(count=6)
    assert PONG.kwargs == {"frameskip": 1, "repeat_action_probability": 0.0, "full_action_space": False}
    assert PONG.options == {"size": 64, "skip": 4, "noop_max": 30, "terminal_on_life_loss": False}


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "MinAtar/Asterix-v1"])
def test_a_seed_repeats_the_episode_and_another_does_not(env_id: str) -> None:
    pytest.importorskip("ale_py" if "ALE" in env_id else "minatar")

    def play(seed: int) -> np.ndarray:
        env = make_source(default_source(env_id))
        frames = [env.reset(seed=seed)[0]]
        for step in range(60):
            observation, _, terminated, truncated, _ = env.step(step % 3)
            frames.append(observation)
            if terminated or truncated:
                frames.append(env.reset()[0])
        return np.stack(frames[:61])

    first = play(3)
    np.testing.assert_array_equal(first, play(3))
    assert not np.array_equal(first, play(4))


def test_atari_shows_the_maximum_of_the_last_two_of_four_frames() -> None:
    pytest.importorskip("ale_py")
    source = SourceEnv(id="ALE/Pong-v5", preprocessing="atari", options={**PONG.options, "noop_max": 0, "size": 210})
    env = make_source(source)
    raw = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    env.reset(seed=0)
    raw.reset(seed=0)
    for action in (2, 3, 0, 2) * 10:
        observation = env.step(action)[0]
        frames = [raw.step(action)[0] for _ in range(4)]
    widened = np.maximum(frames[2], frames[3])[:, ::16]  # 160 columns become 210: every 16th falls on every 21st
    np.testing.assert_array_equal(observation[:, ::21], widened)


def test_a_lost_life_ends_the_episode_and_the_game_goes_on() -> None:
    pytest.importorskip("ale_py")
    source = default_source("ALE/Breakout-v5")
    source = SourceEnv(
        id=source.id, preprocessing="atari", options={**source.options, "terminal_on_life_loss": True, "size": 16}
    )
    env = make_source(source)
    env.reset(seed=0)
    lives = []
    for _ in range(2):
        terminated = False
        while not terminated:
            _, _, terminated, _, info = env.step(1)
        lives.append((info["lives"], env.reset()[1]["lives"]))
    assert lives == [(4, 4), (3, 3)]
    assert env.reset(seed=1)[1]["lives"] == 5


def test_minatar_draws_cells_in_squares() -> None:
    pytest.importorskip("minatar")
    source = SourceEnv(id="MinAtar/Breakout-v1", preprocessing="minatar", options={"scale": 3, "drawing": "channels"})
    env = make_source(source)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (30, 30, 4)
    np.testing.assert_array_equal(observation[::3, ::3], observation[2::3, 1::3])
    paddle, ball, trail, bricks = np.moveaxis(observation[::3, ::3], -1, 0) == 255
    assert (paddle.sum(), ball.sum(), trail.sum(), bricks.sum()) == (1, 1, 1, 30)


def test_pixels_repeat_actions_and_convert_them() -> None:
    source = SourceEnv(id="DrawnEnv-v0", preprocessing="pixels", options={"size": 8, "repeat": 2})
    env = make_source(source)
    assert env.action_space == gymnasium.spaces.Box(-2.0, 3.0, (2,), np.float32)
    spec = describe(env, world="Drawn", source=source)
    assert spec.actions == ContinuousActions(low=(-2.0, -2.0), high=(3.0, 3.0))
    env.reset(seed=0)
    observation, reward, *_ = env.step(np.array([0.5, 1.0], np.float32))
    assert (observation == 2).all()
    assert observation.shape == (8, 8, 3)
    assert reward == 2.0
    assert [taken.dtype for taken in env.unwrapped.taken] == [np.float64] * 2
    env.step(np.zeros(2, np.float32))
    _, reward, terminated, _, _ = env.step(np.zeros(2, np.float32))
    assert (reward, terminated) == (1.0, True)


def test_discrete_actions_start_from_zero() -> None:
    env = make_source(SourceEnv(id="DrawnEnv-v0", preprocessing="pixels", kwargs={"actions": "shifted"}))
    assert env.action_space == gymnasium.spaces.Discrete(3)
    env.reset()
    env.step(0)
    assert env.unwrapped.taken == [5]


def test_a_time_limit_truncates() -> None:
    env = make_source(SourceEnv(id="DrawnEnv-v0", preprocessing="pixels", options={"max_episode_steps": 2}))
    env.reset()
    assert [env.step(np.zeros(2, np.float32))[3] for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (SourceEnv(id="os:system-v0"), "name a module"),
        (SourceEnv(id="../evil-v0"), "name a module|not registered"),
        (SourceEnv(id="GymV26Environment-v0", kwargs={"env_id": "x"}), "not followed"),
        (SourceEnv(id="Unknown-v0"), "not registered"),
        (SourceEnv(id="DrawnEnv-v0", preprocessing="os.system"), "no preprocessing"),
        (SourceEnv(id="DrawnEnv-v0", kwargs={"actions": "/etc/passwd"}), "plain word"),
        (SourceEnv(id="DrawnEnv-v0", kwargs={"actions": ["box"]}), "plain value"),  # type: ignore[dict-item]
        (SourceEnv(id="DrawnEnv-v0", options={"size": 8}), "settings"),
        (SourceEnv(id="DrawnEnv-v0", preprocessing="pixels", options={"size": 0}), "no sensible"),
        (SourceEnv(id="DrawnEnv-v0", preprocessing="pixels", options={"colour": 1}), "colour"),
        (SourceEnv(id="DrawnEnv-v0", preprocessing="pixels", kwargs={"actions": "binary"}), "Discrete"),
        (SourceEnv(id="DrawnEnv-v0"), "try the preprocessing 'pixels'"),
    ],
)
def test_sources_that_are_refused(source: SourceEnv, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_source(source)


def test_another_observation_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 64, 64\).*\(3, 32, 32\)"):
        make_source(SourceEnv(id="DrawnEnv-v0", preprocessing="pixels"), (3, 32, 32))


@pytest.mark.parametrize(
    ("env_id", "module"),
    [
        ("ALE/Pong-v5", "ale_py"),
        ("MinAtar/Asterix-v1", "minatar"),
        ("dm_control/a-b-v0", "dm_control"),
        ("Crafter", "crafter"),
    ],
)
def test_a_missing_extra_is_named(env_id: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    extra = EXTRAS[env_id.partition("/")[0]]
    with pytest.raises(ImportError, match=rf'pip install "dreamenvs\[{extra}\]"'):
        make_source(default_source(env_id))
