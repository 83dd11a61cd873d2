"""The Crafter score against values worked out by hand, and in the game itself."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from dreamenvs.evaluation.crafter_score import (
    ACHIEVEMENTS,
    CrafterSetting,
    crafter_score,
    score_of,
    summarise,
)
from dreamenvs.evaluation.episodes import Played, play
from tests.toy_worlds import counting_checkpoint

SETTING = CrafterSetting(obs_type="rgb", episodes=4, num_envs=2, seed=0, deterministic=False, interval="bootstrap")


class Reaching(gym.Env[NDArray[np.float32], np.int64]):
    """Episodes of two steps that reach given achievements, each twice, one set after another."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, *reached: tuple[str, ...]) -> None:
        self.reached, self.episode, self.age = reached, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.age = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.age += 1
        now = self.reached[self.episode % len(self.reached)] if self.age == 2 else ()
        achievements = {name: 2 * (name in now) for name in ACHIEVEMENTS}
        return np.zeros(1, np.float32), 0.5, self.age == 2, False, {"achievements": achievements}


def played(*rows: tuple[tuple[str, ...], ...], episodes: int) -> Played:
    envs = SyncVectorEnv([lambda row=row: Reaching(*row) for row in rows], autoreset_mode=AutoresetMode.NEXT_STEP)
    return play(envs, "random", episodes)


def test_the_score_is_the_geometric_mean_of_rates_in_percent() -> None:
    assert score_of(np.zeros(22)) == 0
    assert score_of(np.full(22, 100.0)) == pytest.approx(100)
    # One achievement always and 21 never: the 22nd root of 101, minus 1.
    assert score_of(np.eye(22)[0] * 100) == pytest.approx(101 ** (1 / 22) - 1)
    assert score_of(np.array([3.0, 15.0])) == pytest.approx(7.0)  # √(4 · 16) - 1


def test_achievements_count_once_in_each_episode() -> None:
    result = summarise(played((("wake_up", "eat_cow"), ("wake_up",)), (("wake_up",), ()), episodes=4), SETTING)
    assert result.success["wake_up"].mean == 75
    assert result.success["eat_cow"].mean == 25
    assert sum(rate.mean for rate in result.success.values()) == 100
    assert result.score.mean == pytest.approx((76 * 26) ** (1 / 22) - 1)
    assert result.achievements.mean == 1
    assert (result.episode_return.mean, result.length.mean) == (1, 2)
    assert result.success["wake_up"].low < 75 < result.success["wake_up"].high
    assert result.success["collect_coal"] == (0, 0, 0)
    assert result.score.low < result.score.mean < result.score.high


def test_each_row_counts_its_own_share_of_episodes() -> None:
    """The second row plays on while the first plays its second episode; what it reaches then does not count."""
    result = summarise(played((("wake_up",), ()), ((), ("eat_cow",)), episodes=3), SETTING)
    assert result.success["wake_up"].mean == pytest.approx(100 / 3)
    assert result.success["eat_cow"].mean == 0


def test_one_episode_has_no_interval_and_the_result_is_plain() -> None:
    result = summarise(played((("wake_up",),), episodes=1), SETTING)
    assert np.isnan([result.score.low, result.success["wake_up"].high]).all()
    plain = result.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["success"]["wake_up"] == {"mean": 100.0, "low": None, "high": None}
    assert "wake up %" in result.table()
    assert "Crafter score %" in result.table()


def test_what_has_no_score_is_said() -> None:
    with pytest.raises(ValueError, match="this dream is of Counting"):
        crafter_score("random", counting_checkpoint(), episodes=1)
    with pytest.raises(ValueError, match="give the dream"):
        crafter_score(lambda observations: np.zeros(1, np.int64), "real", 1, obs_type="latent")
    with pytest.raises(ValueError, match="at least 1"):
        crafter_score("random", episodes=0)
    silent = played((("wake_up",),), episodes=1)._replace(infos=({},))
    with pytest.raises(ValueError, match="is not Crafter"):
        summarise(silent, SETTING)


def test_the_names_are_the_games() -> None:
    crafter = pytest.importorskip("crafter")
    assert set(ACHIEVEMENTS) == set(crafter.constants.achievements)
    assert len(ACHIEVEMENTS) == 22


def test_a_short_real_episode() -> None:
    """Whoever does nothing builds nothing."""
    pytest.importorskip("crafter")
    result = crafter_score(lambda observations: np.zeros(len(observations), np.int64), "real", episodes=1, seed=3)
    assert 20 < result.length.mean < 10_000
    assert result.success["place_table"].mean == 0
    assert result.score.mean == pytest.approx(
        score_of(np.array([rate.mean for rate in result.success.values()])), abs=1e-9
    )
