"""The state of a fit on disk: a verified directory of JSON and safetensors, complete or absent. No pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from dreamenvs.config import from_json, to_json
from dreamenvs.files.atomic_directory import (
    FORMAT,
    MAX_JSON,
    check_format,
    dump_json,
    parse_json,
    read_artifact,
    write_artifact,
)

LIMITS = {
    "progress.json": MAX_JSON,
    "weights.safetensors": 2**32,
    "optimizer.safetensors": 2**33,
    "sampler.safetensors": 2**32,
}


class StateError(Exception):
    """A state that belongs to another fit or cannot be read; the message names the difference."""


@dataclass(frozen=True, kw_only=True)
class FitProgress:
    """Where a fit stands, and which fit it is."""

    seed: int
    stages: tuple[str, ...]
    updates: tuple[int, ...]
    """Of each stage, altogether."""
    episodes: int
    steps: int
    """Of the data that is fitted on."""
    sampler: str
    stage: int
    """How many stages are finished."""
    update: int
    """How many updates of the stage under way are done."""


class FitState(NamedTuple):
    """All that a fit needs to go on; random numbers are drawn anew from the seed, the stage and the update."""

    progress: FitProgress
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    sampler: dict[str, Tensor]


def write_state(directory: str | os.PathLike[str], state: FitState) -> Path:
    """Write or replace a state; killed at any moment, the old or the new one stands."""
    files = {
        "progress.json": dump_json({"format": FORMAT, "progress": to_json(state.progress)}),
        "weights.safetensors": dump_tensors(state.weights),
        "optimizer.safetensors": dump_tensors(state.optimizer),
        "sampler.safetensors": dump_tensors(state.sampler),
    }
    return write_artifact(directory, files)


def read_state(directory: str | os.PathLike[str]) -> FitState:
    """A state whose every byte is as it was written."""
    path = Path(directory)
    files = read_artifact(path, LIMITS)
    weights, optimizer, sampler = (parse_tensors(path, files, f"{name}.safetensors") for name in FitState._fields[1:])
    return FitState(_parse_progress(path, files), weights, optimizer, sampler)


def read_progress(directory: str | os.PathLike[str]) -> FitProgress:
    """Where the fit of a state stands, without reading its tensors."""
    return _parse_progress(Path(directory), read_artifact(directory, LIMITS, ("progress.json",)))


def read_weights(directory: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The model's weights of a state, in float32, for another fit to start from."""
    name = "weights.safetensors"
    return parse_tensors(Path(directory), read_artifact(directory, LIMITS, (name,)), name)


def _parse_progress(path: Path, files: Mapping[str, bytes]) -> FitProgress:
    name = str(path / "progress.json")
    value = parse_json(files["progress.json"], name)
    check_format(value, name)
    return from_json(FitProgress, value.get("progress"), f"{name}: progress")


def dump_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by name as the bytes of a safetensors file."""
    packed = {
        name: tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    return safetensors.torch.save(packed)


def parse_tensors(path: Path, files: Mapping[str, bytes], name: str) -> dict[str, Tensor]:
    """The tensors of one of the files that were read from the directory `path`."""
    try:
        return safetensors.torch.load(files[name])
    except Exception as error:  # the reader has several exception types for what it refuses
        raise StateError(f"{path / name} is no safetensors file: {error}") from error
