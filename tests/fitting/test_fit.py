"""A fit goes through its stages, and goes on after anything exactly as if nothing had happened."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dreamenvs.files.atomic_directory
from dreamenvs.data.episode import Episode
from dreamenvs.data.samplers import CountSampler, FrequencySampler, Sampler, UniformSampler
from dreamenvs.files.atomic_directory import ArtifactError
from dreamenvs.fitting.fit import Fit
from dreamenvs.fitting.optimizer import NonFiniteLossError
from dreamenvs.fitting.state import StateError, read_progress, read_weights
from dreamenvs.fitting.token_cache import prepare_episodes
from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig
from dreamenvs.types import LossTerms, Segment
from tests.small import CONFIGS, DISCRETE

ROOT = Path(__file__).resolve().parent.parent.parent
TURNS = TwoStageOptimization(
    tokenizer=StageConfig(rows=4, length=1, updates=4, warmup=2),
    dynamics=StageConfig(rows=3, length=6, updates=4, warmup=2, weight_decay=1e-3),
)
JOINT = JointOptimization(rows=2, length=5, updates=5, warmup=2)
CROSS_ENTROPY = FactorizedConfig(objective=CrossEntropyObjective())
LONGER = replace(TURNS, dynamics=StageConfig(rows=1, length=2, updates=9))
SAMPLERS: dict[str, type[Sampler]] = {"uniform": UniformSampler, "count": CountSampler, "frequency": FrequencySampler}


def noise_episodes(count: int = 5, seed: int = 0) -> list[Episode]:
    rng = np.random.default_rng(seed)
    channels, height, width = DISCRETE.observation_shape
    episodes = []
    for steps in rng.integers(4, 12, count).tolist():
        ends = np.arange(steps) == steps - 1
        episodes.append(
            Episode(
                observations=rng.integers(0, 256, (steps + 1, height, width, channels), np.uint8),
                actions=rng.integers(0, 4, steps),
                rewards=rng.normal(size=steps).astype(np.float32),
                terminated=ends,
                truncated=np.zeros(steps, bool),
            )
        )
    return episodes


def build(optimization: Any = TURNS, family: str = "STEPVQ") -> Any:
    prior = CROSS_ENTROPY if optimization is TURNS else CONFIGS[family].prior
    config = replace(CONFIGS[family], optimization=optimization, prior=prior)
    # Codes that are revived draw from torch's generator, as dropout does.
    if family == "STEPVQ":
        config = replace(config, tokenizer=replace(config.tokenizer, revival=0.5))
    torch.manual_seed(7)
    return FAMILIES[family].build(config, DISCRETE)


def new_fit(optimization: Any = TURNS, family: str = "STEPVQ", sampler: str = "uniform", seed: int = 3) -> Fit:
    return Fit(build(optimization, family), noise_episodes(), seed=seed, sampler=SAMPLERS[sampler]())


def weights(fit: Fit) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in fit.model.state_dict().items()}  # type: ignore[attr-defined]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_stages_come_in_turn_and_tell() -> None:
    fit = new_fit()
    start = weights(fit)
    metrics = list(fit.run())
    assert [(each.stage, each.update, each.updates) for each in metrics] == [
        (stage, update, 4) for stage in ("tokenizer", "dynamics") for update in (1, 2, 3, 4)
    ]
    assert metrics[0].frames == 4
    assert 3 * 4 <= metrics[-1].frames <= 3 * 6
    assert set(metrics[0].parts) == {"reconstruction", "commitment"}
    assert set(metrics[-1].parts) == {"dynamics", "reward", "termination"}
    assert metrics[0].learning_rate == pytest.approx(5e-4)
    assert metrics[0].update_seconds > 0
    assert fit.finished
    assert not list(fit.run())
    moved = {name.split(".")[0] for name, value in weights(fit).items() if not torch.equal(value, start[name])}
    assert moved == {"tokenizer", "mixer", "sequence", "prior", "outcomes"}


def test_the_dynamics_leave_the_tokenizer_alone_and_see_its_tokens() -> None:
    fit = new_fit()
    metrics = fit.run()
    for _ in range(4):
        next(metrics)
    tokenizer = {name: value for name, value in weights(fit).items() if name.startswith("tokenizer")}
    tokens = fit.example().observations
    assert tokens.dtype == torch.int64
    assert tokens.shape == (3, 6, fit.model.num_tokens)
    assert 1 < len(tokens.unique()) <= fit.model.vocabulary
    list(metrics)
    assert all(torch.equal(weights(fit)[name], value) for name, value in tokenizer.items())


def test_prepared_tokens_are_those_of_the_frames() -> None:
    model, episodes = build().eval(), noise_episodes(60)
    assert sum(len(episode.observations) for episode in episodes) > 256  # more than one batch
    prepared = prepare_episodes(model.tokenizer.encode, episodes)
    for episode, coded in zip(episodes, prepared, strict=True):
        frames = torch.from_numpy(episode.observations).permute(0, 3, 1, 2)
        tokens = coded.observations.reshape(len(frames), -1).view(np.int16)
        with torch.no_grad():
            assert (model.tokenizer.encode(frames).numpy() == tokens).mean() > 0.99  # ties may fall either way
        assert coded.actions is episode.actions
    with pytest.raises(ValueError, match="40000 is too large"):
        prepare_episodes(lambda frames: torch.full((len(frames), 2), 40_000), episodes)


@pytest.mark.parametrize(
    ("optimization", "family", "sampler"),
    [
        (TURNS, "STEPVQ", "uniform"),
        (TURNS, "STEPVQ", "count"),
        (JOINT, "CBT", "frequency"),
        (JOINT, "STORM", "uniform"),
    ],
    ids=["turns", "turns-count", "joint-frequency", "joint-storm"],
)
def test_resumed_after_any_update_the_weights_are_the_same(
    optimization: Any, family: str, sampler: str, tmp_path: Path
) -> None:
    whole = new_fit(optimization, family, sampler)
    losses = []
    whole.save(tmp_path / "0")
    for number, metrics in enumerate(whole.run(), 1):
        losses.append(metrics.loss)
        whole.save(tmp_path / str(number))
    for number in range(len(losses) + 1):
        torch.manual_seed(number)  # nothing of the process may matter
        resumed = new_fit(optimization, family, sampler)
        resumed.load(tmp_path / str(number))
        assert [metrics.loss for metrics in resumed.run()] == losses[number:]
        assert equal(weights(resumed), weights(whole))
        assert resumed.finished


def test_the_callers_random_numbers_do_not_matter_and_are_left_alone() -> None:
    one, other = new_fit(), new_fit()
    list(one.run())
    for number, _ in enumerate(other.run()):
        other.model.eval()  # type: ignore[attr-defined]
        torch.manual_seed(number)
        np.random.seed(number)
        if not other.finished:
            other.example()
        torch.rand(number + 1)
    assert equal(weights(one), weights(other))
    torch.manual_seed(5)
    expected = torch.rand(3)
    fit = new_fit()
    torch.manual_seed(5)
    list(fit.run())
    assert torch.equal(torch.rand(3), expected)


def test_seeds_make_a_difference() -> None:
    one, other = new_fit(seed=3), new_fit(seed=4)
    list(one.run())
    list(other.run())
    assert not equal(weights(one), weights(other))


def test_a_stage_without_updates_is_skipped(tmp_path: Path) -> None:
    skipping = replace(TURNS, tokenizer=replace(TURNS.tokenizer, updates=0))
    fit = Fit(_with(skipping), noise_episodes())
    assert {metrics.stage for metrics in fit.run()} == {"dynamics"}
    fit.save(tmp_path / "state")
    assert read_progress(tmp_path / "state").stage == 2
    assert equal(read_weights(tmp_path / "state"), weights(fit))


def _with(optimization: TwoStageOptimization) -> Any:
    torch.manual_seed(7)
    config = replace(CONFIGS["STEPVQ"], prior=CROSS_ENTROPY, optimization=optimization)
    return FAMILIES["STEPVQ"].build(config, DISCRETE)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: new_fit(seed=4), "its seed is 3, not 4"),
        (lambda: new_fit(JOINT), "its stages is"),
        (lambda: new_fit(sampler="count"), "its sampler is 'UniformSampler'"),
        (lambda: Fit(build(), noise_episodes(6), seed=3), "its episodes is 5, not 6"),
        (lambda: Fit(_with(LONGER), noise_episodes(), seed=3), "its updates is"),
        (lambda: Fit(build(family="CB"), noise_episodes(), seed=3), "is of another model"),
    ],
)  # fmt: skip
def test_the_state_of_another_fit_is_refused(other: Any, message: str, tmp_path: Path) -> None:
    new_fit().save(tmp_path / "state")
    fit = other()
    before = weights(fit)
    with pytest.raises(StateError, match=message):
        fit.load(tmp_path / "state")
    assert equal(weights(fit), before)


def test_damage_is_found(tmp_path: Path) -> None:
    fit = new_fit()
    next(fit.run())
    fit.save(tmp_path / "state")
    path = tmp_path / "state" / "optimizer.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="optimizer"):
        new_fit().load(tmp_path / "state")


def test_a_loss_that_is_not_finite_names_the_batch_and_spares_the_state(tmp_path: Path) -> None:
    fit = new_fit()
    metrics = fit.run()
    for _ in range(5):
        next(metrics)
    fit.save(tmp_path / "state")
    before = weights(fit)
    healthy = fit.stages[1].loss

    def broken(segment: Segment) -> LossTerms:
        return LossTerms(healthy(segment).total * float("inf"), {"dynamics": torch.tensor(float("nan"))})

    object.__setattr__(fit.stages[1], "loss", broken)
    expected = r"stage 'dynamics' is inf at update 1 \(dynamics nan\), on the batch \(episode:first step\) \d:\d, \d:\d"
    with pytest.raises(NonFiniteLossError, match=expected):
        next(metrics)
    assert equal(weights(fit), before)
    object.__setattr__(fit.stages[1], "loss", healthy)
    resumed, whole = new_fit(), new_fit()
    resumed.load(tmp_path / "state")
    assert len(list(resumed.run())) == 3
    list(whole.run())
    assert equal(weights(resumed), weights(whole))


def test_a_full_disk_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = new_fit()
    fit.save(tmp_path / "state")
    next(fit.run())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dreamenvs.files.atomic_directory.os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device; what was there before is untouched"):
            fit.save(tmp_path / "state")
    assert read_progress(tmp_path / "state").update == 0
    fit.save(tmp_path / "state")
    assert read_progress(tmp_path / "state").update == 1


def test_a_read_only_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the refusal is what the system would give anybody else."""
    fit = new_fit()
    fit.save(tmp_path / "state")
    mkdir = os.mkdir

    def refused(path: Any, *args: Any, **kwargs: Any) -> None:
        if Path(os.fsdecode(path)).parent == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(dreamenvs.files.atomic_directory.os, "mkdir", refused)
    with pytest.raises(OSError, match="untouched"):
        fit.save(tmp_path / "state")
    assert read_progress(tmp_path / "state").update == 0


KILLED = """
import os, random, signal, sys, torch
from pathlib import Path
from dreamenvs.files.atomic_directory import is_artifact
from tests.fitting.test_fit import new_fit

def resume(state, kill_at):
    fit, fsync, calls = new_fit(), os.fsync, 0
    if is_artifact(state):
        fit.load(state)

    def counted(descriptor):
        nonlocal calls
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = counted
    for metrics in fit.run():
        fit.save(state)

torch.set_num_threads(1)
next(new_fit().run())  # what torch imports at its first update, the children need not import
state, moments, kills = Path(sys.argv[1]), random.Random(0), 0
while True:
    # Before, in and after a save; how many writes a save has, is the same on every machine.
    kill_at = moments.randint(3, 24)
    child = os.fork()
    if child == 0:
        resume(state, kill_at)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
    kills += 1
print(kills)
"""


@pytest.mark.timeout(120)
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")
def test_killed_at_any_write_the_weights_are_the_same(tmp_path: Path) -> None:
    whole = new_fit()
    list(whole.run())
    state = tmp_path / "state"
    command = [sys.executable, "-c", KILLED, str(state)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert int(result.stdout) >= 2
    final = new_fit()
    final.load(state)
    assert final.finished
    assert equal(weights(final), weights(whole))
