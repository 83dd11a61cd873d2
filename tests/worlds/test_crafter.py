"""Crafter with the Gymnasium interface: a seed decides the episode, and its last info tells what was reached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamenvs.worlds.real import WatchedVectorEnv
from dreamenvs.worlds.source import default_source, describe, make_source
from tests.small import build_small

pytest.importorskip("crafter")
SOURCE = default_source("Crafter")
SHORT = replace(SOURCE, options={**SOURCE.options, "length": 3})
COLLECT_SAPLING, NOOP = 5, 0


def make_short() -> Any:
    return make_source(SHORT)


def play(seed: int, keep: list[object]) -> list[bytes]:
    env = make_source(SOURCE)
    rng = np.random.default_rng(0)
    frames = [env.reset(seed=seed)[0].tobytes()]
    for _ in range(120):
        keep.append([object()] * 3)  # other objects in between: creatures lie at other addresses
        observation, _, terminated, _, _ = env.step(rng.integers(17))
        frames.append(observation.tobytes())
        if terminated:
            break
    return frames


def test_a_seed_decides_the_whole_episode() -> None:
    keep: list[object] = []
    first = play(0, keep)
    assert play(0, keep) == first
    assert play(1, keep)[0] != first[0]


def test_achievements_count_up_within_an_episode() -> None:
    env = make_short()
    env.reset(seed=0)
    told = [env.step(NOOP)[4]["achievements"] for _ in range(3)]
    assert len(told[0]) == 22
    assert not any(told[0].values())
    env.unwrapped._game._player.achievements["wake_up"] = 2
    assert env.step(NOOP)[4]["achievements"]["wake_up"] == 2
    env.reset()
    assert env.step(NOOP)[4]["achievements"]["wake_up"] == 0


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_last_info_of_an_episode_comes_through_the_autoreset(mode: AutoresetMode, watched: bool) -> None:
    rows = SyncVectorEnv([make_short] * 2, autoreset_mode=mode)
    games = rows.envs
    envs: Any = rows
    if watched:
        spec = describe(games[0], world="Crafter", source=SHORT)  # type: ignore[arg-type]
        envs = WatchedVectorEnv(rows, build_small("STEPVQ", spec), "tokens")
    envs.reset(seed=0)
    games[1].unwrapped._game._player.achievements["eat_cow"] = 1  # type: ignore[attr-defined]
    for _ in range(3):
        _, _, _, truncated, infos = envs.step(np.zeros(2, np.int64))
    assert truncated.all()
    last = infos if mode is AutoresetMode.NEXT_STEP else infos["final_info"]
    assert last["achievements"]["eat_cow"].tolist() == [0, 1]
    assert last["_achievements"].all()
    envs.close()
