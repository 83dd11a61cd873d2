"""The script that goes round: collect, fit, learn in the dream, collect again."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path

import pytest

import dreamenvs
from dreamenvs.data.replay import Replay

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "--rounds 2 --steps 300 --tokenizer-updates 2 --dynamics-updates 2 --ppo-steps 256 --episodes 2 --num-envs 4 "
    "--contexts 8 --ppo.num-envs 8 --ppo.n-steps 16 --ppo.batch-size 64 --ppo.horizon 20 --ppo.units 8 --seed 3 "
    "--preset cells --policy persistent --rows 4 --frame-weight 0.1"
)


def run(folder: Path) -> str:
    from tests.warm import run_python

    command = [str(ROOT / "training" / "rounds.py"), "stepvq", *SMALL.split(), "--out", "dream"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = run_python(command, cwd=folder, env=environment, timeout=240)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_two_rounds_end_in_a_dream_and_are_not_done_again(tmp_path: Path) -> None:
    output = run(tmp_path)
    assert "round 2 of 2" in output
    data = tmp_path / "runs" / "STEPVQ-MinAtarBreakout-rounds" / "data"
    notes = Replay.open(data).notes
    assert [(note["policy"], note["round"], note["steps"]) for note in notes] == [
        ("persistent", 0, 300),
        ("EpsilonPolicy", 1, 300),
    ]
    dream = dreamenvs.load(tmp_path / "dream")
    assert dream.card["data"]["real_steps"] == 600
    assert dream.card["fitting"]["tokenizer_updates"] == 0  # it was fitted in the first round, and then stayed
    assert dream.card["commands"][0].startswith("dreamenvs rounds stepvq --rounds 2")
    config = dream.config
    assert (config.tokenizer.codes, config.optimization.dynamics.rows) == (16, 4)
    assert config.prior.objective.weight == 0.1
    manifest = (tmp_path / "dream" / "manifest.json").read_bytes()
    first = tmp_path / "runs" / "STEPVQ-MinAtarBreakout-rounds" / "round0" / "dream" / "weights.safetensors"
    written = first.stat().st_mtime_ns
    assert json.loads((first.parent / "card.json").read_text())["fitting"]["tokenizer_updates"] == 2

    run(tmp_path)
    assert Replay.open(data).notes == notes
    assert first.stat().st_mtime_ns == written
    assert (tmp_path / "dream" / "manifest.json").read_bytes() == manifest


def test_what_is_fitted_all_at_once_has_no_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    rounds = import_module("dreamenvs.cli.rounds")
    with pytest.raises(SystemExit, match=r"storm is fitted all at once; use dreamenvs fit"):
        rounds.main(rounds.Args("storm"))
    assert not list(tmp_path.iterdir())
