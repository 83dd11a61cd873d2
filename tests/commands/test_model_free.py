"""The script that learns without a dream."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for package in ("minatar", "stable_baselines3"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    return import_module("dreamenvs.cli.model_free")


def run(script: Any, **changes: Any) -> dict[str, Any]:
    ppo = script.PPOSettings(num_envs=2, n_steps=16, batch_size=16, n_epochs=1, units=8)
    values = {"steps": 64, "seeds": (3, 4), "ppo": ppo, "episodes": 4, "num_envs": 2, "max_episode_steps": 30}
    script.main(script.Args(**values | {"out": Path("out")} | changes))
    results: dict[str, Any] = json.loads(Path("out/results.json").read_text())
    return results


def test_runs_are_repeated_by_their_seeds_and_averaged(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(script)
    assert "trained, seed 4" in capsys.readouterr().out
    assert first["runs"] == run(script)["runs"]
    assert list(first["runs"]) == ["3", "4"]
    assert list(first["constant"]) == ["always 0", "always 1", "always 2"]
    means = [each["trained"]["mean"] for each in first["runs"].values()]
    assert first["over_runs"]["mean"] == pytest.approx(sum(means) / 2, abs=1e-4)


def test_it_sees_cells_or_the_frames_of_dreams(script: Any) -> None:
    assert run(script, seeds=(0,))["source"]["options"] == {"drawing": "channels", "scale": 1}
    assert run(script, seeds=(0,), frames=True)["source"]["options"] == {"drawing": "rgb", "scale": 4}
    learned = [
        script.learn_for_real(source, 32, 0, script.PPOSettings(num_envs=2, n_steps=16, batch_size=16, n_epochs=1))
        for source in (script.own_view("MinAtar/Breakout-v1"), script.choose_source("MinAtar/Breakout-v1"))
    ]
    assert [type(each.policy).__name__ for each in learned] == ["ActorCriticPolicy", "ActorCriticCnnPolicy"]


def test_what_it_learned_earns_more_than_chance(script: Any) -> None:
    ppo = script.PPOSettings(num_envs=8, n_steps=32, batch_size=64, n_epochs=8)
    found = run(script, steps=6_000, seeds=(0,), ppo=ppo, episodes=40, num_envs=20, max_episode_steps=200)
    assert found["runs"]["0"]["trained"]["low"] > found["runs"]["0"]["random"]["high"]


def test_a_player_of_one_action_is_measured(script: Any) -> None:
    """In Freeway the way up is all that pays."""
    found = run(script, env="MinAtar/Freeway-v1", seeds=(0,), max_episode_steps=500, episodes=8)["constant"]
    assert found["always 0"]["mean"] == found["always 2"]["mean"] == 0
    assert found["always 1"]["low"] > 3
