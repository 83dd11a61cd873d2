"""The table of one dream that is drawn jointly and not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("joint_script", ROOT / "training" / "joint_and_independent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "joint_script", module)
    spec.loader.exec_module(module)
    return module


def test_every_learner_has_a_row(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minatar")
    little = {"steps": 4096, "seeds": 1, "episodes": 1, "horizon": 10}
    script.main(script.Args("dreamenvs/GRID-MinAtarAsterix-v0", **little))
    kinds = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["frames", "---", "independent", "joint"]


def test_a_dream_without_joint_frames_is_refused(script: Any) -> None:
    with pytest.raises(SystemExit, match="draws no frames jointly: its prior is a FactorizedPrior"):
        script.main(script.Args("dreamenvs/STEPVQ-MinAtarBreakout-v0"))
