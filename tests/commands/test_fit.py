"""Collecting, fitting and dreaming, as a user does it from the command line."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import dreamenvs
import dreamenvs.files.atomic_directory
from dreamenvs.data.episode import Episode
from dreamenvs.data.replay import Replay
from dreamenvs.families import FAMILIES
from dreamenvs.ids import fitting_command
from dreamenvs.models.frame_level import FrameLevelModel, JointOptimization
from dreamenvs.models.grid import GridConfig
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.storm import StormConfig
from dreamenvs.models.two_stage import DynamicsOptimization, StageConfig, TwoStageOptimization
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig
from dreamenvs.types import ContinuousActions, DiscreteActions, LossTerms, WorldSpec
from dreamenvs.workflows import fitting
from tests.small import CONFIGS

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = Path("runs/STEPVQ-Dots")


def save_dots(directory: Path, *, continuous: bool = False) -> Replay:
    """Episodes of a dot that the action moves, on a small frame."""
    low, high = (-2.0, 0.0), (2.0, 1.0)
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
                actions=np.where(actions[:, None] == 1, high, low).astype(np.float32) if continuous else actions,
                rewards=(places[1:] == 0).astype(np.float32),
                terminated=np.zeros(30, bool),
                truncated=np.arange(30) == 29,
            )
        )
    kind = ContinuousActions(low=low, high=high) if continuous else DiscreteActions(count=2)
    spec = WorldSpec(world="Dots", observation_shape=(3, 16, 16), actions=kind)
    replay = Replay.create(directory, spec)
    replay.append(episodes, {"policy": "random", "seed": 0})
    return replay


FEW_UPDATES = StageConfig(rows=4, length=8, updates=3)


def small_config(family: str, preset: str, frame: tuple[int, ...] = (3, 16, 16)) -> Any:
    """In the place of the presets: what is tested here does not depend on the size of the model."""
    if isinstance(CONFIGS[family], StormConfig):
        return replace(CONFIGS[family], optimization=JointOptimization(rows=4, length=8))
    if isinstance(CONFIGS[family], GridConfig):
        return replace(CONFIGS[family], optimization=DynamicsOptimization(dynamics=FEW_UPDATES))
    if not isinstance(CONFIGS[family], StepVQConfig):
        turns = TwoStageOptimization(tokenizer=StageConfig(rows=4, length=2, updates=4), dynamics=FEW_UPDATES)
        return replace(CONFIGS[family], optimization=turns)
    if preset == "paper":
        return replace(CONFIGS[family], optimization=JointOptimization(rows=2, length=8))
    objective = FactorizedConfig(objective=CrossEntropyObjective())
    return replace(CONFIGS[family], prior=objective, optimization=TwoStageOptimization())


def make_small(script: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(script, "model_config", small_config)
    patch.setattr(fitting, "measure", partial(fitting.measure, starts=8, horizon=3))
    patch.setattr(
        "dreamenvs.cli.fit_monitor.gemm_seconds", lambda: [1.0]
    )  # how fast the machine is, is no business of a test


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script as a module, in an empty directory with a replay in `data`, registering nothing for good."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    registered, threads = dict(gym.registry), torch.get_num_threads()
    save_dots(tmp_path / "data")
    from dreamenvs.cli import fit as fit_world_model

    make_small(fit_world_model, monkeypatch)
    yield fit_world_model
    gym.registry.clear()
    gym.registry.update(registered)
    torch.set_num_threads(threads)


def fit(script: Any, **changes: Any) -> None:
    little = {"data": Path("data"), "tokenizer_updates": 4, "dynamics_updates": 3, "contexts": 4, "threads": 1}
    script.main(script.Args(**{"family": "stepvq", **little, "out": Path("dream"), **changes}))


def weights(path: str = "dream") -> dict[str, torch.Tensor]:
    return dreamenvs.load(path).model.state_dict()  # type: ignore[attr-defined, no-any-return]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]


def updates(family: str) -> dict[str, int | None]:
    """The updates of a family whose parts are fitted all at once, in the place of those in turns."""
    if isinstance(CONFIGS[family], GridConfig):
        return {"tokenizer_updates": None}  # patches are not trained
    at_once = isinstance(CONFIGS[family], StormConfig)
    return {"tokenizer_updates": None, "dynamics_updates": None, "joint_updates": 4} if at_once else {}


@pytest.mark.parametrize("family", [name for name, config in CONFIGS.items() if not isinstance(config, StepVQConfig)])
def test_every_family_goes_the_whole_way(family: str, script: Any) -> None:
    """From data to an environment, with its fidelity in the card."""
    fit(script, family=FAMILIES[family].spelling, **updates(family))
    envs = gym.make_vec(f"dreamenvs/{family}-Dots-v0", num_envs=3, checkpoint="dream", obs_type="latent")
    observations, _ = envs.reset(seed=0)
    assert observations.shape == (3, dreamenvs.load("dream").model.num_features)
    envs.step(envs.action_space.sample())
    assert dreamenvs.load("dream").card["fidelity"]["one_step"]["model"]["token_accuracy"] >= 0


@pytest.mark.parametrize("family", list(CONFIGS))
def test_every_family_takes_continuous_actions(family: str, script: Any) -> None:
    save_dots(Path("pushed"), continuous=True)
    fit(script, family=FAMILIES[family].spelling, data=Path("pushed"), **updates(family))
    envs = gym.make_vec(f"dreamenvs/{family}-Dots-v0", num_envs=3, checkpoint="dream", obs_type="latent")
    assert envs.single_action_space == gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))
    envs.reset(seed=0)
    observations, *_ = envs.step(envs.action_space.sample())
    assert observations.shape == (3, dreamenvs.load("dream").model.num_features)


def test_a_fitted_dream_can_be_made_at_once(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fit(script, out=None)
    printed = capsys.readouterr().out
    assert "gymnasium.make('dreamenvs/STEPVQ-Dots-v0')" in printed
    assert "frames/s, sampling " in printed
    assert "of the GEMM peak of" in printed
    assert "peak memory" in printed
    env = gym.make("dreamenvs/STEPVQ-Dots-v0")
    assert env.reset(seed=0)[0].shape == env.step(1)[0].shape == (16, 16, 3)
    out = Path("share/dreamenvs/STEPVQ-Dots-v0")
    card = json.loads((out / "card.json").read_text())
    assert card["fitting"] == {"seed": 0, "sampler": "uniform", "tokenizer_updates": 4, "dynamics_updates": 3}
    assert card["fidelity"]["psnr"] > 0
    assert card["collected"] == [{"policy": "random", "seed": 0, "episodes": 12, "steps": 360}]
    assert "dreamenvs fit" in (out / "card.md").read_text()


def test_the_run_directory_tells_all(script: Any) -> None:
    turns = {"tokenizer_updates": None, "dynamics_updates": None}
    fit(script, family="stepvqt", preset="paper", joint_updates=1, **turns, name="mine", sampler="count")
    run = Path("runs/mine")
    config = json.loads((run / "config.json").read_text())
    assert config["arguments"]["joint_updates"] == config["identity"]["config"]["optimization"]["updates"] == 1
    assert config["identity"]["data"] == {"episodes": 11, "steps": 330}
    versions = json.loads((run / "versions.json").read_text())
    assert versions["torch"] == torch.__version__
    assert versions["threads"] == 1
    (line,) = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    assert (line["stage"], line["update"]) == ("world_model", 1)
    assert {"loss", "reward", "frames_per_second", "sampling_share", "gradient_norm", "learning_rate"} <= set(line)
    pictures = {path.name: path.read_bytes() for path in (run / "pictures").iterdir()}
    assert pictures["world_model-000001.png"].startswith(b"\x89PNG")
    assert pictures["world_model-000001.gif"].startswith(b"GIF")
    assert list((run / "events").iterdir())


@pytest.fixture(params=[1, 4, 6], ids=["tokenizer", "between", "dynamics"])
def interrupted(request: pytest.FixtureRequest, script: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that Ctrl-C stopped after so many updates."""
    count = 0
    record = script.FitMonitor.record
    handler = signal.getsignal(signal.SIGINT)

    def interrupt(self: Any, metrics: Any) -> None:
        nonlocal count
        count += 1
        if count == request.param:
            os.kill(os.getpid(), signal.SIGINT)
        record(self, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(script.FitMonitor, "record", interrupt)
        with pytest.raises(SystemExit, match=r"stopped at stage .* the same command goes on from there"):
            fit(script)
    assert signal.getsignal(signal.SIGINT) is handler
    return script


def test_after_ctrl_c_the_same_command_goes_on(interrupted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert not Path("dream").exists()
    with (RUN / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "dynamics", "update": 3, "loss": 1.0}\n{"stage": "dyn')  # as a kill leaves it
    fit(interrupted)
    assert "going on with runs/STEPVQ-Dots: stage " in capsys.readouterr().out
    assert [line["update"] for line in lines() if line["stage"] == "dynamics"][-1:] == [3]
    assert all(set(line) > {"stage", "update", "loss"} for line in lines())
    resumed = weights()
    fit(interrupted, name="whole")
    assert equal(resumed, weights())


def test_another_run_in_the_same_directory_is_refused(script: Any) -> None:
    fit(script)
    before = (RUN / "config.json").read_bytes()
    with pytest.raises(SystemExit, match=r"another run: seed was 0 and is 1[^;]*\n.*--name.*--restart"):
        fit(script, seed=1)
    with pytest.raises(SystemExit, match=r"optimization\.dynamics\.updates was 3 and is 5"):
        fit(script, dynamics_updates=5)
    assert (RUN / "config.json").read_bytes() == before
    old = weights()
    fit(script, seed=1, restart=True)
    assert not equal(weights(), old)
    Path("runs/notes").mkdir()
    Path("runs/notes/thesis.tex").write_text("years of work")
    with pytest.raises(SystemExit, match="not a run's directory"):
        fit(script, name="notes", restart=True)
    assert Path("runs/notes/thesis.tex").read_text() == "years of work"


def test_a_run_can_start_from_another(script: Any) -> None:
    fit(script)
    for number, init in enumerate([str(RUN), "dream"]):
        fit(script, init=init, name=f"again-{number}", tokenizer_updates=0, dynamics_updates=0, out=Path("copy"))
        assert equal(weights("copy"), weights("dream"))
    fit(script, init=str(RUN), name="further", tokenizer_updates=0, out=Path("further"))
    moved = {
        name.split(".")[0] for name, value in weights("further").items() if not value.equal(weights("dream")[name])
    }
    assert "sequence" in moved
    assert "tokenizer" not in moved
    with pytest.raises(SystemExit, match=r"--init dream is of another model: .* is .*, not "):
        fit(script, family="cb", init="dream", name="other")


def test_a_loss_that_is_not_finite_ends_the_run(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, segment: Any) -> LossTerms:
        return LossTerms(self.outcomes.reward.output.weight.sum() * float("nan"), {})

    with monkeypatch.context() as patch:
        patch.setattr(FrameLevelModel, "token_loss", broken)
        patch.setattr("dreamenvs.cli.fit_monitor.count_flop", lambda fit: None)
        with pytest.raises(
            SystemExit, match=r"(?s)stage 'dynamics' is nan at update 0.*\d:\d.*the last good state is in"
        ):
            fit(script)
    fit(script)
    resumed = weights()
    fit(script, name="whole")
    assert equal(resumed, weights())


def test_a_full_disk_ends_the_run_with_the_old_state(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(dreamenvs.files.atomic_directory.os, "fsync", full)
        with pytest.raises(SystemExit, match=r"No space left on device; what was there before is untouched\nmake room"):
            fit(script, save_minutes=0.0)
    fit(script, save_minutes=0.0)
    assert dreamenvs.load("dream").card["fidelity"]


def test_a_minari_data_set_becomes_a_dream(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("minari")
    from dreamenvs.data.minari import to_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    to_minari(Replay.open("data"), "dots/random-v0")
    fit(script, data=None, dataset="dots/random-v0")
    assert weights()
    assert Replay.open("data/dots-random-v0").steps == 360
    assert dreamenvs.load("dream").card["collected"][0]["dataset"] == "dots/random-v0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "dreamer"}, "unknown family 'dreamer': choose from stepvq"),
        ({"joint_updates": 3}, "--joint-updates: what is asked for is fitted with --tokenizer-updates and --dynamics"),
        ({"data": Path("nothing")}, "there are no episodes in nothing; with --env"),
    ],
)
def test_what_cannot_be_is_named(script: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        fit(script, **changes)
    assert not Path("runs").exists()


def test_one_episode_is_too_few(script: Any) -> None:
    replay = Replay.open("data")
    Replay.create("one", replay.spec).append([replay[0]])
    with pytest.raises(SystemExit, match="one has 1 episodes"):
        fit(script, data=Path("one"))


def test_the_command_of_a_missing_dream_collects_and_fits(tmp_path: Path) -> None:
    """What the error for a missing dream says, word for word, with little of everything."""
    pytest.importorskip("minatar")
    from tests.warm import run_python

    command = fitting_command("CB-MinAtarBreakout-v0")
    assert command is not None
    program, subcommand, family, flag, env_id = command.split()
    assert (program, subcommand) == ("dreamenvs", "fit")
    little = ["--collect-steps", "600", "--tokenizer-updates", "2", "--dynamics-updates", "1", "--contexts", "2"]
    arguments = [subcommand, family, flag, env_id, *little, *("--out", "dream", "--threads", "1")]
    arguments = [str(ROOT / "dreamenvs" / "cli" / "main.py"), *arguments]
    result = run_python(arguments, cwd=tmp_path, timeout=240)
    assert result.returncode == 0, result.stderr
    assert dreamenvs.load(tmp_path / "dream").model.spec.world == "MinAtarBreakout"


KILLED = """
import os, random, signal
from dreamenvs.cli import fit as script
import pytest
from tests.commands.test_fit import fit, make_small
make_small(script, pytest.MonkeyPatch())

moments, kills = random.Random(1), 0
fit(script, name="warm", tokenizer_updates=1, dynamics_updates=0)  # what torch imports late, the children need not

def fit_until(kill_at):
    fsync, calls = os.fsync, 0

    def counted(descriptor):
        nonlocal calls
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = counted
    fit(script, save_minutes=0.0, picture_minutes=0.0)

while True:
    kill_at = moments.randint(3, 30)
    child = os.fork()
    if child == 0:
        fit_until(kill_at)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
    kills += 1
print("kills", kills)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")
def test_killed_at_any_write_it_ends_with_the_same_weights(script: Any) -> None:
    result = subprocess.run(
        [sys.executable, "-c", KILLED],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.rpartition("kills ")[2]) >= 2
    fit(script)  # where the last child was killed while it measured or saved the dream
    killed = weights()
    fit(script, name="whole")
    assert equal(killed, weights())
