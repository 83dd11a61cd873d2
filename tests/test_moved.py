"""Old names: imports say the new ones, and files that hold old tags are still read."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dreamenvs.checkpoints.library import BUNDLED
from dreamenvs.config import RENAMED, from_json, to_json, with_new_names
from dreamenvs.families import BY_SPELLING, FAMILIES, resolve
from dreamenvs.fitting.state import FitProgress
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.moved import MOVED
from dreamenvs.studies.study import SCRIPTS

ROOT = Path(__file__).resolve().parent.parent
OLD = {new: old for old, new in RENAMED.items()}


@pytest.mark.parametrize("old", MOVED)
def test_an_old_import_says_the_new_name(old: str) -> None:
    new = f"dreamenvs.{MOVED[old]}"
    assert importlib.util.find_spec(new) is not None
    with pytest.raises(ModuleNotFoundError, match=f"^dreamenvs.{old} is now {new}$"):
        importlib.import_module(f"dreamenvs.{old}")


def test_it_is_said_of_names_in_packages_too_and_without_torch() -> None:
    code = """
import sys, dreamenvs
try:
    from dreamenvs.agents import wandering
except ModuleNotFoundError as error:
    print(error)
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "dreamenvs.agents.wandering is now dreamenvs.agents.dream_trainer\n"


def rename(value: object) -> object:
    if isinstance(value, dict):
        return {key: OLD.get(part, part) if key == "type" else rename(part) for key, part in value.items()}
    return [rename(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "config",
    [
        TwoStageOptimization(dynamics=StageConfig(rows=3, length=2, updates=1), stale=0.5),
        FitProgress(
            seed=1, stages=("a",), updates=(2,), episodes=3, steps=4, sampler="UniformSampler", stage=0, update=1
        ),
    ],
)
def test_old_tags_are_read_and_compared_as_new_ones(config: object) -> None:
    written = to_json(config)
    old = rename(written)
    assert old != written
    assert from_json(type(config), old) == config
    assert with_new_names(old) == written


def test_the_bundled_dreams_have_old_tags() -> None:
    texts = [path.read_text(encoding="utf-8") for path in BUNDLED.glob("*/config.json")]
    assert any('"TurnsOptimization"' in text and json.loads(text) for text in texts)


def test_every_path_of_the_table_of_families_leads_somewhere() -> None:
    for entry in FAMILIES.values():
        assert resolve(entry.model).name == entry.name
        for path in (entry.small, entry.paper_agent, entry.small_agent, entry.paper_loop):
            assert resolve(path) is not None
        assert BY_SPELLING[entry.spelling] == entry.name


def test_every_script_has_its_command() -> None:
    for script, module in SCRIPTS.items():
        assert f"from {module} import Args, main" in (ROOT / "training" / script).read_text(encoding="utf-8")
