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

import dreamenvs
from dreamenvs.envs.source import default_source, describe, make_source
from tests.small import CONFIGS, build_small, random_segment

ROOT = Path(__file__).resolve().parent.parent
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
DOCUMENTED = ("envs.conformance", "envs.loading", "envs.registration", "envs.single")
SHORT = ["--steps", "400", "--updates", "4"]
EXAMPLES = {
    "agent_in_a_dream.py": ["--updates", "2", "--episodes", "2", "--limit", "20"],
    "branch_a_dream.py": ["--moves", "2", "--depth", "4"],
    "first_steps.py": [],
    "look_at_codes.py": [],
    "minari_to_a_dream.py": SHORT,
    "own_env_to_a_dream.py": SHORT,
    "own_policy_network.py": ["--updates", "2", "--rows", "8", "--episodes", "2"],
    "random_deltas.py": ["--steps", "3"],
    "swap_the_sequence_model.py": SHORT,
}
TRAIN = "train_in_a_dream.py"  # on a small dream, in tests of its own
TRAIN_SHORT = ["--id", "small", "--steps", "4096", "--episodes", "2", "--limit", "20"]


def run(arguments: list[str], where: Path, *paths: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
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


def test_every_example_is_short_and_run() -> None:
    examples = list((ROOT / "examples").glob("*.py"))
    assert sorted(path.name for path in examples) == sorted([*EXAMPLES, TRAIN])
    assert all(len(path.read_text(encoding="utf-8").splitlines()) < 100 for path in examples)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples_run(name: str, tmp_path: Path) -> None:
    if name.startswith("minari"):
        pytest.importorskip("minari")
    assert run([str(ROOT / "examples" / name), *EXAMPLES[name]], tmp_path)


@pytest.fixture
def small_breakout(tmp_path: Path) -> Path:
    """The directory that holds the dream `small`, untrained, of a real game."""
    pytest.importorskip("minatar")
    source = default_source("MinAtar/Breakout-v1")
    spec = describe(make_source(source), world="MinAtarBreakout", source=source)
    model = build_small("STEPVQ", spec)
    contexts = random_segment(spec, rows=4, steps=2)
    contexts = contexts._replace(terminated=contexts.terminated & False)
    dreamenvs.save(tmp_path / "small", model, contexts, family="STEPVQ", config=CONFIGS["STEPVQ"], card={})
    return tmp_path


def test_a_policy_learns_in_a_dream_and_plays_the_real_game(small_breakout: Path) -> None:
    output = run([str(ROOT / "examples" / TRAIN), *TRAIN_SHORT], small_breakout)
    assert output.count("real, whole episodes") == 2
    assert (small_breakout / "dream.gif").read_bytes().startswith(b"GIF89a")
    assert (small_breakout / "dream.png").read_bytes().startswith(b"\x89PNG")


def test_a_policy_learns_in_a_dream_without_the_real_game(small_breakout: Path) -> None:
    shadow = small_breakout / "shadow"
    shadow.mkdir()
    (shadow / "minatar.py").write_text("raise ImportError('not here')", encoding="utf-8")
    output = run([str(ROOT / "examples" / TRAIN), *TRAIN_SHORT], small_breakout, shadow)
    assert 'pip install "dreamenvs[minatar]"' in output
    assert "real, whole episodes" not in output
    assert (small_breakout / "dream.png").exists()
