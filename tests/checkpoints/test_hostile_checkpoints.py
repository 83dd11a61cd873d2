"""Checkpoints of strangers: what is damaged, too large or malicious is refused."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dreamenvs.checkpoints.world_model import (
    LIMITS,
    CheckpointError,
)
from dreamenvs.files.atomic_directory import dump_json, parse_json
from tests.checkpoints.test_world_model import (
    CONTEXTS,
    WEIGHTS,
    edit_tensors,
    load,
    save,
    sign,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "dream")
    return tmp_path / "dream"


def edit_json(path: Path, name: str, edit: Callable[[Any], Any]) -> None:
    value = parse_json((path / name).read_bytes(), name)
    edit(value)
    (path / name).write_bytes(dump_json(value))
    sign(path)


@pytest.mark.parametrize(
    ("name", "edit", "sentence"),
    [
        ("config.json", lambda v: v.update(format=3), "config.json has format 3.*upgrade dreamenvs"),
        ("config.json", lambda v: v.update(family="os.system"), "'os.system'; known are TOY"),
        ("config.json", lambda v: v.update(family=[]), "must hold a format, a family and a config"),
        ("config.json", lambda v: v.update(build="os:system"), "must hold a format, a family and a config"),
        ("config.json", lambda v: v["config"].update(type="builtins.eval"), "config.type is 'builtins.eval'"),
        ("config.json", lambda v: v["config"].update(_target_="os.system"), "unknown key '_target_'"),
        ("config.json", lambda v: v["config"].update(layers=10**9), "config.layers is 1000000000; a model's integers"),
        ("config.json", lambda v: v["config"].update(layers=10**6), "more layers than there are weights"),
        ("config.json", lambda v: v["config"].update(layers=3), "'layers.2.weight' is missing"),
        ("config.json", lambda v: v["config"].update(layers=1), "'layers.1.bias' is not part of the model"),
        ("config.json", lambda v: v["config"].update(layers=0), "no model can be built from this config"),
        ("config.json", lambda v: v["config"].update(width=10**6), r"\(4, 4\) torch.float32, the config asks for"),
        ("config.json", lambda v: v["config"].update(width=-1), "no model can be built from this config"),
        ("config.json", lambda v: v["config"].update(window=10**6), "buffers far larger than the weights"),
        (
            "spec.json",
            lambda v: v.update(observation_shape=[1, 2, 4]),
            "packed frames do not unpack to exactly 64 bytes",
        ),
        ("spec.json", lambda v: v["actions"].update(count=2), "an action is 2, outside of"),
        ("spec.json", lambda v: v["actions"].update(count=10**6), "'actions.weight' is"),
        ("spec.json", lambda v: v.update(source="os:system"), "spec.source is 'os:system'"),
        ("card.json", lambda v: v.update(deep=[[[[[[[[[[0]]]]]]]]]]), None),
        ("card.json", lambda v: v.update(big=2**64), "card.big is an integer of 65 bits"),
    ],
)
def test_hostile_json(path: Path, name: str, edit: Callable[[Any], Any], sentence: str | None) -> None:
    load(path)  # sound before; and torch imports what it needs for the meta device once, which is not to be timed
    started = time.process_time()
    load(path)
    sound = time.process_time() - started
    edit_json(path, name, edit)
    if sentence is None:
        load(path)
        return
    started = time.process_time()
    with pytest.raises(CheckpointError, match=sentence) as caught:
        load(path)
    assert str(path) in str(caught.value)
    # No work is done for what the file claims: this holds on slow machines, and on busy ones.
    assert time.process_time() - started < max(5, 100 * sound)


@pytest.mark.parametrize("text", [b"[" * 10**5, b"null", b"[]", b'"x"', b'{"format": 1, "format": 1}', b"NaN", b""])
@pytest.mark.parametrize("name", ["config.json", "spec.json", "card.json"])
def test_json_of_another_kind(path: Path, name: str, text: bytes) -> None:
    (path / name).write_bytes(text)
    sign(path)
    with pytest.raises(CheckpointError, match=name):
        load(path)


@pytest.mark.parametrize(
    ("name", "edit", "sentence"),
    [
        (WEIGHTS, lambda t: t["layers.0.bias"].fill_(float("nan")), "'layers.0.bias' holds NaN or infinity"),
        (WEIGHTS, lambda t: t.update(extra=torch.zeros(1)), "'extra' is not part of the model"),
        (WEIGHTS, lambda t: t.pop("count"), "'count' is missing"),
        (WEIGHTS, lambda t: t.update(count=torch.zeros(())), r"'count' is \(\) torch.float32"),
        (WEIGHTS, lambda t: t.update({"layers.0.bias": torch.zeros(4).double()}), "'layers.0.bias' is"),
        (WEIGHTS, lambda t: t.update({"layers.0.bias": torch.zeros(4, 1)}), r"is \(4, 1\)"),
        (WEIGHTS, dict.clear, "is missing"),
        (CONTEXTS, lambda t: t.pop("valid"), "must hold observations, actions, rewards, terminated, valid"),
        (CONTEXTS, lambda t: t.update(more=torch.zeros(1)), "must hold observations"),
        (CONTEXTS, lambda t: t["actions"].fill_(-1), "an action is -1, outside of"),
        (CONTEXTS, lambda t: t.update(actions=t["actions"].int()), "actions are .* the spec asks for"),
        (CONTEXTS, lambda t: t["valid"][0].fill_(False), "padding on the left alone"),
        (CONTEXTS, lambda t: t["terminated"].view(torch.uint8).fill_(2), "no booleans"),
        (CONTEXTS, lambda t: t["rewards"].fill_(float("inf")), "'rewards' holds NaN or infinity"),
        (CONTEXTS, lambda t: t.update(rewards=torch.zeros(2, 0)), "rewards have shape"),
        (CONTEXTS, lambda t: t.update(rewards=torch.zeros(2, 3)), "do not unpack to exactly 36 bytes"),
        (CONTEXTS, lambda t: t.update(rewards=torch.zeros(2, 5)), "do not unpack to exactly 60 bytes"),
        (CONTEXTS, lambda t: t.update(observations=t["observations"][:9]), "do not unpack to exactly 48 bytes"),
        (CONTEXTS, lambda t: t["observations"].fill_(7), "packed frames are damaged"),
        (CONTEXTS, lambda t: t.update(observations=t["observations"].float()), "bytes in a row"),
    ],
)
def test_hostile_tensors(path: Path, name: str, edit: Callable[[dict[str, Tensor]], object], sentence: str) -> None:
    edit_tensors(path, name, edit)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        load(path)
    assert name in str(caught.value)


def test_frames_unpack_to_a_bounded_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dreamenvs.checkpoints.world_model.MAX_FRAME_BYTES", 47)
    with pytest.raises(CheckpointError, match="are more than 47 bytes"):
        load(path)


class Exploit:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.canary),)


@pytest.mark.parametrize("name", [*LIMITS, "manifest.json"])
@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_pickle_is_never_executed(path: Path, name: str, how: str) -> None:
    canary = path.parent / "canary"
    if how == "pickle":
        (path / name).write_bytes(pickle.dumps(Exploit(canary)))
    else:
        torch.save(Exploit(canary), path / name)
    pickle.loads(pickle.dumps(Exploit(canary)))
    canary.rmdir()  # the exploit works
    if name != "manifest.json":
        sign(path)
    if name == "card.md":
        load(path)  # nothing parses it
    else:
        with pytest.raises(CheckpointError, match=name):
            load(path)
    assert not canary.exists()


def mutate(path: Path, rng: random.Random) -> None:
    """Damage one or two files of a checkpoint so that at least one of them differs."""
    name = rng.choice([*LIMITS, "manifest.json"])
    data = bytearray((path / name).read_bytes())
    kind = rng.choice(["truncate", "flip", "insert", "swap", "delete", "extra", "link", "empty"])
    if kind == "truncate":
        (path / name).write_bytes(data[: rng.randrange(len(data))])
    elif kind == "flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (path / name).write_bytes(data)
    elif kind == "insert":
        at = rng.randrange(len(data))
        (path / name).write_bytes(data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:])
    elif kind == "swap":
        other = rng.choice([n for n in LIMITS if n != name])
        (path / name).write_bytes((path / other).read_bytes())
        (path / other).write_bytes(data)
    elif kind == "delete":
        (path / name).unlink()
    elif kind == "extra":
        (path / rng.choice(["extra.bin", "weights.safetensors.bak", "model.py"])).write_bytes(data)
    elif kind == "link":
        (path / name).rename(path.parent / "outside")
        (path / name).symlink_to(path.parent / "outside")
    else:
        (path / name).write_bytes(b"")


def test_damage_is_always_a_checkpoint_error(path: Path) -> None:
    rng = random.Random(0)
    intact = parse_json((path / "manifest.json").read_bytes(), "")
    for _ in range(300):
        copy = path.parent / "copy"
        shutil.copytree(path, copy)
        mutate(copy, rng)
        try:
            load(copy)
        except CheckpointError as error:
            assert "copy" in str(error)  # noqa: PT017
        else:
            # White space at the end of the manifest has no meaning.
            assert parse_json((copy / "manifest.json").read_bytes(), "") == intact
            assert all((copy / name).read_bytes() == (path / name).read_bytes() for name in LIMITS)
        shutil.rmtree(copy)


def test_signed_damage_is_refused_or_harmless(path: Path) -> None:
    rng = random.Random(1)
    refused = 0
    originals = {name: (path / name).read_bytes() for name in LIMITS}
    for _ in range(300):
        name = rng.choice([n for n in LIMITS if n != "card.md"])
        data = bytearray(originals[name])
        for _ in range(rng.randrange(1, 4)):
            # The front of a safetensors file is its header, where damage has meaning.
            data[rng.randrange(min(len(data), 400))] = rng.randrange(256)
        (path / name).write_bytes(data)
        sign(path)
        try:
            model = load(path).model
        except CheckpointError:
            refused += 1
        else:
            assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
        (path / name).write_bytes(originals[name])
    assert refused > 150
