"""The benchmark prints what it promises; how fast the machine is, is no business of a test."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.small import CONFIGS, DISCRETE, build_small

ROOT = Path(__file__).resolve().parent.parent.parent


class Past(NamedTuple):
    """The state of a Reading world."""

    frames: torch.Tensor  # (B, up to 5)


class Reading:
    """A world whose step multiplies all of the last 5 frames."""

    spec = DISCRETE

    def observe(self, context: Any) -> Past:
        return Past(torch.zeros(context.actions.shape))

    def step(self, state: Past, actions: Any, noise: Any) -> tuple[Past, None]:
        frames = torch.cat([state.frames, torch.zeros(len(actions), 1)], 1)[:, -5:]
        torch.mm(frames, torch.zeros(frames.shape[1], 1))
        return Past(frames), None


def run(*arguments: str) -> Any:
    from tests.warm import run_python

    result = run_python([str(ROOT / "training" / "benchmark.py"), *arguments, "--json"])
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the benchmark, with models as small as the tests' and episodes of two steps."""
    monkeypatch.syspath_prepend(str(ROOT / "training"))
    dreams = import_module("benchmarks.dreams")
    rollouts = import_module("dreamenvs.evaluation.rollouts")
    fit = import_module("benchmarks.fit")
    for module in (dreams, fit):
        monkeypatch.setattr(module, "build_preset", lambda family, preset: build_small(family))
        monkeypatch.setattr(module, "gemm_seconds", lambda: [0.1])
    monkeypatch.setattr(dreams, "build", lambda family, config: build_small(family))
    monkeypatch.setattr(dreams, "imagination_of", lambda family: rollouts.Imagination(2, 2))
    monkeypatch.setattr(rollouts, "PATIENCE", 8)
    return {"dreams": dreams, "rollouts": rollouts, "fit": fit, "benchmark": import_module("benchmark")}


def quotient(first: float, second: float, rel: float) -> Any:
    """What a ratio must be, of times that were rounded to hundredths: on fast machines little is left of them."""
    if second <= 0.005:
        return pytest.approx(0.0, abs=math.inf)
    return pytest.approx(first / second, rel=rel, abs=0.005 * (1 + first / second) / second)


def test_parameters_prints_the_papers_counts() -> None:
    counts = {(row["family"], row["frame"]): row["bottleneck_and_head"] for row in run("parameters")}
    assert counts["STEPVQ", "64x64"] == 2_175_616
    assert counts["CB", "64x64"] == 8_919_552
    assert counts["STEPVQ", "96x96"] < counts["CB", "96x96"]


def test_imagination_measures_against_the_peak_of_the_same_run() -> None:
    tokens, pixels = run("imagination", "--rows", "2", "--families", "STEPVQ", "--seconds", "0.1")
    assert (tokens["shows"], pixels["shows"]) == ("tokens", "pixels")
    assert (tokens["frames_behind"], tokens["horizon"]) == (4, 16)
    assert pixels["mflop_per_step"] > tokens["mflop_per_step"] == pytest.approx(26.12, abs=0.01)
    for row in (tokens, pixels):
        share = row["mflop_per_step"] * row["env_steps_per_second"] / 1e3 / row["peak_gflops"]
        assert abs(share - row["share_of_peak"]) < 0.05 * share + 0.002
        ratio = row["env_steps_per_second"] / row["peak_gflops"]
        assert row["steps_per_second_per_peak_gflops"] == pytest.approx(ratio, rel=0.05, abs=1e-3)


def test_every_family_is_imagined_and_a_window_is_filled_where_there_is_one(scripts: Any) -> None:
    rows = scripts["dreams"].measure_imagination(tuple(CONFIGS), "paper", (1, 3), 0.0)
    assert {row["family"] for row in rows} == set(CONFIGS)
    mamba = [row for row in rows if row["family"] == "STEPVQ"]
    assert [(row["rows"], row["shows"]) for row in mamba] == [
        (1, "tokens"),
        (1, "pixels"),
        (3, "tokens"),
        (3, "pixels"),
    ]
    assert all(row["env_steps_per_second"] > 0 for row in rows)


def test_a_window_shows_in_what_a_step_costs(scripts: Any) -> None:
    fill = scripts["rollouts"].fill_window
    moment = fill(Reading(), 2)
    assert moment.state.frames.shape == (8, 5)
    assert moment.frames >= 5
    assert fill(build_small("STEPVQ"), 2) is None


def test_two_models_are_compared(scripts: Any) -> None:
    contender = scripts["dreams"].Contender
    pair = contender("Mamba-2", "STEPVQ", None), contender("Transformer", "CBT", None)
    first, second = scripts["dreams"].compare(*pair, count=1, seconds=0.0)
    assert (first["model"], second["model"]) == ("Mamba-2", "Transformer")
    assert (first["tokens_of_a_frame"], second["tokens_of_a_frame"]) == (12, 8)
    ratio = first["env_steps_per_second"] / second["env_steps_per_second"]
    assert first["times_faster"] == pytest.approx(ratio, rel=0.05, abs=0.02)


def test_the_sequence_model_alone(scripts: Any) -> None:
    rows = scripts["dreams"].measure_core(("STEPVQ", "STEPVQT"), "paper", (2,), 0.0)
    assert {row["family"] for row in rows} == {"STEPVQ", "STEPVQT"}
    assert all(row["frames_behind"] >= 20 and row["mflop_per_step"] > 0 for row in rows)


def test_the_environment_beside_the_model(scripts: Any) -> None:
    (row,) = scripts["dreams"].measure_env(("CB",), "paper", 0.0, count=4)
    assert row["ratio"] == quotient(row["env_ms"], row["model_ms"], rel=0.1)


def test_a_long_dream(scripts: Any) -> None:
    for row in scripts["dreams"].measure_endless(("STEPVQ", "STEPVQT"), "paper", 0.0, (10, 30)):
        assert row["state_mib_at_10"] == row["state_mib_at_30"] > 0
        assert row["process_mib_at_30"] > 50
        assert row["ratio"] == quotient(row["ms_at_30"], row["ms_at_10"], rel=0.1)


def test_fitting_every_family(scripts: Any) -> None:
    rows = scripts["fit"].measure_fit(tuple(CONFIGS), ("paper",), updates=2, max_frames=128)
    assert list(dict.fromkeys(row["family"] for row in rows)) == list(CONFIGS)
    assert [(row["stage"], row["rows"], row["length"]) for row in rows if row["family"] == "STEPVQ"] == [
        ("world_model", "2 of 16", 64)
    ]
    for row in rows:
        assert row["frames_per_second"] * (row["update_seconds"] - 0.0005) <= 128 * 1.05  # seconds are rounded
        assert row["gflop_per_update"] >= 0
        assert row["peak_mib"] > 50


def test_fitting_in_turns() -> None:
    tokenizer, dynamics = run("fit", "--preset", "small", "--families", "STEPVQ", "--updates", "1")
    assert (tokenizer["stage"], dynamics["stage"]) == ("tokenizer", "dynamics")
    assert (tokenizer["rows"], dynamics["rows"]) == ("32", "8 of 32")


def test_what_cannot_be_measured_is_said(scripts: Any) -> None:
    benchmark = scripts["benchmark"]
    with pytest.raises(SystemExit, match="not NoSuch"):
        benchmark.measure(benchmark.Args("imagination", families=("NoSuch",)))


def test_an_agent_beside_its_model(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = import_module("benchmarks.agents")
    monkeypatch.setattr(agents, "build_preset", lambda family, preset: build_small(family))
    rows = agents.measure_agents(("STEPVQ", "REM"), "small", (), 8, 0.0)
    assert [(row["model"], row["agent"]) for row in rows] == [
        ("STEPVQ, small", "LatentConfig"),
        ("REM, small", "RecurrentConfig"),
    ]
    for row in rows:
        assert row["ratio"] == quotient(row["imagine_ms"], row["model_ms"], rel=0.1)
        assert row["learn_ms"] > 0
