"""What people copy runs: the README's Python, the docstrings' examples, the files in examples/."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
DOCUMENTED = ("envs.conformance", "envs.loading", "envs.registration", "envs.single")
EXAMPLES = {
    "act_for_real.py": ["--dream-steps", "4096", "--episodes", "1", "--limit", "20"],
    "branch_a_dream.py": ["--moves", "2", "--depth", "4"],
    "first_steps.py": [],
    "look_at_codes.py": [],
    "train_in_a_dream.py": ["--steps", "4096", "--horizon", "16"],
}


def run(arguments: list[str], where: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=where, env=environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_readme_has_snippets() -> None:
    assert len(SNIPPETS) >= 3


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_readme_snippets_run(number: int, tmp_path: Path) -> None:
    run(["-c", SNIPPETS[number]], tmp_path)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_examples_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"dreamenvs.{name}"), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0


def test_every_example_is_run() -> None:
    assert sorted(path.name for path in (ROOT / "examples").glob("*.py")) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples_run(name: str, tmp_path: Path) -> None:
    assert run([str(ROOT / "examples" / name), *EXAMPLES[name]], tmp_path)
    assert len((ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()) < 100
