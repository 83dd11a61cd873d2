"""Reports: every figure against a plain computation, and in a file that can be made again."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dreamenvs.config import from_json

TRAINING = Path(__file__).resolve().parents[2] / "training"
WORLDS = ("Count/Up-v0", "Count/Down-v0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TRAINING))


def score(method: str, world: str, seed: int) -> float:
    return {"one": 1.0, "two": 3.0, "two wide": 2.0}[method] * (seed + 1) + 10 * (world == WORLDS[1])


def make_study(**changes: Any) -> Any:
    """A study whose runs are finished, but for those of seed 9."""
    values = {
        "name": "counts",
        "families": ["one", "two"],
        "worlds": list(WORLDS),
        "seeds": [0, 1, 2],
        "variants": {"": []},
        "commands": [["evaluate.py", "{family}", "--out", "{directory}", "{options}"]],
        "report": {"score": "transfer.real.mean"},
    }
    study = from_json(import_module("study").Study, values | changes, "study")
    directory = import_module("study_directory").StudyDirectory(Path("study"))
    attempt = import_module("attempt").Attempt
    with directory.lead(study):
        for run in study.runs():
            directory.prepare(run)
            value = score(run.method, run.env, run.seed)
            curve = [{"step": step, "mean": value * step / 200} for step in (100, 200, 300)[: 2 + run.seed]]
            results = {"transfer": {"real": {"mean": value}}, "curve": curve}
            outcome = attempt("failed" if run.seed == 9 else "finished", exit_code=int(run.seed == 9))
            for _ in range(3 if run.seed == 9 else 1):
                directory.record(run, outcome._replace(results=None if run.seed == 9 else json.dumps(results).encode()))
    return study


def report(*arguments: str) -> dict[str, Any]:
    module = import_module("report")
    module.main(module.Args(Path("study"), resamples=500))
    result: dict[str, Any] = json.loads(Path("study/report/results.json").read_text())
    return result


def test_a_report_states_what_the_runs_did(capsys: pytest.CaptureFixture[str]) -> None:
    study = make_study(seeds=[0, 1, 2, 9], variants={"": [], "wide": ["--wide"]}, families=["two"])
    figures = report()
    text = Path("study/report/report.md").read_text()
    printed = capsys.readouterr().out
    assert "12 of 16 runs are finished" in printed
    assert "- two wide · Count/Up-v0 · seed 9: failed" in printed
    assert figures["runs"] == {
        world: {m: [score(m, world, seed) for seed in range(3)] for m in ("two", "two wide")} for world in WORLDS
    }
    assert figures["returns"]["Count/Up-v0"]["two"]["mean"] == 6.0
    assert figures["aggregates"]["two"]["mean"]["mean"] == 11.0
    assert figures["aggregates"]["two wide"]["median"]["mean"] == 9.0
    assert "| two | 11 [" in text
    for run in study.runs():
        assert (f"runs/{run.key}/results.json\n{run.typed()[0]}" in text) == (run.seed != 9)
    assert "python training/report.py study" in text
    for name in ("aggregates", "profiles", "curves"):
        assert f"({name}.png)" in text
        assert Path(f"study/report/{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_results_make_the_same_report() -> None:
    make_study()
    report()
    first = {path.name: path.read_bytes() for path in Path("study/report").iterdir()}
    report()
    assert first == {path.name: path.read_bytes() for path in Path("study/report").iterdir()}
    assert set(first) == {"report.md", "results.json", "aggregates.png", "profiles.png", "curves.png"}


def test_one_run_has_no_interval_and_no_curve_no_plot() -> None:
    make_study(
        families=["one"], seeds=[0], worlds=["Count/Up-v0"], report={"score": "transfer.real.mean", "curve": None}
    )
    figures = report()
    assert figures["returns"]["Count/Up-v0"]["one"] == {"mean": 1.0, "low": None, "high": None}
    assert figures["improvements"] == {}
    text = Path("study/report/report.md").read_text()
    assert "| Count/Up-v0 | 1 (1) |" in text
    assert "curves.png" not in text
    assert not Path("study/report/curves.png").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": "transfer.dream.mean"}, "has no 'transfer.dream.mean': at 'dream' there is real; see `report`"),
        ({"score": "transfer.real"}, "is {'mean': 1.0}; it must be a number"),
        ({"score": "transfer.real.mean", "curve_score": "median"}, "at 'median' there is step, mean"),
    ],
)
def test_what_results_lack_is_named(settings: dict[str, str], message: str) -> None:
    make_study(report=settings)
    with pytest.raises(SystemExit, match=message):
        report()


def test_there_is_nothing_to_report_of() -> None:
    with pytest.raises(SystemExit, match="holds no study"):
        report()
    make_study(seeds=[9])
    with pytest.raises(SystemExit, match="no run of study is finished yet"):
        report()
