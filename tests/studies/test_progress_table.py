"""The table of a study, redrawn in its place."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.studies.test_study import study


class Terminal:
    """Keeps what is written, as lines that can be gone back to."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, text: str) -> None:
        self.written += text

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        lines: list[str] = []
        for part in self.written.split("\x1b["):
            up, _, text = part.partition("F") if part[:1].isdigit() else ("", "", part.removeprefix("J"))
            lines = lines[: len(lines) - int(up)] if up else lines
            lines += text.splitlines()
        return lines


def test_the_table_is_redrawn_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("dreamenvs.studies.progress_table")
    monkeypatch.setattr(module.time, "monotonic", lambda: 0.0)
    runs = list(study(families=["iris", "rem"], seeds=[0, 1]).runs())
    terminal = Terminal()
    table = module.ProgressTable(runs, Path(), {}, terminal)
    table.slots = 2
    table.set(runs[0], "running")
    table.set(runs[1], "running")
    assert table.seconds_left() is None
    table.set(runs[0], "finished", seconds=100.0)
    assert table.seconds_left() == 150.0  # three runs of 100 seconds, two at a time
    table.set(runs[1], "waiting", "it broke", seconds=10.0)
    table.set(runs[1], "failed", "it broke again", seconds=10.0)
    assert terminal.screen() == [
        "rem · Crafter · seed 0: it broke",
        "rem · Crafter · seed 0: it broke again",
        "iris  Crafter  ✓·",
        "rem  Crafter   ✗·",
        "1 of 4 finished, 1 failed, ETA 0:01:40",
    ]
    assert len(table.lines(3)) <= 3
