"""The command `dreamenvs`: what it lists, what it refuses, and what it leaves alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import dreamenvs
from dreamenvs.cli import main as command
from dreamenvs.cli.run_directory import RunDirectory
from dreamenvs.cli.threads import keep_threads, use_threads
from dreamenvs.data.replay import Replay
from dreamenvs.files.atomic_directory import write_artifact
from tests.warm import run_python

ROOT = Path(__file__).resolve().parents[2]
GAME = """
import gymnasium as gym, numpy as np
class Game(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return np.zeros((16, 16, 3), np.uint8), {}
    def step(self, action):
        self.age += 1
        return np.full((16, 16, 3), 10 * self.age, np.uint8), 1.0, self.age == 9, False, {}
gym.register("my/Game-v0", entry_point=Game)
"""


class Drawn(gym.Env[np.ndarray, np.int64]):
    """Numbers to observe, and a picture beside them."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.age = render_mode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return np.zeros(2, np.float32), 1.0, self.age == 5, False, {}

    def render(self) -> np.ndarray:
        return np.full((48, 48, 3), 10 * self.age, np.uint8)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in command.COMMANDS)
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out == f"dreamenvs {dreamenvs.__version__}\n"


@pytest.mark.parametrize("name", ["fit", "train", "online", "evaluate"])
def test_expert_options_come_last_in_a_group_of_their_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([name, "--help"])
    common, expert = capsys.readouterr().out.split(" expert options ")
    assert "--threads" in common
    assert "--num-envs" in expert or "--save-minutes" in expert
    assert "--expert." not in expert


def test_the_list_and_the_help_need_no_torch(tmp_path: Path) -> None:
    code = "import sys; from dreamenvs.cli.main import main; main(['list']); main([]); print('torch' in sys.modules)"
    import subprocess

    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "dreamenvs/STEPVQ-Pong-v0" in result.stdout
    assert f"in {tmp_path}" in result.stdout
    assert "dreamenvs rm <id>" in result.stdout
    assert result.stdout.endswith("False\n")


def test_info_shows_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["info", "dreamenvs/STEPVQ-Pong-v0"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("STEPVQ dream of ALE/Pong-v5, ")
    assert "## Fidelity" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dance"], "there is no command 'dance': choose from list"),
        (["info", "dreamenvs/STEPVQ-Nowhere-v0"], "there is no dream 'dreamenvs/STEPVQ-Nowhere-v0'"),
        (["fit", "dreamer"], "unknown family 'dreamer': choose from stepvq"),
        (["collect", "--env", "Nope-v0", "--out", "out"], "Nope-v0 is not registered; import its package first"),
        (["fit", "--import", "no.such.module"], "--import no.such.module: No module named 'no'"),
        (["evaluate", "dreamenvs/STEPVQ-Pong-v0", "--data", "nothing"], "no replay here: collect one with dreamenvs"),
        (["train", "dreamenvs/STEPVQ-Pong-v0", "--threads", "0"], "--threads is 0; it is at least 1"),
        (["collect", "--env", "MinAtar/Breakout-v1", "--out", "out", "--size", "32"], "has no choice of size; it has"),
        (["fit", "--dataset", "my/data-v0", "--size", "32"], "--size is of what is collected"),
        (["rm", "dreamenvs/STEPVQ-Pong-v0", "--yes"], "only what is there is removed"),
    ],
)
def test_what_a_user_can_cause_is_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dreamenvs"])
    assert command.main(words) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    with pytest.raises((SystemExit, OSError, ValueError)):
        command.main([*words, "--debug"])


def test_pictures_are_collected_in_the_size_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dreamenvs"])
    monkeypatch.setitem(gym.registry, "Sized-v0", EnvSpec("Sized-v0", entry_point=Drawn))
    assert command.main(["collect", "--env", "Sized-v0", "--size", "16", "--steps", "10", "--out", "data"]) == 0
    assert Replay.open(tmp_path / "data").spec.observation_shape == (3, 16, 16)
    assert command.main(["fit", "--env", "Sized-v0", "--size", "32", "--data", "data"]) == 2
    assert "data holds frames of 16 × 16 pixels, not 32; choose another --data" in capsys.readouterr().err


def test_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    use_threads(None)
    use_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "4,1")
    use_threads(None)
    keep_threads(None, 7)
    assert chosen == [3, 2, 4]


def test_threads_are_as_many_as_there_are_free_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    for load in (0.2, 5.9, 20.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        use_threads(None)
    monkeypatch.delattr(os, "getloadavg")
    use_threads(None)
    assert chosen == [8, 2, 1, 8]


def test_a_run_that_is_resumed_keeps_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    run = RunDirectory(tmp_path / "run")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    run.open({"seed": 0}, {"threads": None})
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run.open({"seed": 0}, {"threads": None})
    assert chosen == []  # there is no state yet that other threads could be at odds with
    write_artifact(run.state, {"progress.json": b"{}"})
    run.open({"seed": 0}, {"threads": 2})
    run.open({"seed": 0}, {"threads": None})
    assert chosen == [5]


def test_a_game_of_ones_own_from_nothing_to_a_removed_dream(tmp_path: Path) -> None:
    (tmp_path / "mygame.py").write_text(GAME, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(tmp_path / "share")}

    def run(*words: str) -> str:
        result = run_python([str(ROOT / "dreamenvs" / "cli" / "main.py"), *words], cwd=tmp_path, env=environment)
        assert result.returncode == 0, result.stderr
        return result.stdout

    little = ["--collect-steps", "120", "--dynamics-updates", "1", "--contexts", "2"]
    assert "'dreamenvs/GRID-Game-v0'" in run("fit", "--env", "mygame:my/Game-v0", *little)
    assert "dreamenvs/GRID-Game-v0" in run("list")
    assert dreamenvs.load(tmp_path / "share/dreamenvs/GRID-Game-v0").model.spec.observation_shape == (3, 16, 16)
    run("rm", "dreamenvs/GRID-Game-v0", "--yes")
    assert "GRID-Game-v0" not in run("list")
