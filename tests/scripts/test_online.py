"""The whole loop from the command line: killed at any moment, a run ends with the same bytes as an unbroken one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dreamenvs.artifact import is_artifact

pytest.importorskip("minatar")
pytest.importorskip("tyro")

HERE = Path(__file__).resolve().parent
TRAINING = HERE.parent.parent / "training"
KILLS = int(os.environ.get("DREAMENVS_KILLS", "2"))
"""How often the run is killed; more than two for patient people."""


def start(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    directory.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_DATA_HOME": str(directory / "share")}
    command = [sys.executable, str(HERE / "online_run.py"), *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=280)


def test_killed_at_any_moment_it_ends_alike(tmp_path: Path) -> None:
    """kill -9 between updates and in the middle of writing files, some of it before anything was saved."""
    whole = start(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr[-2000:]
    rng = np.random.default_rng(int(os.environ.get("DREAMENVS_KILL_SEED", "0")))
    parts = tmp_path / "parts"
    for number in range(KILLS):
        what, most = ("fsyncs", 60) if number % 2 else ("events", 30)
        killed = start(parts, what, str(rng.integers(3, most)))
        assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr[-2000:]
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
