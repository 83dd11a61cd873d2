"""A checkpoint: a directory of JSON and safetensors from which a dream starts, with no data set and no simulator.

A directory from a stranger is safe to load: it chooses among known families and gives numbers, nothing more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dreamenvs import tree
from dreamenvs.checkpoints.card import card_markdown
from dreamenvs.checkpoints.stored_tensors import (
    WeightsDtype,
    fits_half,
    pack_tensors,
    stored_weights,
    unpack_tensors,
    with_new_weight_names,
)
from dreamenvs.config import ConfigError, check_json, from_json, to_json
from dreamenvs.files.atomic_directory import (
    MAX_JSON,
    ArtifactError,
    check_format,
    dump_json,
    parse_json,
    read_artifact,
    write_artifact,
)
from dreamenvs.files.frame_compression import deflate, inflate
from dreamenvs.protocols import WorldModel
from dreamenvs.types import DiscreteActions, Segment, WorldSpec

if TYPE_CHECKING:
    from dreamenvs.models import Family

FORMAT = 2
"""Of a checkpoint; the first one had its frames unpacked, and can still be read."""
LIMITS = {
    "config.json": MAX_JSON,
    "spec.json": MAX_JSON,
    "weights.safetensors": 2**32,
    "contexts.safetensors": 2**30,
    "card.json": MAX_JSON,
    "card.md": MAX_JSON,
}
MAX_FRAME_BYTES = 2**30
"""Of all start contexts together, unpacked."""
MAX_INTEGER = 2**20
"""The largest integer in a model's config: wider and deeper than any model, and small enough to count to."""


class CheckpointError(Exception):
    """A directory that cannot be loaded; the message says which file is wrong, how, and the remedy if there is one.

    >>> import dreamenvs, pathlib, tempfile
    >>> path = dreamenvs.load("dreamenvs/STEPVQ-MinAtarBreakout-v0").save(tempfile.mkdtemp() + "/dream")
    >>> _ = (path / "config.json").write_text("{}")
    >>> dreamenvs.load(path)
    Traceback (most recent call last):
    dreamenvs.checkpoints.world_model.CheckpointError: ...config.json ...
    """


class Checkpoint(NamedTuple):
    """What a checkpoint holds; the model is in evaluation mode and in float32.

    >>> import dreamenvs
    >>> dream = dreamenvs.load("dreamenvs/STEPVQ-Pong-v0")
    >>> isinstance(dream, dreamenvs.Checkpoint), dream.family
    (True, 'STEPVQ')
    """

    model: WorldModel[Any]
    contexts: Segment
    family: str
    config: Any
    card: dict[str, Any]
    path: Path
    """Where it was read from; of a dream that was not saved yet, its name."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the dream to a directory, in half precision where that loses nothing.

        >>> import dreamenvs, tempfile
        >>> dream = dreamenvs.load("dreamenvs/STEPVQ-MinAtarBreakout-v0")
        >>> dream.save(tempfile.mkdtemp() + "/STEPVQ-MinAtarBreakout-v9").name
        'STEPVQ-MinAtarBreakout-v9'
        """
        return save_checkpoint(
            path,
            self.model,
            self.contexts,
            family=self.family,
            config=self.config,
            card=self.card,
            weights_dtype="float16" if fits_half(self.model) else "float32",
        )


class Identity(NamedTuple):
    """What a checkpoint is called by."""

    family: str
    world: str


def save_checkpoint(
    path: str | os.PathLike[str],
    model: WorldModel[Any],
    contexts: Segment,
    *,
    family: str,
    config: object,
    card: Mapping[str, Any],
    weights_dtype: WeightsDtype = "float32",
    families: Mapping[str, Family] | None = None,
) -> Path:
    """Write or replace a checkpoint; killed at any moment, the old or the new one stands.

    `float16` nearly halves its size; `stored_weights` says what becomes of the weights. A dream has `dream.save(path)`,
    too.

    >>> import dreamenvs, tempfile
    >>> dream = dreamenvs.load("dreamenvs/STEPVQ-MinAtarBreakout-v0")
    >>> kept = {"family": dream.family, "config": dream.config, "card": dream.card}
    >>> dreamenvs.save(tempfile.mkdtemp() + "/copy", dream.model, dream.contexts, **kept).name
    'copy'
    """
    known = _known(families)
    if family not in known:
        raise ValueError(f"{family!r} is no family; known are {', '.join(known)}")
    if type(config) is not known[family].config:
        raise TypeError(f"the config of {family} is a {known[family].config.__name__}, not {config!r}")
    check_contexts(contexts, model.spec)
    check_json(dict(card), "card")
    weights = stored_weights(model, weights_dtype)
    files = {
        "config.json": dump_json({"format": FORMAT, "family": family, "config": to_json(config)}),
        "spec.json": dump_json(to_json(model.spec)),
        "weights.safetensors": safetensors.torch.save(weights),
        "contexts.safetensors": safetensors.torch.save(_pack_contexts(contexts)),
        "card.json": dump_json(dict(card)),
        "card.md": card_markdown(card).encode(),
    }
    for name, data in files.items():
        if len(data) > LIMITS[name]:
            raise ValueError(f"{name} would have {len(data)} bytes; {LIMITS[name]} is the most that can be loaded")
    return write_artifact(path, files)


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    families: Mapping[str, Family] | None = None,
) -> Checkpoint:
    """Read, verify and rebuild a checkpoint; whatever is wrong with the directory is a `CheckpointError`."""
    try:
        files = read_artifact(path, LIMITS)
        return _parse(Path(path), files, device, _known(families))
    except (ArtifactError, ConfigError) as error:
        raise CheckpointError(str(error)) from error


def read_identity(path: str | os.PathLike[str]) -> Identity:
    """The family and the world of a checkpoint, without reading its tensors."""
    try:
        files = read_artifact(path, LIMITS, ("config.json", "spec.json"))
        return Identity(_parse_header(Path(path), files)["family"], _parse_spec(Path(path), files).world)
    except (ArtifactError, ConfigError) as error:
        raise CheckpointError(str(error)) from error


def check_contexts(contexts: Segment, spec: WorldSpec) -> None:
    """Raise `ValueError` unless these are complete real segments of the world that `spec` describes."""
    rows, steps = contexts.rewards.shape if contexts.rewards.ndim == 2 else (0, 0)
    if rows < 1 or steps < 1:
        raise ValueError(f"rewards have shape {tuple(contexts.rewards.shape)}, not (rows, steps) with one of each")
    discrete = isinstance(spec.actions, DiscreteActions)
    action_shape = () if isinstance(spec.actions, DiscreteActions) else (len(spec.actions.low),)
    layout: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "observations": (spec.observation_shape, torch.uint8),
        "actions": (action_shape, torch.int64 if discrete else torch.float32),
        "rewards": ((), torch.float32),
        "terminated": ((), torch.bool),
        "valid": ((), torch.bool),
    }
    for name, (shape, dtype) in layout.items():
        tensor = getattr(contexts, name)
        if tensor.shape != (rows, steps, *shape) or tensor.dtype != dtype:
            found = f"{tuple(tensor.shape)} {tensor.dtype}"
            raise ValueError(f"{name} are {found}; the spec asks for {(rows, steps, *shape)} {dtype}")
    padded_left = bool((contexts.valid[:, 1:] >= contexts.valid[:, :-1]).all()) and bool(contexts.valid[:, -1].all())
    if not padded_left:
        raise ValueError("some steps are not valid; contexts have padding on the left alone, and end with a real step")
    _check_actions(contexts.actions, spec)


def _known(families: Mapping[str, Family] | None) -> Mapping[str, Family]:
    if families is not None:
        return families
    from dreamenvs.models import FAMILIES

    return FAMILIES


def _parse(
    path: Path, files: dict[str, bytes], device: torch.device | str, families: Mapping[str, Family]
) -> Checkpoint:
    spec = _parse_spec(path, files)
    header = _parse_header(path, files)
    family = families.get(header["family"])
    if family is None:
        known = ", ".join(families)
        raise CheckpointError(f"{path / 'config.json'} names the family {header['family']!r:.80}; known are {known}")
    where = f"{path / 'config.json'}: config"
    config = from_json(family.config, header["config"], where)
    check_integers(header["config"], where)
    card = _json(path, files, "card.json")
    check_json(card, f"{path / 'card.json'}: card")
    if not isinstance(card, dict):
        raise CheckpointError(f"{path / 'card.json'} must hold an object")
    packed = header["format"] > 1
    contexts = _parse_contexts(path / "contexts.safetensors", files.pop("contexts.safetensors"), spec, packed)
    weights = with_new_weight_names(unpack_tensors(path / "weights.safetensors", files.pop("weights.safetensors")))
    model = build_with_weights(lambda: family.build(config, spec), weights, path)
    module = cast(WorldModel[Any], model.to(device=device, dtype=torch.float32).eval())
    return Checkpoint(module, tree.to(contexts, device), header["family"], config, card, path)


def _json(path: Path, files: dict[str, bytes], name: str) -> Any:
    return parse_json(files[name], str(path / name))


def _parse_spec(path: Path, files: dict[str, bytes]) -> WorldSpec:
    return from_json(WorldSpec, _json(path, files, "spec.json"), f"{path / 'spec.json'}: spec")


def _parse_header(path: Path, files: dict[str, bytes]) -> dict[str, Any]:
    header = _json(path, files, "config.json")
    check_format(header, str(path / "config.json"), FORMAT)
    if set(header) != {"format", "family", "config"} or not isinstance(header["family"], str):
        raise CheckpointError(f"{path / 'config.json'} must hold a format, a family and a config, nothing else")
    return cast(dict[str, Any], header)


def _pack_contexts(contexts: Segment) -> dict[str, Tensor]:
    tensors = pack_tensors(contexts._asdict(), torch.float32)
    return tensors | {"observations": deflate(tensors["observations"])}


def _parse_contexts(path: Path, data: bytes, spec: WorldSpec, packed: bool) -> Segment:
    tensors = unpack_tensors(path, data)
    if set(tensors) != set(Segment._fields):
        raise CheckpointError(f"{path} must hold {', '.join(Segment._fields)}, nothing else")
    try:
        if packed and tensors["rewards"].numel():
            # Each frame has a reward beside it, so that no file asks for more frames than it has bytes.
            shape = (*tensors["rewards"].shape, *spec.observation_shape)
            if prod(shape) > MAX_FRAME_BYTES:
                raise ValueError(f"observations of shape {shape} are more than {MAX_FRAME_BYTES} bytes")
            tensors["observations"] = inflate(tensors["observations"], shape)
        contexts = Segment(**tensors)
        check_contexts(contexts, spec)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return contexts


def _check_actions(actions: Tensor, spec: WorldSpec) -> None:
    if isinstance(spec.actions, DiscreteActions):
        inside = (actions >= 0) & (actions < spec.actions.count)
    else:
        low, high = (torch.tensor(bound, device=actions.device) for bound in (spec.actions.low, spec.actions.high))
        inside = (actions >= low) & (actions <= high)
    if not inside.all():
        raise ValueError(f"an action is {actions[~inside][0].item()}, outside of {spec.actions}")


def check_integers(value: Any, where: str) -> None:
    """Refuse integers in a config's JSON that no model could need."""
    if isinstance(value, dict):
        for key, part in value.items():
            check_integers(part, f"{where}.{key}")
    elif isinstance(value, list):
        for part in value:
            check_integers(part, where)
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ConfigError(f"{where} is {value}; a model's integers are {MAX_INTEGER} at most")


class _Budget(TorchFunctionMode):
    """Ends a build that calls torch far more often than the weights at hand could need."""

    def __init__(self, calls: int):
        super().__init__()
        self.calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls -= 1
        if self.calls < 0:
            raise ValueError("it asks for more layers than there are weights")
        return func(*args, **(kwargs or {}))


def build_with_weights(build: Callable[[], Any], weights: dict[str, Tensor], path: Path) -> nn.Module:
    """The model with its weights, built for real only after a build without memory has shown that they fit."""
    try:
        # A config is a few bytes that can ask for any number of layers of any size. On the meta device size costs
        # nothing, and no layer comes without calling torch (some 6 times a tensor): counting calls bounds their number.
        # Not a shortcut of this: building for real and watching sizes, since one call may already take all memory.
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _Budget(2_000 + 100 * len(weights)):
            outline = build()
        _check_weights(outline, weights, path / "weights.safetensors")
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            model = cast(nn.Module, build())
        model.load_state_dict(weights)
    except CheckpointError:
        raise
    except Exception as error:  # a family may raise anything about a config that does not fit together
        raise CheckpointError(f"{path / 'config.json'}: no model can be built from this config: {error}") from error
    return model


def _check_weights(outline: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    expected = outline.state_dict()
    for name in [*expected, *sorted(weights)]:
        if name not in weights or name not in expected:
            problem = "is missing" if name not in weights else "is not part of the model"
            raise CheckpointError(f"{path}: {name!r:.80} {problem}; were the files of two checkpoints mixed?")
        wanted, found = expected[name], weights[name]
        dtypes = (torch.float32, torch.float16) if wanted.is_floating_point() else (wanted.dtype,)
        if found.shape != wanted.shape or found.dtype not in dtypes:
            sizes = f"{tuple(found.shape)} {found.dtype}, the config asks for {tuple(wanted.shape)} {wanted.dtype}"
            raise CheckpointError(f"{path}: {name!r:.80} is {sizes}")
    stored = sum(tensor.numel() for tensor in weights.values())
    # Buffers that are not stored, such as masks, have no shape in the file to compare with.
    if sum(tensor.numel() for tensor in (*outline.parameters(), *outline.buffers())) > 2 * stored + 2**26:
        raise CheckpointError(f"{path.with_name('config.json')} asks for buffers far larger than the weights")
