"""The whole loop from the command line: killed at any moment, a run ends with the same bytes as an unbroken one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import dreamenvs
from dreamenvs.agents.saving import load_agent
from dreamenvs.files.atomic_directory import is_artifact

pytest.importorskip("minatar")
pytest.importorskip("tyro")

HERE = Path(__file__).resolve().parent
KILLS = int(os.environ.get("DREAMENVS_KILLS", "2"))
"""How often the run is killed; more than two for patient people."""


def start(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    from tests.warm import run_python

    directory.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_DATA_HOME": str(directory / "share")}
    return run_python([str(HERE / "online_run.py"), *arguments], cwd=directory, env=environment)


def test_killed_at_any_moment_it_ends_alike(tmp_path: Path) -> None:
    """kill -9 between updates and in the middle of writing files, some of it before anything was saved."""
    whole = start(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr[-2000:]
    rng = np.random.default_rng(int(os.environ.get("DREAMENVS_KILL_SEED", "0")))
    parts = tmp_path / "parts"
    for number in range(KILLS):
        what, most = ("fsyncs", 150) if number % 2 else ("events", 15)
        killed = start(parts, what, str(rng.integers(3, most)))
        assert killed.returncode == -signal.SIGKILL or number > 1, killed.stderr[-2000:]
    ended = start(parts)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert is_artifact(parts / "runs/tiny/state")
    for name in ("runs/tiny/results.json", "dream/weights.safetensors", "runs/tiny/agent/weights.safetensors"):
        assert (parts / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    results = json.loads((parts / "runs/tiny/results.json").read_text())
    assert results["real_steps"] == 80
    assert results["counters"]["updates"] == [14, 8]
    assert results["counters"]["agent_updates"] == 11
    assert [point["step"] for point in results["curve"]] == [32, 64]
    assert len(results["final"]["returns"]) == results["final"]["episodes"] == 3
    assert results["protocol"]["settings"]["sticky_action_prob"] == 0.1
    assert str(tmp_path) not in (parts / "runs/tiny/results.json").read_text()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script as a module with a tiny preset, in an empty directory, registering nothing for good."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setattr(sys, "argv", ["training/train_online.py", "--restart"])
    registered, threads = dict(gym.registry), torch.get_num_threads()
    from dreamenvs.cli import online as train_online
    from dreamenvs.evaluation import online_results
    from tests.commands.online_run import tiny_preset

    monkeypatch.setattr(train_online, "find_preset", tiny_preset)
    monkeypatch.setattr(train_online, "measure", partial(train_online.measure, starts=8, horizon=3))
    monkeypatch.setattr(online_results, "HELD_OUT_STEPS", 60)
    yield train_online
    gym.registry.clear()
    gym.registry.update(registered)
    torch.set_num_threads(threads)


def train(script: Any, **changes: Any) -> None:
    script.main(script.Args(**{"out": Path("dream"), "name": "mine", "threads": 1, **changes}))


def stop_after(script: Any, events: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C after so many events."""
    record, left = script.OnlineMonitor.record, [events]

    def counted(self: Any, event: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        record(self, event)

    monkeypatch.setattr(script.OnlineMonitor, "record", counted)


def test_ctrl_c_says_how_to_go_on_and_the_end_tells_what_there_is(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="nothing to go on with"):
        train(script, resume=True)
    with monkeypatch.context() as patch:
        stop_after(script, 15, patch)
        with pytest.raises(SystemExit, match=r"stopped at step .*\n.* goes on: dreamenvs online$"):
            train(script)
    with pytest.raises(SystemExit, match=r"holds another run: schedule\.steps was 80 and is 88"):
        train(script, steps=88)
    with pytest.raises(SystemExit, match="nothing to go on with"):
        train(script, name="other", resume=True)
    train(script, resume=True, costs=True)
    printed = capsys.readouterr().out
    assert "from step" in printed
    assert "PFLOP" in printed
    assert "GiB of frames on disk" in printed
    assert "real return" in printed
    assert "gymnasium.make('dreamenvs/STEPVQ-MinAtarBreakout-v0')" in printed
    run = Path("runs/mine")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["clock"] for line in lines if line["part"] == "collect"] == [*range(8, 89, 8)]
    assert json.loads((run / "timings.jsonl").read_text())["agent"] > 0
    assert load_agent(run / "agent").spec.world == "MinAtarBreakout"
    card = dreamenvs.load("dream").card
    assert card["fitting"]["agent_updates"] == 11
    assert card["fidelity"]["psnr"] > 0
    results = (run / "results.json").read_bytes()
    train(script)  # a finished run has nothing left to do but to be measured, and that comes out alike
    assert (run / "results.json").read_bytes() == results
    train(script, restart=True, seed=1)
    assert (run / "results.json").read_bytes() != results


def test_costs_are_measured_on_copies(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was told its costs first ends as one that was not."""
    train(script, name="plain", evaluate_every=0)
    train(script, name="priced", evaluate_every=0, costs=True)
    plain, priced = (Path(f"runs/{name}/results.json").read_bytes() for name in ("plain", "priced"))
    assert plain == priced
    assert json.loads(plain)["curve"] == []
    table = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line]
    assert [line for line in table if line[0] in ("tokenizer", "dynamics")] == [["tokenizer", "14"], ["dynamics", "8"]]
    assert ["agent", "11"] in table


def test_a_damaged_state_is_named(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(script, 15, patch)
        with pytest.raises(SystemExit, match="stopped"):
            train(script)
    path = Path("runs/mine/state/weights.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SystemExit, match=r"cannot go on: .*weights.safetensors has .*\nbegin again with --restart"):
        train(script)
