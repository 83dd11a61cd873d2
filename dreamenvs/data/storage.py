"""Episodes on disk: a directory with one compressed .npz for each episode and an index.json. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from dreamenvs.config import from_json, to_json
from dreamenvs.data.episode import Episode
from dreamenvs.types import Scalar, WorldSpec

FORMAT = 1
INDEX = "index.json"


def save_episodes(
    directory: str | os.PathLike[str],
    episodes: Iterable[Episode],
    spec: WorldSpec,
    notes: Mapping[str, Scalar] | None = None,
) -> None:
    """Write episodes of a world into a new directory; `notes` say how they were made, such as the policy and the seed.

    The index is written last, so that a directory that was left half-way does not load.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; episodes are never mixed with others")
    entries = []
    for number, episode in enumerate(episodes):
        name = f"{number:06d}.npz"
        np.savez_compressed(folder / name, **{field.name: getattr(episode, field.name) for field in fields(Episode)})
        entries.append({"file": name, "steps": len(episode), "return": episode.total_reward})
    index = {"format": FORMAT, "spec": to_json(spec), "notes": dict(notes or {}), "episodes": entries}
    temporary = folder / (INDEX + ".part")
    temporary.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / INDEX)


def load_spec(directory: str | os.PathLike[str]) -> WorldSpec:
    """The world that the episodes of a directory come from."""
    return from_json(WorldSpec, _load_index(directory)["spec"], "spec")


def load_notes(directory: str | os.PathLike[str]) -> dict[str, Scalar]:
    """How the episodes of a directory were made."""
    notes: dict[str, Scalar] = _load_index(directory)["notes"]
    return notes


def load_episodes(directory: str | os.PathLike[str], limit: int | None = None) -> list[Episode]:
    """The episodes of a directory in their order, until `limit` steps are reached."""
    return list(_read(Path(directory), limit))


def _read(folder: Path, limit: int | None) -> Iterator[Episode]:
    steps = 0
    for entry in _load_index(folder)["episodes"]:
        if limit is not None and steps >= limit:
            return
        name = str(entry["file"])
        if Path(name).name != name:
            raise ValueError(f"{folder / INDEX} points outside its directory: {name!r}")
        with np.load(folder / name, allow_pickle=False) as arrays:
            episode = Episode(**{field.name: arrays[field.name] for field in fields(Episode)})
        if len(episode) != entry["steps"]:
            raise ValueError(f"{folder / name} has {len(episode)} steps, not {entry['steps']} as its index says")
        steps += len(episode)
        yield episode


def _load_index(directory: str | os.PathLike[str]) -> dict[str, Any]:
    path = Path(directory) / INDEX
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: no episodes, or collecting them was interrupted")
    index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if index.get("format") != FORMAT:
        raise ValueError(f"{path} has the format {index.get('format')!r}; this version reads {FORMAT}")
    return index
