"""Fitting with several processes, as a user starts them with torchrun: one may be killed, and the command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import dreamenvs
from dreamenvs.fitting.state import read_progress, read_weights
from tests.commands.test_fit import ROOT, save_dots
from tests.fitting.test_fit import equal

UPDATES = 40

RANK = f"""
import os, sys, time
from pathlib import Path
from dreamenvs.cli import fit as script
import pytest
from tests.commands.test_fit import make_small

make_small(script, pytest.MonkeyPatch())
Path(f"pid-{{os.environ['RANK']}}").write_text(str(os.getpid()))
hold = Path("hold")
record = script.FitMonitor.record

def slowly(self, metrics):
    record(self, metrics)
    print("update", metrics.stage, metrics.update, flush=True)
    while hold.exists() and metrics.update == int(hold.read_text()):
        time.sleep(0.02)

script.FitMonitor.record = slowly
script.main(script.Args(
    family="stepvq", data=Path("data"), tokenizer_updates={UPDATES}, dynamics_updates=3, contexts=4, out=Path("dream"),
    name=sys.argv[1], save_minutes=float(sys.argv[2]), rank_timeout=float(sys.argv[3]),
))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    save_dots(tmp_path / "data")
    (tmp_path / "rank.py").write_text(RANK)
    return tmp_path


@contextmanager
def started(ranks: int, name: str, save_minutes: float = 5.0, timeout: float = 60.0) -> Iterator[subprocess.Popen[str]]:
    """A fit under way, which ends with the block."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "rank.py"]
    with Path(f"{name}.log").open("w") as log:
        process = subprocess.Popen([*command, name, str(save_minutes), str(timeout)], stdout=log, stderr=log, text=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def fit(ranks: int, name: str) -> str:
    with started(ranks, name) as process:
        code = process.wait(150)
    printed = Path(f"{name}.log").read_text()
    assert code == 0, printed
    return printed


def wait_for(name: str, text: str) -> None:
    for _ in range(3000):
        if text in Path(f"{name}.log").read_text():
            return
        time.sleep(0.05)
    raise AssertionError(Path(f"{name}.log").read_text())


def weights(name: str) -> dict[str, torch.Tensor]:
    return read_weights(Path("runs") / name / "state")


def test_signals_that_torchrun_repeats_are_one() -> None:
    from dreamenvs.interruption import interruption

    before = signal.getsignal(signal.SIGINT)
    with interruption(insistent=True) as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(10)
    assert signal.getsignal(signal.SIGINT) is before


def test_where_a_rank_is_killed_the_job_ends_and_the_same_command_makes_it_good(place: Path) -> None:
    printed = fit(2, "whole")
    assert "2 ranks share every batch" in printed
    assert printed.count("gymnasium.make") == printed.count(" parameters; run ") == 1  # the first rank tells
    assert sorted(path.name for path in Path("runs").iterdir()) == ["whole"]
    card = dreamenvs.load("dream").card
    assert card["fitting"]["ranks"] == 2
    assert card["commands"][0].startswith("torchrun --nproc-per-node 2 -m dreamenvs.cli.fit")
    versions = json.loads(Path("runs/whole/versions.json").read_text())
    assert (versions["ranks"], versions["threads"]) == (2, 1)

    # The second rank is killed while both are under way.
    Path("hold").write_text("30")
    with started(2, "killed", save_minutes=0.0) as process:
        wait_for("killed", "update tokenizer 30")
        os.kill(int(Path("pid-1").read_text()), signal.SIGKILL)
        Path("hold").unlink()
        assert process.wait(150) != 0
    assert read_progress(Path("runs/killed/state")).update in (29, 30)
    assert "going on with runs/killed: stage tokenizer" in fit(2, "killed")
    assert equal(weights("killed"), weights("whole"))
