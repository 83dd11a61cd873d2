"""Collecting, fitting and dreaming, as a user does it from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import dreamenvs
from dreamenvs.data.episode import Episode
from dreamenvs.data.storage import save_episodes
from dreamenvs.envs.catalog import fitting_command
from dreamenvs.types import DiscreteActions, WorldSpec

ROOT = Path(__file__).resolve().parent.parent.parent


def run(where: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "training" / script), *arguments],
        cwd=where,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def walking_dots(tmp_path: Path) -> Path:
    """Episodes of a dot that the action moves, on a small frame."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(12):
        actions = rng.integers(0, 2, 30)
        places = np.cumsum(np.concatenate([[rng.integers(16)], np.where(actions == 1, 1, -1)])) % 16
        frames = np.zeros((31, 16, 16, 3), np.uint8)
        frames[np.arange(31), 8, places] = 255
        episodes.append(
            Episode(
                observations=frames,
                actions=actions,
                rewards=(places[1:] == 0).astype(np.float32),
                terminated=np.zeros(30, bool),
                truncated=np.arange(30) == 29,
            )
        )
    spec = WorldSpec(world="Dots", observation_shape=(3, 16, 16), actions=DiscreteActions(count=2))
    save_episodes(tmp_path / "data", episodes, spec, {"policy": "random", "seed": 0})
    return tmp_path / "data"


@pytest.mark.parametrize("family", ["stepvq", "cbt"])
def test_a_fitted_dream_can_be_made_at_once(family: str, walking_dots: Path, tmp_path: Path) -> None:
    out = tmp_path / "dream"
    arguments = ["--tokenizer-updates", "20", "--dynamics-updates", "5", "--contexts", "4", "--out", str(out)]
    result = run(tmp_path, "fit_world_model.py", family, "--data", str(walking_dots), *arguments)
    assert result.returncode == 0, result.stderr
    env_id = dreamenvs.register(out, id="test/Dots-v0")
    try:
        env = gym.make(env_id)
        observation, _ = env.reset(seed=0)
        assert observation.shape == (16, 16, 3)
        assert env.step(1)[0].shape == (16, 16, 3)
    finally:
        gym.registry.pop(env_id)
    card = json.loads((out / "card.json").read_text())
    assert card["fitting"]["tokenizer_updates"] == 20
    assert card["fidelity"]["psnr"] > 0
    assert "fit_world_model.py" in (out / "card.md").read_text()


def test_the_command_of_a_missing_dream_collects_and_fits(tmp_path: Path) -> None:
    """What the error for a missing dream says, word for word, with little of everything."""
    command = fitting_command("CB-MinAtarBreakout-v0")
    assert command is not None
    _, script, family, flag, env_id = command.split()
    little = ["--collect-steps", "600", "--tokenizer-updates", "3", "--dynamics-updates", "2", "--contexts", "2"]
    result = run(tmp_path, Path(script).name, family, flag, env_id, *little, "--out", str(tmp_path / "dream"))
    assert result.returncode == 0, result.stderr
    assert dreamenvs.load(tmp_path / "dream").model.spec.world == "MinAtarBreakout"


def test_an_unknown_family_is_named(walking_dots: Path, tmp_path: Path) -> None:
    result = run(tmp_path, "fit_world_model.py", "dreamer", "--data", str(walking_dots))
    assert result.returncode != 0
    assert "'dreamer'" in result.stderr
