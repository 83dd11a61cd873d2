"""What people copy runs: the README's Python, the docstrings' examples, the files in examples/."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import dreamenvs
from dreamenvs.cli.main import COMMANDS as COMMAND_TABLE
from dreamenvs.types import Scalar
from dreamenvs.worlds.source import default_source, describe, make_source
from tests.small import CONFIGS, build_small, random_segment

ROOT = Path(__file__).resolve().parent.parent
TEXTS = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "training/README.md"))
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXTS, re.DOTALL)
DOCUMENTED = ("envs.conformance", "checkpoints.shared_models", "envs.registration", "envs.single")
PAGES = ("README.md", "training/README.md", "training/SCALING.md", "training/studies/README.md")
SHELL = re.findall(r"```sh\n(.*?)```", "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES), re.DOTALL)
STARTS = ("dreamenvs ", "python -m dreamenvs.cli.")
COMMANDS = [line for block in SHELL for line in block.replace("\\\n", " ").splitlines() if line.startswith(STARTS)]
SHORT = ["--steps", "400", "--updates", "4"]
EXAMPLES = {
    "agent_in_a_dream.py": ["--updates", "2", "--episodes", "2", "--limit", "20"],
    "branch_a_dream.py": ["--moves", "2", "--depth", "4"],
    "first_steps.py": [],
    "look_at_codes.py": [],
    "minari_to_a_dream.py": SHORT,
    "own_env_to_a_dream.py": ["--steps", "400", "--share", "0.002", "--imagined", "2048"],
    "own_family.py": ["--steps", "400", "--share", "0.002"],
    "own_policy_network.py": ["--updates", "2", "--rows", "8", "--episodes", "2"],
    "random_deltas.py": ["--steps", "3"],
    "swap_the_sequence_model.py": SHORT,
}
TRAIN = "train_in_a_dream.py"  # on a small dream, in tests of its own
TRAIN_SHORT = ["--id", "small", "--steps", "4096", "--episodes", "2", "--limit", "20"]
CONTROL = "control_from_a_dream.py"
CONTROL_SHORT = ["small", "--horizon", "8", "--episodes", "3", "--limit", "10"]


def run(arguments: list[str], where: Path, *paths: Path) -> str:
    from tests.warm import run_python

    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    result = run_python(arguments, cwd=where, env=environment, timeout=240)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_readme_has_snippets() -> None:
    assert len(SNIPPETS) >= 3


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_readme_snippets_run(number: int, tmp_path: Path) -> None:
    run(["-c", SNIPPETS[number]], tmp_path)


def test_commands_are_written_as_they_are_installed() -> None:
    assert {line.split()[1] for line in COMMANDS} >= {
        "fit",
        "collect",
        "train",
        "online",
        "rounds",
        "evaluate",
        "study",
    }
    scripts = "|".join(path.stem for path in (ROOT / "training").glob("*.py") if path.stem != "benchmark")
    assert not [line for block in SHELL for line in re.findall(rf".*(?:training/)?(?:{scripts})\.py.*", block)]


@pytest.mark.parametrize("line", COMMANDS)
def test_documented_commands_have_these_options(line: str) -> None:
    pytest.importorskip("tyro")
    from dreamenvs.cli.command_line import parse

    first, *words = shlex.split(line, comments=True)
    if first == "dreamenvs":
        name, *words = words
        module = COMMAND_TABLE[name].module
    else:
        module, *words = words[1:]
    parse(importlib.import_module(module).Args, words)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_examples_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"dreamenvs.{name}"), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0


def test_every_example_is_short_and_run() -> None:
    examples = list((ROOT / "examples").glob("*.py"))
    assert sorted(path.name for path in examples) == sorted([*EXAMPLES, TRAIN, CONTROL])
    assert all(len(path.read_text(encoding="utf-8").splitlines()) < 100 for path in examples)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples_run(name: str, tmp_path: Path) -> None:
    if name.startswith("minari"):
        pytest.importorskip("minari")
    if name == "own_family.py":
        pytest.skip("run by the next test")
    if name.startswith("own_env"):
        pytest.importorskip("stable_baselines3")
    assert run([str(ROOT / "examples" / name), *EXAMPLES[name]], tmp_path)


def test_a_dream_of_a_family_from_outside_loads_where_the_family_is_registered(tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    example = ROOT / "examples" / "own_family.py"
    assert "GRU: PSNR" in run([str(example), *EXAMPLES[example.name]], tmp_path)
    dream = tmp_path / "dreams" / "GRU-MinAtarBreakout-v0"
    with pytest.raises(dreamenvs.CheckpointError, match="GRU"):  # nothing that the file names was imported
        dreamenvs.load(dream)
    code = f"""
import gymnasium, sys
import dreamenvs
sys.path.insert(0, {str(example.parent)!r})
from own_family import FAMILY
dreamenvs.register_family(FAMILY)
env = gymnasium.make(dreamenvs.register({str(dream)!r}))
print(env.spec.id, env.reset(seed=0)[0].shape, env.step(0)[0].shape)
"""
    assert run(["-c", code], tmp_path) == "dreamenvs/GRU-MinAtarBreakout-v0 (40, 40, 3) (40, 40, 3)\n"


def save_small(directory: Path, env_id: str, world: str, **options: Scalar) -> Path:
    """The directory that holds the dream `small`, untrained, of a real environment."""
    source = default_source(env_id)
    source = replace(source, options={**source.options, **options})
    spec = describe(make_source(source), world=world, source=source)
    model = build_small("STEPVQ", spec)
    contexts = random_segment(spec, rows=4, steps=2)
    contexts = contexts._replace(terminated=contexts.terminated & False)
    dreamenvs.save(directory / "small", model, contexts, family="STEPVQ", config=CONFIGS["STEPVQ"], card={})
    return directory


@pytest.fixture
def small_breakout(tmp_path: Path) -> Path:
    pytest.importorskip("minatar")
    return save_small(tmp_path, "MinAtar/Breakout-v1", "MinAtarBreakout")


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


@pytest.mark.parametrize(("algorithm", "steps"), [("ppo", "4096"), ("sac", "2200")])
def test_a_policy_learns_control_in_a_dream(algorithm: str, steps: str, tmp_path: Path, drawing: None) -> None:
    cartpole = save_small(tmp_path, "dm_control/cartpole-swingup-v0", "CartpoleSwingup", size=16)
    output = run(
        [str(ROOT / "examples" / CONTROL), *CONTROL_SHORT, "--algorithm", algorithm, "--steps", steps], cartpole
    )
    assert re.search(r"random policy, 3 real episodes: [\d.]+, 95 % interval [\d.]+ to [\d.]+\n", output)
    assert re.search(r"dream-trained policy, 3 real episodes: [\d.]+, 95 % interval [\d.]+ to [\d.]+\n", output)
    assert (cartpole / "control.gif").read_bytes().startswith(b"GIF89a")


def test_a_policy_learns_control_where_nothing_can_be_drawn(tmp_path: Path, drawing: None) -> None:
    cartpole = save_small(tmp_path, "dm_control/cartpole-swingup-v0", "CartpoleSwingup", size=16)
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "OpenGL.py").write_text("raise ImportError('not here')", encoding="utf-8")
    output = run(
        [str(ROOT / "examples" / CONTROL), *CONTROL_SHORT, "--algorithm", "sac", "--steps", "64"], cartpole, shadow
    )
    assert "stays open: MuJoCo cannot draw" in output
