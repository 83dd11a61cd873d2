"""The Python API: every public name has an example that runs, and `fit` takes whatever holds experience."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import dreamenvs
from dreamenvs import api
from dreamenvs.data.collect import RandomPolicy, collect
from dreamenvs.data.replay import Replay
from dreamenvs.models.step_vq import STEP_VQ, StepVQConfig
from dreamenvs.models.two_stage import DynamicsOptimization, StageConfig, TwoStageOptimization
from dreamenvs.presets.choice import made_of_cells
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig
from dreamenvs.progress_line import ProgressLine
from dreamenvs.workflows import fitting
from tests.commands.test_fit import save_dots
from tests.small import CONFIGS

LITTLE: dict[str, Any] = {"update_share": 0.002, "progress": False}
STAGE = StageConfig(rows=4, length=8, updates=1000)
LITTLE_CONFIG = replace(
    CONFIGS["STEPVQ"],
    prior=FactorizedConfig(objective=CrossEntropyObjective()),
    optimization=TwoStageOptimization(tokenizer=STAGE, dynamics=STAGE),
)
LITTLE_CONFIGS = {"GRID": replace(CONFIGS["GRID"], optimization=DynamicsOptimization(dynamics=STAGE))}
"""In the place of the presets: what is tested here does not depend on the size of the model."""
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


class Squares(gym.Env[np.ndarray, Any]):
    """A square on an image of any size; the second half of the episode is rewarded."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, side: int = 32, images: bool = True, render_mode: str | None = None) -> None:
        self.side, self.images, self.render_mode = side, images, render_mode
        shape, kind = ((side, side, 3), np.uint8) if images else ((2,), np.float32)
        self.observation_space = gym.spaces.Box(0, 255, shape, kind)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.age = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place, self.age = (self.place + int(action)) % (self.side // 4), self.age + 1
        return self._seen(), float(self.age > 5), self.age == 12, False, {}

    def render(self) -> np.ndarray:
        frame = np.zeros((self.side, self.side, 3), np.uint8)
        frame[4:8, 4 * self.place : 4 * self.place + 4] = 255
        return frame

    def _seen(self) -> np.ndarray:
        return self.render() if self.images else np.array([self.place, self.age], np.float32)


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registered = dict(gym.registry)
    monkeypatch.setattr(api, "model_config", lambda family, *_: LITTLE_CONFIGS.get(family, LITTLE_CONFIG))
    monkeypatch.setattr(fitting, "measure", partial(fitting.measure, starts=8, horizon=3))
    yield
    gym.registry.clear()
    gym.registry.update(registered)


def run_examples(*tests: doctest.DocTest) -> None:
    report = StringIO()
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in tests:
        assert test.examples, f"{test.name} has no example"
        runner.run(test, out=report.write)
    assert runner.summarize(verbose=False).failed == 0, report.getvalue()


@pytest.mark.parametrize("name", dreamenvs.__all__)
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    pytest.importorskip("minatar")
    if name == "DreamVecEnv":
        pytest.importorskip("stable_baselines3")
    thing = getattr(dreamenvs, name)
    run_examples(doctest.DocTestParser().get_doctest(thing.__doc__ or "", {}, name, None, None))


def test_the_examples_of_the_package_run_in_order() -> None:
    pytest.importorskip("minatar")
    run_examples(doctest.DocTestParser().get_doctest(dreamenvs.__doc__ or "", {}, "dreamenvs", None, None))


def test_what_is_shown_is_what_there_is() -> None:
    assert dir(dreamenvs) == sorted(dreamenvs.__all__)
    assert all(hasattr(dreamenvs, name) for name in dreamenvs.__all__ if name != "DreamVecEnv")


def test_importing_brings_nothing_slow() -> None:
    code = "import sys; import dreamenvs; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    loaded = {name.partition(".")[0] for name in result.stdout.split()}
    assert not loaded & {"torch", "safetensors", "einops", "ale_py", "minatar", "stable_baselines3", "matplotlib"}


def replay_of(tmp_path: Path) -> Replay:
    return save_dots(tmp_path / "data")


@pytest.mark.parametrize("kind", ["replay", "directory", "episodes"])
def test_experience_of_every_kind_becomes_a_dream(kind: str, tmp_path: Path) -> None:
    replay = replay_of(tmp_path)
    source: Any = {"replay": replay, "directory": replay.directory, "episodes": list(replay)}[kind]
    dream = dreamenvs.fit(source, **LITTLE)
    assert dream.model.spec.observation_shape == (3, 16, 16)
    assert dream.model.spec.actions.count == 2  # type: ignore[union-attr]
    envs = dreamenvs.DreamVectorEnv(2, checkpoint=dream)
    assert envs.reset(seed=0)[0].shape == (2, 16, 16, 3)


def test_a_minari_data_set_becomes_a_dream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    from dreamenvs.data.minari import to_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    to_minari(replay_of(tmp_path), "dots/random-v0")
    assert dreamenvs.fit("dots/random-v0", **LITTLE).card["collected"][0]["dataset"] == "dots/random-v0"
    with pytest.raises(ValueError, match="dots/other-v0 is neither a registered environment nor a data set"):
        dreamenvs.fit("dots/other-v0", **LITTLE)


@pytest.mark.parametrize("kind", ["id", "environment", "function"])
def test_an_environment_of_every_kind_is_played_and_found_again(kind: str) -> None:
    gym.register("my/Squares-v3", entry_point=Squares)
    source: Any = {"id": "my/Squares-v3", "environment": gym.make("my/Squares-v3"), "function": Squares}[kind]
    dream = dreamenvs.fit(source, steps=100, **LITTLE)
    assert dream.model.spec.world == "Squares"
    assert dream.model.spec.observation_shape == (3, 32, 32)  # as it is
    assert dream.card["preset"] == "small"
    assert dream.card["data"]["real_steps"] == 100
    assert dreamenvs.make_real(dream).reset(seed=0)[0].shape == (32, 32, 3)
    player = dreamenvs.train(dream, steps=2048, progress=False)
    result = dreamenvs.transfer(player, dream, episodes=2, horizon=5, progress=False)
    assert result.real.length.mean == 12


def test_agents_are_chosen_by_name() -> None:
    dream, seen = "dreamenvs/STEPVQ-MinAtarBreakout-v0", list[tuple[int, int]]()
    player = dreamenvs.train(dream, 4096, agent="pqn", limit=7, progress=lambda done, total: seen.append((done, total)))
    assert player.obs_type == "tokens"
    assert seen == [(4096, 4096)]
    action, _ = player.predict(np.zeros((2, 100), np.int64))
    assert action.shape == (2,)
    with pytest.raises(ValueError, match=r"there are the agents actor-critic, pqn, not 'ppo'"):
        dreamenvs.train(dream, agent="ppo")  # type: ignore[arg-type]


def test_an_environment_that_shows_no_images_is_seen_through_its_pictures() -> None:
    dream = dreamenvs.fit(Squares(images=False, render_mode="rgb_array"), steps=60, size=16, **LITTLE)
    assert dream.model.spec.observation_shape == (3, 16, 16)
    with pytest.raises(ValueError, match="make the environment with render_mode='rgb_array'"):
        dreamenvs.fit(lambda: Squares(images=False), steps=60, **LITTLE)


def test_the_same_seed_gives_the_same_dream_and_progress_is_reported(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    replay = replay_of(tmp_path)
    one = dreamenvs.fit(replay, update_share=0.002, progress=lambda done, total: seen.append((done, total)))
    other = dreamenvs.fit(replay, **LITTLE, out=tmp_path / "dream")
    assert seen == [(done, seen[0][1]) for done in range(1, seen[0][1] + 1)]
    first, second = (dream.model.state_dict() for dream in (one, dreamenvs.load(tmp_path / "dream")))  # type: ignore[attr-defined]
    assert all(first[name].equal(second[name]) for name in first)
    assert other.path == tmp_path / "dream"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "dreamer"}, "unknown family 'dreamer': choose from stepvq"),
        ({"preset": "huge"}, "GRID has the presets small, patches, vq, not 'huge'"),
        ({"update_share": 0.0}, "update_share is above 0, not 0"),
        ({"source": []}, "there are no episodes"),
        ({"source": "Nowhere-v0"}, "Nowhere-v0 is not registered"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        dreamenvs.fit(**{"source": replay_of(tmp_path), **LITTLE, **changes})


def test_frames_of_cells_are_known() -> None:
    env = Squares(side=16)
    episodes = list(collect(env, RandomPolicy(env.action_space, seed=0), 60, 0))
    assert made_of_cells(episodes)
    episodes[0].observations[0, 0, 0] = 7
    assert not made_of_cells(episodes)


def test_a_family_from_outside_works_like_one_of_ours(tmp_path: Path) -> None:
    mine = dreamenvs.Family(name="Mine", config=StepVQConfig, paper=LITTLE_CONFIG, build=STEP_VQ.build)
    assert dreamenvs.register_family(mine) == "mine"
    dream = dreamenvs.fit(replay_of(tmp_path), family="mine", **LITTLE)
    path = dream.save(tmp_path / "Mine-Dots-v0")
    assert dreamenvs.load(path).family == "Mine"
    assert dreamenvs.register(path) == "dreamenvs/Mine-Dots-v0"
    assert gym.make("dreamenvs/Mine-Dots-v0").reset(seed=0)[0].shape == (16, 16, 3)
    assert dreamenvs.train(dream, steps=2048, progress=False).obs_type == "latent"
    with pytest.raises(dreamenvs.DreamNotFoundError, match=r"mine --env ALE/Pong-v5"):
        gym.make("dreamenvs/Mine-Pong-v0")
    for name in ("STEPVQ", "stepvq", "a-b"):
        with pytest.raises(ValueError, match=r"choose another name|letters and digits"):
            dreamenvs.register_family(dreamenvs.Family(name=name, config=int, paper=0, build=STEP_VQ.build))


def test_hiding_another_dream_is_said(tmp_path: Path) -> None:
    path = dreamenvs.load("dreamenvs/STEPVQ-MinAtarBreakout-v0").save(tmp_path / "dream")
    with pytest.warns(UserWarning, match="STEPVQ-MinAtarBreakout-v0 now means .*dream, and no longer .*Breakout-v0"):
        assert dreamenvs.register(path) == "dreamenvs/STEPVQ-MinAtarBreakout-v0"


def test_progress_is_one_line_with_the_time_that_is_left() -> None:
    stream = StringIO()
    line = ProgressLine("fitting STEPVQ", "updates", stream)
    line(1, 2)
    line(2, 2)
    assert stream.getvalue() == "fitting STEPVQ: 2 of 2 updates, 0 s in total\n"
