"""What a study file may say, and which runs it means."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tyro

from dreamenvs.config import ConfigError, from_json
from tests.studies.test_runner import COUNTING, TRAINING, write_study
from tests.studies.test_runner import run as run_study


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("counting.py").write_text(COUNTING)


def study(**changes: Any) -> Any:
    least = {"name": "least", "families": ["iris"], "worlds": ["Crafter"]}
    return from_json(import_module("dreamenvs.studies.study").Study, least | changes, "study")


def test_a_run_is_known_by_what_it_is() -> None:
    usual = study(seeds=[3])
    (only,) = usual.runs()
    words = "train_online.py iris --env Crafter --preset small --seed 3 --threads 1"
    words += f" --name {only.key} --out runs/{only.key}/dream"
    assert only.filled() == (tuple(words.split()),)
    assert only.typed() == [f"dreamenvs online {words.removeprefix('train_online.py ')}"]
    assert only.key.startswith("iris-Crafter-s3-")
    (again,) = study(seeds=[3], name="other", retries=0).runs()
    assert again.key == only.key
    for changes in ({"threads": 2}, {"variants": {"wide": []}}, {"variants": {"": ["--wide"]}}, {"seeds": [4]}):
        (other,) = study(**({"seeds": [3]} | changes)).runs()
        assert other.key != only.key
    variants = {"a": ["{seed}", "--b", "{name}"]}
    commands = [["evaluate.py", "a{seed}", "{directory}/{family}", "{{seed}"], ["collect.py", "{options}"]]
    (inside,) = study(commands=commands, variants=variants).runs()
    first, second = inside.filled()
    assert first == ("evaluate.py", "a0", f"runs/{inside.key}/iris", "{0")
    assert second == ("collect.py", "0", "--b", inside.key)


@pytest.mark.parametrize("path", sorted((TRAINING / "studies").glob("*.json")), ids=lambda path: path.stem)
def test_the_studies_at_hand_ask_for_what_scripts_know(path: Path) -> None:
    here = import_module("dreamenvs.studies.study").read_study(path)
    methods = {run.method: run for run in here.runs()}
    assert list(methods) == here.methods()
    for run in methods.values():
        for script, *words in run.filled():
            tyro.cli(import_module(import_module("dreamenvs.studies.study").SCRIPTS[script]).Args, args=words)


def test_a_variant_may_be_of_some_families_only() -> None:
    some = study(families=["iris", "rem"], variants={"": [], "wide": ["--wide"]}, only={"wide": ["rem"]}, seeds=[0, 1])
    assert some.methods() == ["iris", "rem", "rem wide"]
    assert [(run.method, run.seed) for run in some.runs()] == [(m, s) for s in (0, 1) for m in some.methods()]


def test_a_family_may_have_options_of_its_own() -> None:
    both = study(
        families=["iris", "rem"],
        variants={"": [], "wide": ["--wide"]},
        family_options={"rem": ["--rows", "{seed}"]},
        commands=[["evaluate.py", "{directory}", "{options}"]],
        seeds=[7],
    )
    words = {run.method: run.filled()[0][2:] for run in both.runs()}
    rows = ("--rows", "7")
    assert words == {"iris": (), "iris wide": ("--wide",), "rem": rows, "rem wide": (*rows, "--wide")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family_options": {"stepvq": ["--wide"]}}, r"families are \['iris'\]"),
        ({"family": []}, "unknown key 'family'"),
        ({"families": []}, "there must be one at least"),
        ({"seeds": [1, 1]}, "none twice"),
        ({"families": ["--init"]}, "begin with a letter"),
        ({"worlds": ["{seed}"]}, "have no braces"),
        ({"variants": {"a": ["{home}"]}}, "has {home}"),
        ({"name": "../up"}, "letters, digits"),
        ({"variants": {"a/b": []}}, "name one at least"),
        ({"commands": [["evaluate.py", "{directory}", "{seed.real}"]]}, r"has {seed\.real}"),
        ({"commands": [["evaluate.py", "{directory}", "a{options}"]]}, "by itself"),
        ({"commands": [["evaluate.py"]]}, r"no command has {directory}"),
        ({"commands": [["evaluate.py", "{directory}"]], "variants": {"a": ["b"]}}, "no command has the word"),
        ({"threads": 0}, "threads must be 1"),
        ({"only": {"wide": ["iris"]}}, "variants are \\[''\\], families \\['iris'\\]"),
        ({"only": {"": ["rem"]}}, "only has \\['rem'\\] for ''"),
        ({"families": ["iris", "rem"], "only": {"": ["rem"]}}, "'iris' has no variant left"),
        ({"report": {"claims": [{"text": "t", "first": "iris", "second": "rem"}]}}, "methods are \\['iris'\\]"),
        (
            {"report": {"claims": [{"text": "t", "first": "iris", "second": "iris", "measure": "F1"}]}},
            "is about 'F1'; there are return",
        ),
    ],
)
def test_what_no_study_may_be_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(**changes)


@pytest.mark.parametrize("script", ["suite.py", "tethered.py", "../counting.py", "/bin/sh", "sh", "-c", "none.py"])
def test_only_the_scripts_for_it_are_run(script: str) -> None:
    write_study(commands=[[script, "{directory}"]])
    with pytest.raises(
        SystemExit, match=r"study\.json is no study: a command begins with .*; it must be one of .*evalu"
    ):
        import_module("dreamenvs.studies.study").read_study(Path("study.json"))


def test_a_directory_of_something_else_is_left_alone() -> None:
    write_study()
    Path("thesis").mkdir()
    Path("thesis/chapter.tex").write_text("years of work")
    assert "holds something else" in run_study("--directory", "thesis", code=1)
    assert [path.name for path in Path("thesis").iterdir()] == ["chapter.tex"]
