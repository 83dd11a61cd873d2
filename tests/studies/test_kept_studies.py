"""The reports of studies that are shipped: each figure comes out of the results of runs beside it."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

STUDIES = Path(__file__).resolve().parents[2] / "training" / "studies"
KEPT = sorted(path.parent for path in STUDIES.glob("*/runs"))


def leaves(value: Any, where: str = "") -> dict[str, Any]:
    """Every number and text by its place."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {place: leaf for key, part in parts for place, leaf in leaves(part, f"{where}/{key}").items()}
    return {where: value}


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name)
def test_a_report_is_made_again_from_the_results_beside_it(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = import_module("dreamenvs.studies.study").read_study(kept.with_suffix(".json"))
    directory = import_module("dreamenvs.studies.directory").StudyDirectory(Path("runs/studies") / study.name)
    with directory.lead(study):
        adopted = sum(directory.adopt(run, kept / "runs") for run in study.runs())
    assert adopted == len(list((kept / "runs").iterdir())) > 0
    report = import_module("dreamenvs.cli.report")
    report.main(report.Args(directory.path, out=Path("again")))
    shipped, made = (leaves(json.loads((path / "results.json").read_text())) for path in (kept, Path("again")))
    assert shipped.keys() == made.keys()
    for place, value in shipped.items():
        # Figures are rounded; another processor may sum in another order.
        assert made[place] == (pytest.approx(value, abs=2e-4) if isinstance(value, float) else value), place
    texts = [re.sub(r"\d[\d.,]*(e[+-]\d+)?", "#", (path / "report.md").read_text()) for path in (kept, Path("again"))]
    assert texts[0] == texts[1]


def test_there_is_a_study_of_all_families() -> None:
    assert STUDIES / "minatar" in KEPT
