"""Ids, where dreams are looked for, and what is said when there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import dreamenvs
from dreamenvs.checkpoints import library
from dreamenvs.checkpoints.world_model import LIMITS
from dreamenvs.files.atomic_directory import dump_json, parse_json, read_artifact, write_artifact
from dreamenvs.ids import ATARI, DMC, FAMILIES, WORLDS, fitting_command


@pytest.fixture
def shelves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty shelves in the order they are searched."""
    places = {name: tmp_path / name for name in ("bundled", "path", "user")}
    for place in places.values():
        place.mkdir()
    monkeypatch.setattr(library, "BUNDLED", places["bundled"])
    monkeypatch.setenv("DREAMENVS_PATH", str(places["path"]))
    monkeypatch.setattr(library, "user_directory", lambda: places["user"])
    return places


def put(shelf: Path, name: str, psnr: float | None = None) -> Path:
    """Something that looks like a dream from outside."""
    path = shelf / name
    path.mkdir()
    (path / "manifest.json").write_text("{}")
    (path / "card.json").write_text(json.dumps({} if psnr is None else {"fidelity": {"psnr": psnr}}))
    return path


def test_every_family_is_registered_on_every_world() -> None:
    assert len(FAMILIES) == 10
    assert (len(ATARI), len(DMC), len(WORLDS)) == (26, 20, 52)
    for world in WORLDS:
        assert f"DreamEnv-{world}-v0" in gym.registry
        assert all(f"dreamenvs/{family}-{world}-v0" in gym.registry for family in FAMILIES)


def test_importing_registers_and_does_not_import_torch() -> None:
    code = (
        "import sys, dreamenvs, gymnasium; print('torch' in sys.modules, 'dreamenvs/REM-Pong-v0' in gymnasium.registry)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]


def test_specs_are_plain_data() -> None:
    spec = gym.spec("dreamenvs/STEPVQ-Pong-v0")
    assert "STEPVQ-Pong-v0" in spec.to_json()


def test_shelves_are_searched_in_order(shelves: dict[str, Path]) -> None:
    for name in ("user", "path", "bundled"):
        expected = put(shelves[name], "STEPVQ-Pong-v0")
        assert library.locate("dreamenvs/STEPVQ-Pong-v0") == expected
        assert library.locate("STEPVQ-Pong-v0") == expected


def test_a_missing_dream_is_one_error_that_names_the_command(shelves: dict[str, Path]) -> None:
    command = "dreamenvs fit rem --env ALE/Breakout-v5"
    for call in (dreamenvs.locate, dreamenvs.load, gym.make, gym.make_vec):
        with pytest.raises(dreamenvs.DreamNotFoundError, match=command):
            call("dreamenvs/REM-Breakout-v0")
    with pytest.raises(dreamenvs.DreamNotFoundError, match="stepvq --env MinAtar/Freeway-v1"):
        gym.make("DreamEnv-MinAtarFreeway-v0")


def test_nonsense_is_named(shelves: dict[str, Path]) -> None:
    for nonsense in ("dreamenvs/STEPVQ-Nowhere-v0", "nothing", "../secret", "a/b/c"):
        with pytest.raises(dreamenvs.DreamNotFoundError, match=nonsense):
            dreamenvs.load(nonsense)
    with pytest.raises(TypeError, match="42"):
        dreamenvs.locate(42)  # type: ignore[arg-type]


def test_dream_env_takes_the_most_faithful_dream(shelves: dict[str, Path]) -> None:
    put(shelves["bundled"], "STEPVQ-Pong-v0", psnr=20.0)
    put(shelves["user"], "CB-Pong-v0")
    assert library.locate("DreamEnv-Pong-v0").name == "STEPVQ-Pong-v0"
    best = put(shelves["user"], "REM-Pong-v0", psnr=25.0)
    put(shelves["path"], "IRIS-MinAtarPong-v0", psnr=99.0)
    assert library.locate("DreamEnv-Pong-v0") == best


def test_commands_are_spelled_as_the_script_takes_them() -> None:
    assert fitting_command("DeltaIRIS-Crafter-v0") == "dreamenvs fit deltairis --env Crafter"
    assert fitting_command("GITSTORM-CupCatch-v0") == ("dreamenvs fit gitstorm --env dm_control/ball_in_cup-catch-v0")
    assert fitting_command("STEPVQ-Pong-v1") is None


def test_the_users_directory_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert library.user_directory() == tmp_path / "dreamenvs"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert library.user_directory() == tmp_path / "local" / "dreamenvs"


def test_a_dream_on_a_shelf_has_its_id_in_every_process(tmp_path: Path) -> None:
    put(tmp_path, "STEPVQ-Pong-v7")
    put(tmp_path, "STEPVQ-MyOwnWorld-v0")
    put(tmp_path, "not a dream's name")
    code = "import dreamenvs, gymnasium as g; print([i for i in g.registry if 'MyOwn' in i or '-v7' in i or ' ' in i])"
    environment = os.environ | {"DREAMENVS_PATH": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.strip() == "['dreamenvs/STEPVQ-MyOwnWorld-v0', 'dreamenvs/STEPVQ-Pong-v7']"


def test_a_new_dream_never_takes_a_bundled_ones_name(shelves: dict[str, Path]) -> None:
    assert library.new_name("STEPVQ", "Pong") == "STEPVQ-Pong-v0"
    put(shelves["bundled"], "STEPVQ-Pong-v0")
    assert library.new_name("STEPVQ", "Pong") == "STEPVQ-Pong-v1"
    put(shelves["user"], "STEPVQ-Pong-v1")
    assert library.new_name("STEPVQ", "Pong") == "STEPVQ-Pong-v1"


def test_dream_env_considers_every_version(shelves: dict[str, Path]) -> None:
    put(shelves["bundled"], "STEPVQ-Pong-v0", psnr=20.0)
    best = put(shelves["user"], "STEPVQ-Pong-v1", psnr=25.0)
    assert library.locate("DreamEnv-Pong-v0") == best


def put_card(shelf: Path, name: str, **card: object) -> Path:
    path = put(shelf, name)
    (path / "card.json").write_text(json.dumps(card))
    return path


def test_dream_env_takes_the_best_tier_then_transfer_then_fidelity(shelves: dict[str, Path]) -> None:
    def returns(mean: float) -> dict[str, object]:
        return {"trained": {"returns": {"real": {"mean": mean}}}}

    # In this order each beats all before it.
    dreams: list[tuple[str, dict[str, object]]] = [
        ("STEPVQ", {"doctor": {"tier": "broken"}, "transfer": returns(50.0), "fidelity": {"psnr": 60.0}}),
        ("CB", {}),
        ("IRIS", {"fidelity": {"psnr": 30.0}}),
        ("REM", {"transfer": returns(-2.0), "fidelity": {"psnr": 20.0}}),
        ("CBT", {"transfer": returns(1.5), "doctor": {"tier": "nonsense"}}),
        ("STORM", {"doctor": {"tier": "demo"}}),
        ("GITSTORM", {"doctor": {"tier": "good"}}),
        ("DeltaIRIS", {"doctor": {"tier": "good"}, "fidelity": {"psnr": 10.0}}),
    ]
    for family, card in dreams:
        path = put_card(shelves["user"], f"{family}-Pong-v0", **card)
        assert library.locate("DreamEnv-Pong-v0") == path


def test_the_tier_is_listed(shelves: dict[str, Path]) -> None:
    put_card(shelves["user"], "CB-Pong-v0", doctor={"tier": "demo"})
    put_card(shelves["user"], "REM-Pong-v0", fidelity={"psnr": 1.0})
    assert [dream.tier for dream in library.available()] == ["demo", None]


@pytest.mark.parametrize("make", [gym.make, lambda name: gym.make_vec(name, num_envs=2)])
def test_opening_a_broken_dream_warns_once(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "STEPVQ-MinAtarBreakout-v8"
    shutil.copytree(dreamenvs.locate("dreamenvs/STEPVQ-MinAtarBreakout-v0"), path)
    findings = [{"fault": "rewards_leaking", "broken": True}, {"fault": "strange_frames", "broken": False}]
    write_doctor(path, {"tier": "broken", "findings": findings})
    name = dreamenvs.register(path, id="test/Broken-v0")
    with pytest.warns(UserWarning, match=r"dreamenvs/STEPVQ-MinAtarBreakout-v8 is broken \(rewards leaking\)"):
        make(name).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make(name).close()
        write_doctor(path, {"tier": "demo"})
        monkeypatch.setattr(library, "_warned", set())
        make(name).close()
    gym.registry.pop(name)


def write_doctor(path: Path, doctor: dict[str, object]) -> None:
    files = read_artifact(path, LIMITS)
    write_artifact(
        path, files | {"card.json": dump_json(parse_json(files["card.json"], "card.json") | {"doctor": doctor})}
    )
