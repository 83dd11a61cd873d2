"""Reports: every figure against a plain computation, and in a file that can be made again."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamenvs.config import from_json

WORLDS = ("Count/Up-v0", "Count/Down-v0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def score(method: str, world: str, seed: int) -> float:
    return {"two": 3.0, "two wide": 2.0}.get(method, 1.0) * (seed + 1) + 10 * (world == WORLDS[1])


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
    study = from_json(import_module("dreamenvs.studies.study").Study, values | changes, "study")
    directory = import_module("dreamenvs.studies.directory").StudyDirectory(Path("study"))
    attempt = import_module("dreamenvs.studies.attempt").Attempt
    with directory.lead(study):
        for run in study.runs():
            directory.prepare(run)
            value = score(run.method, run.env, run.seed)
            curve = [{"step": step, "mean": value * step / 200} for step in (100, 200, 300)[: 2 + run.seed]]
            pixels = [{"psnr": None if run.seed == 2 else 20.0 - value}]
            results = {"transfer": {"real": {"mean": value}}, "curve": curve, "pixels": pixels}
            outcome = attempt("failed" if run.seed == 9 else "finished", exit_code=int(run.seed == 9))
            for _ in range(3 if run.seed == 9 else 1):
                directory.record(run, outcome._replace(results=None if run.seed == 9 else json.dumps(results).encode()))
    return study


def report() -> dict[str, Any]:
    module = import_module("dreamenvs.cli.report")
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
        world: {m: {str(seed): score(m, world, seed) for seed in range(3)} for m in ("two", "two wide")}
        for world in WORLDS
    }
    assert figures["returns"]["Count/Up-v0"]["two"]["mean"] == 6.0
    assert figures["aggregates"]["two"]["mean"]["mean"] == 11.0
    assert figures["aggregates"]["two wide"]["median"]["mean"] == 9.0
    assert "| two | 3 | 11 [" in text
    for run in study.runs():
        assert (f"runs/{run.key}/results.json\n{run.typed()[0]}" in text) == (run.seed != 9)
    assert "python -m dreamenvs.cli.report study" in text
    for name in ("returns", "aggregates", "profiles", "curves"):
        assert f"({name}.png)" in text
        assert Path(f"study/report/{name}.png").read_bytes().startswith(b"\x89PNG")


CLAIMS = [
    {"text": "two is better", "first": "two", "second": "one", "verdict": "holds"},
    {"text": "two is sharper", "first": "two", "second": "one", "measure": "PSNR", "verdict": "does not hold"},
    {"text": "two is less sharp", "first": "two", "second": "one", "measure": "PSNR", "less": True, "verdict": "holds"},
]


def test_measures_and_claims_are_held_against_the_runs() -> None:
    claims = [{key: value for key, value in claim.items() if key != "verdict"} for claim in CLAIMS]
    settings = {"score": "transfer.real.mean", "measures": {"PSNR": "pixels.0.psnr"}, "claims": claims}
    make_study(report=settings, seeds=[0, 1, 2, 3, 4])
    figures, text = report(), Path("study/report/report.md").read_text()
    # Of seed 2 there is none.
    assert figures["measures"][WORLDS[0]]["two"]["PSNR"]["mean"] == pytest.approx(20 - (3 + 6 + 12 + 15) / 4)
    assert "| two | 11 [" in text
    for claim, found in zip(CLAIMS, figures["claims"], strict=True):
        assert found["verdict"] == claim["verdict"]
        assert f"| **{claim['verdict']}** |" in text
    gap = figures["claims"][0]["differences"][WORLDS[1]]
    assert gap["mean"] == pytest.approx(9 - 3)
    assert 0 < gap["low"] < gap["mean"] < gap["high"]


def test_a_verdict_takes_more_than_a_few_runs_that_are_apart() -> None:
    """Against all ways of dealing the runs out, counted one by one."""
    module = import_module("dreamenvs.studies.report.figures")
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(0, 6, 3).astype(float), rng.integers(0, 6, 2).astype(float)) for _ in range(2)]

    def lead(first: Any, second: Any) -> int:
        return sum(int(np.sign(a - b)) for a in first for b in second)

    leads = []
    for dealt in product(*(list(combinations(range(5), 3)) for _ in pairs)):
        total = 0
        for pair, own in zip(pairs, dealt, strict=True):
            pooled = np.concatenate(pair)
            total += lead(pooled[list(own)], np.delete(pooled, own))
        leads.append(total)
    observed = sum(lead(*pair) for pair in pairs)
    won, chance = module.permutation_test(pairs)
    assert won == observed
    assert chance == pytest.approx(np.mean(np.abs(leads) >= abs(observed)))
    apart = (np.array([5.0, 6.0, 7.0]), np.array([1.0, 2.0, 3.0]))
    assert module.permutation_test([apart]) == (9, pytest.approx(0.1))
    assert module.permutation_test([apart, apart]) == (18, pytest.approx(2 / 400))
    assert module.permutation_test([apart, apart[::-1]])[1] == 1.0
    assert module.permutation_test([]) == (0, 1.0)
    alike = rng.normal(size=(2, 15))
    assert 0.05 < module.permutation_test([(alike[0], alike[1])])[1] <= 1  # too many ways to count


def test_figures_are_written_for_people() -> None:
    text, estimate = (
        import_module("dreamenvs.studies.report.text"),
        import_module("dreamenvs.evaluation.statistics").Estimate,
    )
    assert text.show(estimate(1338769.0, 1338769.0, 1338769.0)) == "1,338,769"
    assert text.show(estimate(9529.4, 893.27, 10041.6)) == "9,529 [893.3, 10,042]"
    assert text.show(estimate(-0.12345, float("nan"), float("nan"))) == "-0.1235"
    assert text.show(estimate(0.0, 0.0, 0.25)) == "0 [0, 0.25]"
    assert text.show(None) == "–"


def test_the_same_results_make_the_same_report() -> None:
    make_study()
    report()
    first = {path.name: path.read_bytes() for path in Path("study/report").iterdir()}
    report()
    assert first == {path.name: path.read_bytes() for path in Path("study/report").iterdir()}
    assert set(first) == {
        *("report.md", "results.json"),
        *("returns.png", "aggregates.png", "profiles.png", "curves.png"),
    }


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


def test_a_table_with_many_methods_has_a_line_for_each() -> None:
    families = [f"family{number}" for number in range(8)]
    make_study(families=families, seeds=[0])
    report()
    text = Path("study/report/report.md").read_text()
    assert "| world | Count/Up-v0 | Count/Down-v0 |" in text
    assert "| family7 (runs) | 1 (1) | 11 (1) |" in text


def test_there_is_nothing_to_report_of() -> None:
    with pytest.raises(SystemExit, match="holds no study"):
        report()
    make_study(seeds=[9])
    with pytest.raises(SystemExit, match="no run of study is finished yet"):
        report()


def test_aggregates_are_of_seeds_that_are_finished_in_every_world() -> None:
    compute = import_module("dreamenvs.studies.report.figures").compute
    runs = {
        "one": {"A": {0: 1.0, 1: 2.0, 2: 100.0}, "B": {1: 4.0, 0: 3.0}},
        "two": {"A": {0: 2.5}, "B": {0: 3.0}},
        "three": {"A": {0: 7.0}},
    }
    figures = compute(runs, ["A", "B"], ["one", "two", "three"], 200)
    assert figures.seeds == {"one": [0, 1], "two": [0], "three": []}
    assert figures.returns["A"]["one"].mean == pytest.approx(103 / 3)
    assert figures.aggregates["one"]["mean"].mean == 2.5
    assert figures.aggregates["one"]["iqm"].mean == 2.5
    assert list(figures.aggregates) == ["one", "two"]
    assert "optimality_gap" not in figures.aggregates["one"]  # of raw returns there is none
    # In A the one run of `two` beats both of `one`; in B it ties with one and loses to the other.
    assert figures.improvements["two"]["one"].mean == (1.0 + 0.25) / 2
    assert figures.improvements["one"]["two"].mean == 1 - (1.0 + 0.25) / 2
    assert figures.profiles["one"].shares[0] == 1.0
    assert figures.profiles["one"].shares[-1] == 0.0


def test_before_a_seed_is_finished_everywhere_there_are_returns_alone() -> None:
    make_study(families=["one"], seeds=[0], worlds=[*WORLDS, "Count/On-v0"])
    for path in Path("study").glob("one-Count-On*/results.json"):
        path.unlink()
    figures = report()
    assert figures["aggregates"] == {}
    assert list(figures["returns"]) == list(WORLDS)
    text = Path("study/report/report.md").read_text()
    assert "- one · Count/On-v0 · seed 0: not finished" in text
    assert "there are no aggregates" in text


def test_games_are_normalised_and_stand_beside_the_papers() -> None:
    make_study(families=["iris", "stepvq"], seeds=[0, 1], worlds=["ALE/Pong-v5", "ALE/Boxing-v5"])
    figures = report()
    assert figures["unit"] == "human-normalised score"
    # Random actions earn -20.7 and 0.1 in these games, people 14.6 and 12.1; the runs earn 1 and 2.
    expected = np.mean([[(s + 20.7) / (14.6 + 20.7), (s - 0.1) / (12.1 - 0.1)] for s in (1, 2)])
    assert figures["aggregates"]["iris"]["mean"]["mean"] == pytest.approx(expected, abs=1e-4)
    assert figures["aggregates"]["iris"]["optimality_gap"]["mean"] == pytest.approx(1 - expected, abs=1e-4)
    pong, boxing = figures["published"]["ALE/Pong-v5"], figures["published"]["ALE/Boxing-v5"]
    assert (pong["IRIS"]["episode_return"], boxing["IRIS"]["episode_return"]) == (14.6, 70.1)
    assert pong["IRIS"]["source"].endswith("of the REM paper, which quotes it")
    assert pong["STEP-VQ-M"]["normalized"] == 1.167
    assert pong["STEP-VQ-M"]["episode_return"] == pytest.approx(-20.7 + 1.167 * 35.3, abs=1e-4)
    assert figures["published_aggregates"]["STEP-VQ-M"]["mean"] == pytest.approx((1.167 + 7.244) / 2, abs=1e-4)
    text = Path("study/report/report.md").read_text()
    assert "| STEP-VQ-M, published, the same worlds | – | 4.205 | 4.205 | – | – |" in text
    assert "- STEP-VQ-M, published: table 1 of the STEP-VQ paper, from normalised scores" in text


def test_what_papers_state_is_found_for_every_family() -> None:
    module, catalog = import_module("dreamenvs.studies.report.published"), import_module("dreamenvs.ids")
    families = [name for name in import_module("dreamenvs.families").BY_SPELLING if name != "grid"]  # of no paper
    assert set(families) == set(module.ATARI_COLUMNS)
    for world, env in catalog.WORLDS.items():
        cited = [family for family in families if module.cite(family, env) is not None]
        if world in catalog.ATARI:
            assert len(cited) >= len(families) - 1, (world, cited)  # but for a cell that could not be read
        else:
            assert cited == (["storm", "gitstorm"] if world in catalog.DMC else []), world
    assert module.cite_curve("deltairis", "Crafter").steps == (1e6, 5e6, 1e7)
    assert module.cite_curve("iris", "Crafter") is None


def test_the_mean_curve_is_where_all_runs_have_been() -> None:
    curve = import_module("dreamenvs.studies.report.figures").Curve
    runs = [
        curve(np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 4.0])),
        curve(np.array([5.0, 10.0]), np.array([1.0, 3.0])),
    ]
    found = import_module("dreamenvs.studies.report.plots").mean_curve(runs)
    assert found.steps.tolist() == [5.0, 10.0]
    assert found.scores.tolist() == [0.75, 2.0]
