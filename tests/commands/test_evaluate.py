"""Evaluating a dream from the command line."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import dreamenvs
from dreamenvs.checkpoints.world_model import save_checkpoint
from dreamenvs.data.collect import RandomPolicy, collect
from dreamenvs.data.replay import Replay
from dreamenvs.types import SourceEnv
from dreamenvs.worlds.source import default_source, describe, make_source
from tests.small import CONFIGS, DISCRETE, build_small, random_segment

ROOT = Path(__file__).resolve().parent.parent.parent
COUNTED = ("--conservation-steps", "128")


def run(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    from tests.warm import run_python

    return run_python([str(ROOT / "training" / "evaluate.py"), *arguments], cwd=where, timeout=240)


def untrained(tmp_path: Path, source: SourceEnv, world: str) -> Path:
    """An untrained dream, in half precision."""
    spec = describe(make_source(source), world=world, source=source)
    return save_checkpoint(
        tmp_path / "STEPVQ-Small-v0",
        build_small("STEPVQ", spec),
        random_segment(spec),
        family="STEPVQ",
        config=CONFIGS["STEPVQ"],
        card={"title": "A small dream", "commands": ["made by hand", "python training/evaluate.py old"]},
        weights_dtype="float16",
    )


@pytest.fixture
def breakout(tmp_path: Path) -> Path:
    return untrained(tmp_path, default_source("MinAtar/Breakout-v1"), "MinAtarBreakout")


def test_a_dream_is_measured_and_its_card_says_so(breakout: Path, tmp_path: Path) -> None:
    before = (breakout / "weights.safetensors").read_bytes()
    little = [
        "--steps",
        "120",
        "--starts",
        "8",
        "--horizon",
        "3",
        "--episodes",
        "3",
        "--transfer-horizon",
        "20",
        *COUNTED,
    ]
    video = ["--video.count", "9", "--video.context", "2", "--video.horizon", "3"]
    result = run(tmp_path, str(breakout), *little, *video, "--train-steps", "0", "--update-card")
    assert result.returncode == 0, result.stderr
    assert "one step ahead" in result.stdout
    assert "last frame copied" in result.stdout
    assert "real, whole episodes" in result.stdout
    out = tmp_path / "runs" / "evaluate" / breakout.name
    assert {path.name for path in out.iterdir()} == {
        "results.json",
        "psnr.png",
        "events.png",
        "video.png",
        "returns.png",
        "beside.gif",
    }
    results = json.loads((out / "results.json").read_text())
    assert results["fidelity"]["setting"]["steps"] > 50
    assert results["transfer"]["random"]["setting"]["episodes"] == 3
    model = dreamenvs.load(breakout).model
    assert results["speed"]["parameters"] == sum(each.numel() for each in model.parameters())  # type: ignore[attr-defined]
    assert results["speed"]["mflop_per_step"] > 0
    assert results["speed"]["steps_per_second"] > 0

    assert results["video"]["setting"]["videos"] == 9
    assert results["video"]["distance"] == "Fréchet distance on random 3D features (FRVD)"
    assert results["video"]["perplexity"]["one_step"]["mean"] > 1

    card = dreamenvs.load(breakout).card  # which verifies the manifest
    assert card["fidelity"] == results["fidelity"]
    assert card["transfer"] == results["transfer"]
    assert card["video"] == results["video"]
    assert card["commands"] == ["made by hand", results["command"]]
    assert "| horizon | frames | psnr |" in (breakout / "card.md").read_text()
    assert (breakout / "weights.safetensors").read_bytes() == before


def test_too_few_videos_are_told_before_anything_is_measured(breakout: Path, tmp_path: Path) -> None:
    result = run(tmp_path, str(breakout), "--steps", "60", "--video.count", "256")
    assert result.returncode == 1
    assert "256 videos of 8 + 48 frames were asked for" in result.stderr
    assert "--video.fewer" in result.stderr
    assert "fidelity" not in result.stderr


def test_a_dream_with_continuous_actions_is_measured_and_learned_in(tmp_path: Path, drawing: None) -> None:
    source = default_source("dm_control/cartpole-swingup-v0")
    small = replace(source, options={**source.options, "size": 16, "repeat": 50})
    dream = untrained(tmp_path, small, "CartpoleSwingup")
    little = [
        "--steps",
        "60",
        "--starts",
        "8",
        "--horizon",
        "3",
        "--episodes",
        "3",
        "--transfer-horizon",
        "20",
        *COUNTED,
    ]
    learning = ["--train-steps", "64", "--ppo.num-envs", "8", "--ppo.n-steps", "8", "--ppo.batch-size", "32"]
    result = run(tmp_path, str(dream), *little, *learning, "--policy", "swingup")
    assert result.returncode == 0, result.stderr
    results = json.loads((tmp_path / "runs" / "evaluate" / dream.name / "results.json").read_text())
    assert results["fidelity"]["one_step"]["model"]["reward_error"] > 0
    assert set(results["transfer"]) == {"random", "trained"}
    assert results["transfer"]["trained"]["returns"]["real"]["mean_length"] == 20  # of 50 control steps each


def test_a_dream_of_crafter_has_scores(tmp_path: Path) -> None:
    pytest.importorskip("crafter")
    source = default_source("Crafter")
    short = replace(source, options={**source.options, "length": 30})
    dream = untrained(tmp_path, short, "Crafter")
    little = [
        "--steps",
        "30",
        "--starts",
        "4",
        "--horizon",
        "2",
        "--episodes",
        "1",
        "--transfer-horizon",
        "5",
        *COUNTED,
    ]
    result = run(tmp_path, str(dream), *little, "--train-steps", "0", "--update-card")
    assert result.returncode == 0, result.stderr
    assert "Crafter score %" in result.stdout
    results = json.loads((tmp_path / "runs" / "evaluate" / dream.name / "results.json").read_text())
    assert results["crafter"]["random"]["setting"]["episodes"] == 1
    assert dreamenvs.load(dream).card["crafter"] == results["crafter"]
    assert "| collect_coal | 0 |" in (dream / "card.md").read_text()


def test_held_out_episodes_come_from_a_replay_of_the_same_world(
    breakout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = import_module("dreamenvs.cli.evaluate")
    checkpoint = dreamenvs.load(breakout)
    env = dreamenvs.make_real(checkpoint)
    episodes = list(collect(env, RandomPolicy(env.action_space, 0), 100, seed=0))
    replay = Replay.create(tmp_path / "replay", checkpoint.model.spec)
    replay.append(episodes)
    steps = len(episodes[0]) + len(episodes[1])
    found = evaluate.from_replay(tmp_path / "replay", checkpoint, steps)
    assert [len(episode) for episode in found] == [len(episode) for episode in episodes[:2]]
    assert np.array_equal(found[1].observations, episodes[1].observations)
    assert len(evaluate.from_replay(tmp_path / "replay", checkpoint, 1)) == 1
    Replay.create(tmp_path / "other", DISCRETE)
    with pytest.raises(SystemExit, match="the dream takes"):
        evaluate.from_replay(tmp_path / "other", checkpoint, 1)
