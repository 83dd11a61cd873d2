"""The state of an online run on disk: a verified directory of JSON and safetensors, complete or absent.

The experience is not in it but in a replay beside it, of which the state says how much belongs to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dreamenvs.config import from_json, to_json
from dreamenvs.data.collector import Game
from dreamenvs.files.atomic_directory import (
    FORMAT,
    MAX_JSON,
    check_format,
    dump_json,
    parse_json,
    read_artifact,
    write_artifact,
)
from dreamenvs.fitting.state import StateError, dump_tensors, parse_tensors

LIMITS = {
    "counters.json": MAX_JSON,
    "curve.json": 2**24,
    "weights.safetensors": 2**32,
    "optimizer.safetensors": 2**33,
    "learner.safetensors": 2**33,
    "samplers.safetensors": 2**32,
    "games.safetensors": 2**32,
}


@dataclass(frozen=True, kw_only=True)
class Counters:
    """How far a run has come."""

    seed: int
    clock: int = 0
    """Ticks of the schedule; real steps, as long as there are some to collect."""
    stages: tuple[str, ...]
    updates: tuple[int, ...]
    """Of each stage."""
    agent_updates: int = 0
    episodes: int = 0
    """That have ended."""
    evaluations: int = 0

    def describe(self) -> str:
        """For people."""
        parts = [f"{count:,} updates of {name}" for name, count in zip(self.stages, self.updates, strict=True)]
        parts.append(f"{self.agent_updates:,} of the agent")
        return f"step {self.clock:,}, {self.episodes:,} episodes, {', '.join(parts)}"


class OnlineState(NamedTuple):
    """All that a run needs to go on, besides the replay."""

    counters: Counters
    curve: list[dict[str, Any]]
    """What the evaluations measured."""
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    """`stage.key`, as `Updater.export` names them."""
    learner: dict[str, Tensor]
    samplers: dict[str, Tensor]
    """`stage.name`, as the samplers name their counters."""
    order: tuple[int, ...]
    """The numbers of the replay's episodes."""
    games: list[Game]


def write_online(directory: str | os.PathLike[str], state: OnlineState) -> Path:
    """Write or replace a state; killed at any moment, the old or the new one stands."""
    games = {"order": torch.tensor(state.order, dtype=torch.int64)}
    for row, game in enumerate(state.games):
        games[f"{row}.numbers"] = torch.tensor([game.first, game.current])
        for name in ("lengths", "actions", "sums"):
            games[f"{row}.{name}"] = torch.from_numpy(np.ascontiguousarray(getattr(game, name)))
    files = {
        "counters.json": dump_json({"format": FORMAT, "counters": to_json(state.counters)}),
        "curve.json": dump_json({"format": FORMAT, "evaluations": state.curve}),
        "weights.safetensors": dump_tensors(state.weights),
        "optimizer.safetensors": dump_tensors(state.optimizer),
        "learner.safetensors": dump_tensors(state.learner),
        "samplers.safetensors": dump_tensors(state.samplers),
        "games.safetensors": dump_tensors(games),
    }
    return write_artifact(directory, files)


def read_online(directory: str | os.PathLike[str]) -> OnlineState:
    """A state whose every byte is as it was written."""
    path = Path(directory)
    files = read_artifact(path, LIMITS)
    names = ("weights", "optimizer", "learner", "samplers", "games")
    tensors = {name: parse_tensors(path, files, f"{name}.safetensors") for name in names}
    games = tensors.pop("games")
    if "order" not in games:
        raise StateError(f"{path / 'games.safetensors'} does not say which episodes there are")
    order = tuple(games.pop("order").tolist())
    return OnlineState(
        counters=_parse_counters(path, files),
        curve=list(_parse(path, files, "curve.json").get("evaluations", ())),
        order=order,
        games=_parse_games(path, games),
        **tensors,
    )


def read_counters(directory: str | os.PathLike[str]) -> Counters:
    """How far the run of a state has come, without reading its tensors."""
    return _parse_counters(Path(directory), read_artifact(directory, LIMITS, ("counters.json",)))


def _parse(path: Path, files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    value = parse_json(files[name], str(path / name))
    check_format(value, str(path / name))
    return dict(value)


def _parse_counters(path: Path, files: Mapping[str, bytes]) -> Counters:
    value = _parse(path, files, "counters.json")
    return from_json(Counters, value.get("counters"), f"{path / 'counters.json'}: counters")


def _parse_games(path: Path, tensors: Mapping[str, Tensor]) -> list[Game]:
    try:
        return [
            Game(
                first=int(tensors[f"{row}.numbers"][0]),
                current=int(tensors[f"{row}.numbers"][1]),
                lengths=tensors[f"{row}.lengths"].numpy(),
                actions=tensors[f"{row}.actions"].numpy(),
                sums=tensors[f"{row}.sums"].numpy(),
            )
            for row in range(len(tensors) // 4)
        ]
    except (KeyError, IndexError) as error:
        raise StateError(f"{path / 'games.safetensors'} is incomplete: {error}") from error
