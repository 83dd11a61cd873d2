"""The bundled dreams, as the README promises them: no simulator, no data set, no warning."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.env_checker
from gymnasium.utils.env_checker import check_env

import dreamenvs
from dreamenvs.checkpoints.library import BUNDLED
from dreamenvs.envs.conformance import check_vector_env
from dreamenvs.ids import MINATAR
from tests.rounding import conforming

NAMES = sorted(path.name for path in BUNDLED.iterdir() if path.is_dir())
PONG = "dreamenvs/STEPVQ-Pong-v0"
every_dream = pytest.mark.parametrize("name", NAMES)
every_type = pytest.mark.parametrize("obs_type", ["rgb", "latent", "tokens"])


def test_the_readmes_dreams_are_here() -> None:
    worlds = ("Pong", "Breakout", *(f"MinAtar{game}" for game in MINATAR))
    assert {f"STEPVQ-{world}-v0" for world in worlds} | {"CB-MinAtarBreakout-v0"} <= set(NAMES)


@every_dream
def test_it_is_small_and_says_what_it_is(name: str) -> None:
    path = BUNDLED / name
    assert sum(file.stat().st_size for file in path.iterdir()) <= 5_000_000
    dream = dreamenvs.load(f"dreamenvs/{name}")
    assert dream.card["commands"]
    assert dream.card["fidelity"]["psnr"] > 0
    assert dream.model.spec.source is not None
    assert name == f"{dream.family}-{dream.model.spec.world}-v0"
    assert "## Commands" in (path / "card.md").read_text(encoding="utf-8")


@every_dream
@every_type
def test_the_checkers_have_nothing_to_say(name: str, obs_type: Any, recwarn: pytest.WarningsRecorder) -> None:
    env = gym.make(f"dreamenvs/{name}", obs_type=obs_type, render_mode="rgb_array", disable_env_checker=True).unwrapped
    check_env(env)
    stable_baselines3.common.env_checker.check_env(env)
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.portable
@every_dream
@every_type
def test_it_conforms_in_every_mode(name: str, obs_type: Any) -> None:
    check_vector_env(partial(gym.make_vec, f"dreamenvs/{name}", horizon=4, obs_type=obs_type), steps=10, **conforming())


@pytest.mark.portable
def test_tokens_do_not_depend_on_the_number_of_rows() -> None:
    def roll(num_envs: int) -> np.ndarray:
        envs = gym.make_vec(PONG, num_envs=num_envs, obs_type="tokens", horizon=20)
        walk = [envs.reset(seed=11)[0]]
        for step in range(50):
            walk.append(envs.step((np.arange(num_envs) + step) % 6)[0])
        return np.stack(walk, 1)

    wide = roll(64)
    for num_envs in (1, 2, 3, 8):
        assert np.array_equal(roll(num_envs), wide[:num_envs])
    env = gym.make(PONG, obs_type="tokens", horizon=1000)
    alone = [env.reset(seed=11 + 3)[0]] + [env.step((3 + step) % 6)[0] for step in range(15)]
    assert np.array_equal(np.stack(alone), wide[3, :16])


@pytest.mark.portable
def test_make_vec_takes_gymnasiums_arguments() -> None:
    envs = gym.make_vec(PONG, num_envs=2, max_episode_steps=3, obs_type="tokens")
    envs.reset(seed=0)
    flags = [envs.step(np.zeros(2, dtype=np.int64))[3].tolist() for _ in range(3)]
    assert flags == [[False, False], [False, False], [True, True]]
    assert envs.spec is not None
    assert envs.spec.id == PONG
    sync = gym.make_vec(PONG, num_envs=2, vectorization_mode="sync", obs_type="tokens")
    assert np.array_equal(sync.reset(seed=4)[0], gym.make_vec(PONG, num_envs=2, obs_type="tokens").reset(seed=4)[0])


@pytest.mark.portable
def test_forked_processes_dream_the_same() -> None:
    kwargs: dict[str, Any] = {"num_envs": 2, "obs_type": "tokens"}
    dreams = gym.make_vec(PONG, vectorization_mode="async", **kwargs), gym.make_vec(PONG, **kwargs)
    assert np.array_equal(*(envs.reset(seed=4)[0] for envs in dreams))
    for step in range(3):
        assert np.array_equal(*(envs.step(np.array([step, 2]))[0] for envs in dreams))
    dreams[0].close()


def test_the_dream_env_id_finds_it() -> None:
    env = gym.make("DreamEnv-Pong-v0", obs_type="tokens")
    assert env.reset(seed=0)[0].shape == (dreamenvs.load(PONG).model.num_tokens,)


def test_a_user_registers_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dream = dreamenvs.load(PONG)
    where = dreamenvs.save(
        tmp_path / "mine", dream.model, dream.contexts, family=dream.family, config=dream.config, card=dream.card
    )
    spec = gym.registry[PONG]
    try:
        assert dreamenvs.register(where) == PONG
        assert dreamenvs.locate(PONG) == where
        assert gym.make(PONG, obs_type="tokens").reset(seed=0)[0].shape == (dream.model.num_tokens,)
    finally:
        gym.registry[PONG] = spec
    assert dreamenvs.locate(PONG) == BUNDLED / "STEPVQ-Pong-v0"


def test_the_real_game_beside_the_dream() -> None:
    pytest.importorskip("ale_py")
    for obs_type in ("rgb", "latent"):
        real, dream = dreamenvs.make_real(PONG, obs_type=obs_type), gym.make(PONG, obs_type=obs_type)  # type: ignore[arg-type]
        assert real.observation_space == dream.observation_space
        assert real.action_space == dream.action_space
        observation, _ = real.reset(seed=0)
        for _ in range(3):
            observation, *_ = real.step(2)
        assert observation in real.observation_space
