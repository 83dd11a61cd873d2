"""Studies with tasks on a real Ray."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.studies.test_runner import (
    CLUSTER,
    COUNTING,
    ROOT,
    all_runs,
    begin,
    counted,
    directory,
    end,
    outcomes,
    run,
    starts,
    wait_until,
    write_study,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("counting.py").write_text(COUNTING)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray with two CPUs on this machine, which ends with the process that began it."""
    pytest.importorskip("ray")
    # A token of its own: else Ray keeps one in the home directory.
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # On a machine that has much else to do, Ray is slower to start than it expects.
    settings |= {"RAY_raylet_start_wait_time_s": "300", "RAY_worker_register_timeout_seconds": "300"}
    settings |= {"RAY_agent_register_timeout_ms": "300000"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "Ray did not start; it says why above"
        yield address
        process.stdin.close()
        process.wait(timeout=120)


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_on_ray_a_killed_worker_loses_nothing(cluster: str) -> None:
    write_study(variants={"": [], "killed": ["kill"]})
    output = run("--ray", cluster)
    assert "8 of 8 finished" in output
    runs = all_runs()
    assert outcomes() == Counter((each.key, "finished") for each in runs)
    lost = {line["run"]: line["lost"] for line in directory().attempts()}
    for each in runs:
        killed = each.variant == "killed"
        assert directory().results(each) == {"score": 3 + each.seed, "starts": 1 + killed}
        assert lost[each.key] == killed
    assert "8 of 8 finished" in run("--ray", cluster)
    assert all(starts(each.key) == 1 + (each.variant == "killed") for each in runs)


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_on_ray_failures_are_counted_and_ctrl_c_lets_runs_save(cluster: str) -> None:
    write_study(families=["one"], seeds=[0], variants={"": [], "fails": ["fail", "1"], "holds": ["hold"]})
    process = begin("--ray", cluster)
    wait_until(lambda: len(list(Path("runs").glob("studies/counts/*/results.json"))) == 2, process)
    wait_until(lambda: counted("one-Count-Up-v0-holds") == "2", process)
    process.send_signal(signal.SIGINT)
    assert "2 of 3 finished, 1 stopped" in end(process, 130)
    good, fails, holds = all_runs()
    assert outcomes() == {
        (good.key, "finished"): 1,
        (fails.key, "failed"): 1,
        (fails.key, "finished"): 1,
        (holds.key, "stopped"): 1,
    }
    assert not (directory().path / holds.key / "begun").exists()  # it had the time to end in order
    assert "3 of 3 finished" in run("--ray", cluster, "--workers", "1")
    assert [starts(each.key) for each in (good, fails, holds)] == [1, 2, 2]
    assert directory().results(holds) == {"score": 3, "starts": 2}
