"""Checkpoints come back bit for bit, and nothing else than a sound checkpoint comes back at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from dreamenvs.checkpoints.card import card_markdown
from dreamenvs.checkpoints.stored_tensors import stored_weights
from dreamenvs.checkpoints.world_model import (
    LIMITS,
    CheckpointError,
    load_checkpoint,
    read_identity,
    save_checkpoint,
)
from dreamenvs.files.atomic_directory import dump_json, parse_json
from dreamenvs.models.family import Family
from dreamenvs.types import ContinuousActions, DiscreteActions, Segment, SourceEnv, WorldSpec
from tests.small import build_small, random_segment


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    width: int = 4
    layers: int = 2
    window: int = 8
    rate: float = 0.1


class Toy(nn.Module):
    """The parts of a world model that a checkpoint has to do with: parameters, kept and derived buffers, a spec."""

    def __init__(self, config: ToyConfig, spec: WorldSpec) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(nn.Linear(config.width, config.width) for _ in range(config.layers))
        self.tied = self.layers[0]
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer(
            "mask", torch.ones(config.window, config.window, dtype=torch.bool).tril(), persistent=False
        )
        if isinstance(spec.actions, DiscreteActions):
            self.actions = nn.Embedding(spec.actions.count, config.width)


FAMILIES = {"TOY": Family(name="TOY", config=ToyConfig, paper=ToyConfig(), build=Toy)}
SPEC = WorldSpec(
    world="Pong",
    observation_shape=(1, 2, 3),
    actions=DiscreteActions(count=3),
    source=SourceEnv(id="ALE/Pong-v5", kwargs={"frameskip": 4}, preprocessing="atari", options={"size": 64}),
)
CARD = {"title": "Toy on Pong", "data": {"frames": 10, "seed": 0}, "commands": ["python training/fit_world_model.py"]}


def contexts(spec: WorldSpec = SPEC, rows: int = 2, steps: int = 4) -> Segment:
    actions = torch.arange(rows * steps).reshape(rows, steps) % 3
    if isinstance(spec.actions, ContinuousActions):
        actions = torch.linspace(-1, 1, rows * steps * len(spec.actions.low)).reshape(rows, steps, -1)
    return Segment(
        torch.randint(0, 256, (rows, steps, *spec.observation_shape), dtype=torch.uint8),
        actions,
        torch.randn(rows, steps),
        torch.zeros(rows, steps, dtype=torch.bool),
        torch.ones(rows, steps, dtype=torch.bool),
    )


def save(path: Path, config: ToyConfig = ToyConfig(), **options: Any) -> Toy:  # noqa: B008 (frozen)
    model = options.pop("model", None) or Toy(config, SPEC)
    arguments: dict[str, Any] = {"family": "TOY", "config": config, "card": CARD, "families": FAMILIES} | options
    save_checkpoint(path, model, arguments.pop("contexts", None) or contexts(), **arguments)
    return model


def load(path: Path) -> Any:
    return load_checkpoint(path, families=FAMILIES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "dream")
    return tmp_path / "dream"


def sign(path: Path) -> None:
    """Make the manifest agree with the files, as a malicious author would."""
    files = {n: (path / n).read_bytes() for n in LIMITS}
    entries = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}
    (path / "manifest.json").write_bytes(dump_json({"format": 1, "files": entries}))


def edit_tensors(path: Path, name: str, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = safetensors.torch.load((path / name).read_bytes())
    edit(tensors)
    (path / name).write_bytes(safetensors.torch.save(tensors))
    sign(path)


WEIGHTS, CONTEXTS = "weights.safetensors", "contexts.safetensors"


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert torch.equal(left[name], right[name])


@pytest.mark.parametrize("actions", [SPEC.actions, ContinuousActions(low=(-1.0, -1.0), high=(1.0, 1.0))])
def test_round_trip_is_bit_equal(tmp_path: Path, actions: Any) -> None:
    spec = replace(SPEC, actions=actions)
    model, start = Toy(ToyConfig(rate=1.0), spec).train(), contexts(spec)
    model.count += 7
    save(tmp_path / "dream", ToyConfig(rate=1.0), model=model, contexts=start)
    random_state = torch.get_rng_state()
    loaded = load(tmp_path / "dream")
    assert torch.equal(torch.get_rng_state(), random_state)
    assert_same(loaded.model.state_dict(), model.state_dict())
    assert torch.equal(loaded.model.mask, model.mask)
    assert_same(loaded.contexts._asdict(), start._asdict())
    assert not loaded.model.training
    assert model.training
    assert loaded.model.spec == spec
    assert (loaded.family, loaded.config, loaded.card) == ("TOY", ToyConfig(rate=1.0), CARD)
    assert loaded.path == tmp_path / "dream"
    assert read_identity(tmp_path / "dream") == ("TOY", "Pong")


def test_frames_of_the_first_format_are_read_as_they_are(path: Path) -> None:
    start = load(path).contexts
    edit_tensors(path, CONTEXTS, lambda t: t.update(observations=start.observations.clone()))
    header = parse_json((path / "config.json").read_bytes(), "")
    (path / "config.json").write_bytes(dump_json(header | {"format": 1}))
    sign(path)
    assert torch.equal(load(path).contexts.observations, start.observations)


def test_frames_that_stay_take_little_room(tmp_path: Path) -> None:
    still = contexts(rows=64, steps=64)._replace(observations=torch.full((64, 64, 1, 2, 3), 7, dtype=torch.uint8))
    save(tmp_path / "dream", contexts=still)
    tensors = safetensors.torch.load((tmp_path / "dream" / CONTEXTS).read_bytes())
    assert tensors["observations"].numel() < still.observations.numel() / 100
    assert torch.equal(load(tmp_path / "dream").contexts.observations, still.observations)


def test_directory_layout(path: Path) -> None:
    assert sorted(os.listdir(path)) == sorted([*LIMITS, "manifest.json"])
    assert parse_json((path / "config.json").read_bytes(), "") == {
        "format": 2,
        "family": "TOY",
        "config": {"type": "ToyConfig", "width": 4, "layers": 2, "window": 8, "rate": 0.1},
    }
    entry = parse_json((path / "manifest.json").read_bytes(), "")["files"]["card.md"]
    data = (path / "card.md").read_bytes()
    assert entry == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def test_float16_is_half_the_size_and_loads_as_float32(tmp_path: Path) -> None:
    config = ToyConfig(width=64)
    model = save(tmp_path / "half", config, weights_dtype="float16")
    save(tmp_path / "full", config, model=model)
    sizes = [(tmp_path / name / "weights.safetensors").stat().st_size for name in ("half", "full")]
    assert sizes[0] < 0.6 * sizes[1]
    for name, tensor in load(tmp_path / "half").model.state_dict().items():
        original = model.state_dict()[name]
        assert tensor.dtype == original.dtype
        assert torch.equal(tensor, original.half().to(original.dtype))


def test_a_tokenizer_is_never_rounded() -> None:
    """Close codes would swap places, and the dynamics would see tokens that they never learned from."""
    model = build_small("STEPVQ")
    stored = stored_weights(model, "float16")
    frames = random_segment(rows=4).observations.flatten(0, 1)
    tokens = model.tokenizer.encode(frames)
    assert {tensor.dtype for name, tensor in stored.items() if name.startswith("tokenizer.")} == {torch.float32}
    assert {tensor.dtype for name, tensor in stored.items() if name.startswith("prior.")} == {torch.float16}
    model.load_state_dict(stored)
    assert torch.equal(model.tokenizer.encode(frames), tokens)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"family": "IRIS"}, "'IRIS' is no family; known are TOY"),
        ({"config": SPEC, "model": Toy(ToyConfig(), SPEC)}, "the config of TOY is a ToyConfig"),
        ({"card": {"psnr": float("nan")}}, "card.psnr is nan"),
        ({"card": {"seeds": (1, 2)}}, "card.seeds is a tuple"),
        ({"contexts": contexts()._replace(rewards=torch.full((2, 4), float("inf")))}, "rewards holds NaN, infinity"),
        ({"contexts": contexts()._replace(valid=torch.zeros(2, 4, dtype=torch.bool))}, "padding on the left alone"),
        ({"contexts": contexts()._replace(actions=torch.full((2, 4), 3))}, "an action is 3, outside of"),
        ({"contexts": contexts(rows=0)}, "rewards have shape"),
        ({"model": Toy(ToyConfig(), SPEC).double()}, "float64; floating values must be float32"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(path: Path, options: dict[str, Any], sentence: str) -> None:
    before = (path / "manifest.json").read_bytes()
    with pytest.raises((ValueError, TypeError), match=sentence):
        save(path, **options)
    assert (path / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "float32"), (1e6, "float16")])
def test_weights_that_are_not_finite_when_stored_are_not_saved(tmp_path: Path, value: float, dtype: str) -> None:
    model = Toy(ToyConfig(), SPEC)
    nn.init.constant_(model.layers[0].bias, value)
    with pytest.raises(ValueError, match=r"layers\.0\.bias holds NaN, infinity or numbers too large"):
        save(tmp_path / "dream", model=model, weights_dtype=dtype)
    assert os.listdir(tmp_path) == []


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    for read in (load, read_identity):
        with pytest.raises(CheckpointError, match="nowhere does not exist"):
            read(tmp_path / "nowhere")


def test_a_failed_save_keeps_the_old_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load(path).model.state_dict()

    def fail(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(PermissionError, match="cannot save"):
            save(path)
    assert_same(load(path).model.state_dict(), before)
    assert os.listdir(path.parent) == [path.name]


def test_card_markdown() -> None:
    card = {
        "title": "STEPVQ on Pong",
        "summary": "A dream of Pong.",
        "fitted_on": {"environment": "ALE/Pong-v5", "frames": 100_000},
        "figures": [{"horizon": 1, "psnr": 31.41592}, {"horizon": 10, "psnr": None, "note": "a|b\nc"}],
        "commands": ["python training/fit_world_model.py stepvq"],
        "limits": ["short horizons"],
        "licence": "MIT",
    }
    assert card_markdown(card) == (
        "# STEPVQ on Pong\n\nA dream of Pong.\n\n"
        "## Fitted on\n\n| fitted on |  |\n|---|---|\n| environment | ALE/Pong-v5 |\n| frames | 100000 |\n\n"
        "## Figures\n\n| horizon | psnr | note |\n|---|---|---|\n| 1 | 31.42 |  |\n| 10 | – | a\\|b c |\n\n"
        "## Commands\n\n```sh\npython training/fit_world_model.py stepvq\n```\n\n"
        "## Limits\n\n- short horizons\n\n## Licence\n\nMIT\n"
    )
