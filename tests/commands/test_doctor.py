"""The doctor from the command line: what it prints, and what becomes of the card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import dreamenvs
from dreamenvs.checkpoints.library import describe_dream
from dreamenvs.cli import main as command

LITTLE = ["--real-steps", "200", "--dream-steps", "640", "--horizon", "10", "--learner-steps", "0"]


def test_the_tier_is_printed_and_written_into_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "STEPVQ-MinAtarBreakout-v0"
    shutil.copytree(dreamenvs.locate("dreamenvs/STEPVQ-MinAtarBreakout-v0"), path)
    before = json.loads((path / "card.json").read_text())
    assert command.main(["doctor", str(path), *LITTLE]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("tier: ")
    assert "random play, reward per 100 steps" in shown
    assert json.loads((path / "card.json").read_text()) == before
    assert describe_dream(path).tier is None
    for _ in range(2):
        assert command.main(["doctor", str(path), *LITTLE, "--write"]) == 0
    capsys.readouterr()
    card = json.loads((path / "card.json").read_text())
    assert card["doctor"]["tier"] == describe_dream(path).tier
    assert f"tier: {card['doctor']['tier']}" in shown
    assert {name: card[name] for name in before if name != "commands"} == {
        name: value for name, value in before.items() if name != "commands"
    }
    assert [line.startswith("dreamenvs doctor ") for line in card["commands"]] == [False] * len(before["commands"]) + [
        True
    ]
    assert "## Doctor" in (path / "card.md").read_text(encoding="utf-8")
    assert dreamenvs.load(path).card == card


def test_it_says_what_it_does_not_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["doctor", "dreamenvs/STEPVQ-Nowhere-v0"]) == command.USAGE_ERROR
    assert command.main(["doctor", "dreamenvs/STEPVQ-MinAtarBreakout-v0", "--horizon", "0"]) == command.USAGE_ERROR
    assert "at least 1" in capsys.readouterr().err
