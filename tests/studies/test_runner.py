"""Studies: every run once, whatever is killed; with subprocesses here and with tasks on a real Ray."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "training"
COUNTING = """
import json, os, signal, sys, time
from pathlib import Path

family, env, seed, directory, steps, *options = sys.argv[1:]
where, state = Path(directory), Path(directory) / "state"
with (where / "starts").open("a") as file:
    file.write(f"{os.environ['OMP_NUM_THREADS']}\\n")
starts = len((where / "starts").read_text().split())
count = int(state.read_text()) if state.exists() else 0
if "deaf" in options:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
while count < int(steps):
    if "fail" in options and starts <= int(options[1]):
        sys.exit(f"failing for the {starts}. time")
    count += 1
    (where / "part").write_text(str(count))
    (where / "part").rename(state)
    if "kill" in options and starts == 1 and count == 2:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    if "hold" in options and starts == 1 and count == 2:
        time.sleep(1000)
if "late" in options:
    time.sleep(1000)
if "nothing" not in options:
    (where / "results.json").write_text(json.dumps({"score": count + int(seed), "starts": starts}))
"""
"""A run that can go on: it counts, and where it is told to it fails, waits to be stopped, or kills who started it."""
SUITE = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it would be ignored
import tyro
from dreamenvs.cli import study as suite
raise SystemExit(suite.main(tyro.cli(suite.Args, args=sys.argv[1:]), {"counting.py": Path("counting.py")}))
"""
"""The suite with a script of the test's own in the place of those in training/."""

CLUSTER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import ray
context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("counting.py").write_text(COUNTING)


def write_study(**changes: Any) -> None:
    study = {
        "name": "counts",
        "families": ["one", "two"],
        "worlds": ["Count/Up-v0"],
        "seeds": [0, 1],
        "commands": [["counting.py", "{family}", "{env}", "{seed}", "{directory}", "3", "{options}"]],
        "report": {"score": "score", "curve": None},
    }
    Path("study.json").write_text(json.dumps(study | changes))


def begin(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SUITE, "study.json", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str], code: int) -> str:
    output, _ = process.communicate(timeout=280)
    assert process.returncode == code, output
    return output


def run(*arguments: str, code: int = 0) -> str:
    return end(begin(*arguments), code)


def directory() -> Any:
    return import_module("dreamenvs.studies.directory").StudyDirectory(Path("runs/studies/counts"))


def all_runs() -> list[Any]:
    return list(directory().read_study().runs())


def starts(key: str) -> int:
    path = directory().path / key / "runs" / key / "starts"
    return len(path.read_text().split()) if path.exists() else 0


def counted(run: str) -> str | None:
    """How far a run came whose directory begins so."""
    found = list(Path("runs/studies/counts").glob(f"{run}-*/runs/*/state"))
    return found[0].read_text() if found else None


def outcomes() -> Counter[tuple[str, str]]:
    return Counter((line["run"], line["outcome"]) for line in directory().attempts())


def wait_until(condition: Any, process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def test_every_run_is_run_once_and_never_again() -> None:
    write_study(variants={"": [], "long": ["slowly"]}, threads=2)
    output = run("--workers", "2")
    assert "8 of 8 finished" in output
    assert output.count("\nfinished ") == 8  # a line for every change
    runs = all_runs()
    assert len({each.key for each in runs}) == 8
    results = [directory().results(each) for each in runs]
    assert [each["score"] for each in results] == [3 + each.seed for each in runs]
    assert outcomes() == Counter((each.key, "finished") for each in runs)
    assert (
        directory().path / runs[0].key / "runs" / runs[0].key / "starts"
    ).read_text() == "2\n"  # the threads of a run
    written = [(directory().path / each.key / "results.json").stat().st_mtime_ns for each in runs]

    assert "8 of 8 finished" in run()
    assert [(directory().path / each.key / "results.json").stat().st_mtime_ns for each in runs] == written
    assert all(starts(each.key) == 1 for each in runs)

    write_study(variants={"": [], "long": ["slowly"]}, threads=2, seeds=[0, 1, 2])
    assert "# 4 of 12 runs are left" in run("--plan")
    assert "12 of 12 finished" in run()
    assert [(directory().path / each.key / "results.json").stat().st_mtime_ns for each in runs] == written
    assert all(starts(each.key) == 1 for each in all_runs())


def test_a_run_that_fails_is_tried_again_then_left_aside() -> None:
    commands = [["counting.py", "{family}", "{env}", "{seed}", "{directory}", "3", "fail", "{family}"]]
    write_study(families=["0", "1", "9"], seeds=[0], retries=1, commands=commands)  # the family says how often
    output = run("--workers", "1", code=1)
    assert "2 of 3 finished, 1 failed" in output
    assert "counting.py ended with exit code 1" in output
    never, once, always = all_runs()
    assert [starts(each.key) for each in (never, once, always)] == [1, 2, 2]
    assert outcomes() == {
        (never.key, "finished"): 1,
        (once.key, "failed"): 1,
        (once.key, "finished"): 1,
        (always.key, "failed"): 2,
    }
    failed = [line for line in directory().attempts() if line["run"] == always.key]
    assert [(line["exit_code"], line["tail"][-1]) for line in failed] == [
        (1, "failing for the 1. time"),
        (1, "failing for the 2. time"),
    ]
    assert not directory().finished(always)

    assert "1 failed" in run(code=1)  # what has failed stays so
    assert starts(always.key) == 2
    run("--again", code=1)
    assert starts(always.key) == 4
    assert starts(never.key) == 1


def test_what_leaves_no_results_or_takes_too_long_has_failed() -> None:
    write_study(families=["one"], seeds=[0], retries=0, variants={"": ["nothing"]})
    assert "1 failed" in run("--workers", "1", code=1)
    write_study(families=["late"], seeds=[0], retries=0, minutes=0.02, variants={"": ["late"]})
    assert "1 failed" in run("--workers", "1", code=1)
    reasons = {line["run"].split("-")[0]: line["reason"] for line in directory().attempts()}
    assert "there are no results" in reasons["one"]
    assert reasons["late"] == "it took longer than 1 seconds"


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_after_ctrl_c_the_same_command_goes_on() -> None:
    write_study(seeds=[0], variants={"": ["hold"]})
    process = begin("--workers", "1")
    wait_until(lambda: counted("one") == "2", process)
    refused = run(code=1)
    assert "another suite is at work" in refused
    process.send_signal(signal.SIGINT)
    output = end(process, 130)
    assert "the same command goes on from here" in output
    first, second = all_runs()
    assert outcomes() == {(first.key, "stopped"): 1}

    process = begin("--workers", "1")  # the first goes on, and the second is stopped
    wait_until(lambda: counted("two") == "2", process)
    process.send_signal(signal.SIGTERM)
    assert "1 of 2 finished, 1 stopped" in end(process, 130)
    assert directory().results(first) == {"score": 3, "starts": 2}

    assert "2 of 2 finished" in run()
    assert directory().results(first) == {"score": 3, "starts": 2}
    assert directory().results(second) == {"score": 3, "starts": 2}
    assert outcomes() == {(each.key, outcome): 1 for each in (first, second) for outcome in ("stopped", "finished")}


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_twice_ends_runs_that_do_not_listen() -> None:
    write_study(families=["one"], seeds=[0], variants={"": ["deaf", "hold"]})
    process = begin()
    wait_until(lambda: counted("one") == "2", process)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    while "stopping: runs save first" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert "ended at once" in end(process, 130)
    assert "1 of 1 finished" in run()
    assert directory().results(all_runs()[0]) == {"score": 3, "starts": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells children that their parent is gone")
def test_a_suite_that_is_killed_leaves_nobody_behind_and_goes_on() -> None:
    write_study(families=["one"], seeds=[0], variants={"": ["kill"]})
    process = begin()
    process.communicate(timeout=280)
    assert process.returncode == -signal.SIGKILL
    (only,) = all_runs()
    assert "1 earlier attempts were killed" in run()
    assert directory().results(only) == {"score": 3, "starts": 2}
    assert [(line["outcome"], line["lost"]) for line in directory().attempts()] == [("finished", 1)]


def test_results_that_nobody_fetched_are_not_made_again() -> None:
    write_study(families=["one"], seeds=[0])
    run()
    (only,) = all_runs()
    (directory().path / only.key / "results.json").unlink()  # as if the suite had been killed just before
    run()
    assert directory().results(only) == {"score": 3, "starts": 1}
    assert starts(only.key) == 1


def test_results_that_were_kept_are_adopted_elsewhere(tmp_path: Path) -> None:
    write_study(families=["one", "two"], seeds=[0])
    run()
    first, second = all_runs()
    directory().keep(first, tmp_path / "kept")
    for each in (first, second):
        shutil.rmtree(directory().path / each.key)
    assert "# 1 of 2 runs are left" in run("--adopt", str(tmp_path / "kept"), "--plan")
    said = run("--adopt", str(tmp_path / "kept"))
    assert "adopted 1 results" in said
    assert directory().results(first) == {"score": 3, "starts": 1}
    assert not list((directory().path / first.key).rglob("starts"))
    assert starts(second.key) == 1
    assert "adopted 0 results" in run("--adopt", str(tmp_path / "kept"))


@pytest.mark.skipif(sys.platform != "linux", reason="XDG directories")
def test_a_machine_without_the_study_works_on_its_own_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "disk"))
    module = import_module("dreamenvs.studies.attempt")
    command = (str(Path("counting.py").resolve()), "one", "Count/Up-v0", "5", "runs/one", "3")
    task = module.Task("one-s5-0123456789ab", str(tmp_path / "elsewhere"), "runs/one", (command,))
    for _ in range(2):
        result = module.attempt(task, module.Orders())
        assert (result.outcome, json.loads(result.results)) == ("finished", {"score": 8, "starts": 1})
    assert (tmp_path / "disk" / "dreamenvs" / "suite" / task.key / "log.txt").exists()
    assert not Path(task.place).exists()


def test_only_one_module_imports_ray() -> None:
    imports = re.compile(r"^\s*(import|from) ray\b", re.MULTILINE)
    sources = [*TRAINING.rglob("*.py"), *(ROOT / "dreamenvs").rglob("*.py")]
    assert [path.name for path in sources if imports.search(path.read_text())] == ["ray_runner.py"]
