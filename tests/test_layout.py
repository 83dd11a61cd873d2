"""The layout: short files, and class names that mean one thing."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [path for part in ("dreamenvs", "training", "tests", "examples") for path in (ROOT / part).rglob("*.py")]
LINES = 400


def test_no_file_is_long() -> None:
    assert not [path for path in SOURCES if len(path.read_text(encoding="utf-8").splitlines()) > LINES]


def test_a_class_name_is_used_once_in_the_package() -> None:
    names = Counter(
        node.name
        for path in (ROOT / "dreamenvs").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} <= {"Args"}  # the options of every command
