"""The directory of a run: which run it is, what it ran with, and how far it came."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dreamenvs
from dreamenvs.cli.threads import keep_threads
from dreamenvs.config import with_new_names
from dreamenvs.files.atomic_directory import is_artifact


class RunDirectory:
    """`config.json`, `versions.json`, `metrics.jsonl`, `pictures/`, TensorBoard's events and `state/`.

    Of an online run there are also `replay/`, `agent/`, `results.json` and `timings.jsonl`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        self.metrics = path / "metrics.jsonl"
        self.pictures = path / "pictures"

    @property
    def begun(self) -> bool:
        """Whether there is a state to go on from."""
        return is_artifact(self.state)

    def open(
        self, identity: Mapping[str, Any], arguments: Mapping[str, Any], *, restart: bool = False, ranks: int = 1
    ) -> None:
        """Begin a run or go on with one; a directory that holds another run is refused.

        `identity` is what decides the weights: it must be the same for a run to go on. The number of threads, which
        sums are rounded with, stays that of the run, if `arguments` ask for none.
        """
        if restart and self.path.exists():
            self._clear()
        config = self.path / "config.json"
        if config.exists():
            known = with_new_names(json.loads(config.read_text(encoding="utf-8"))["identity"])
            self._check(known, json.loads(json.dumps(identity)))
        known_versions = self.path / "versions.json"
        if self.begun and known_versions.exists():
            threads = json.loads(known_versions.read_text(encoding="utf-8")).get("threads", 1)
            keep_threads(arguments.get("threads"), threads)
        self.pictures.mkdir(parents=True, exist_ok=True)
        _write_json(config, {"identity": identity, "arguments": arguments})
        _write_json(self.path / "versions.json", versions() | {"ranks": ranks})

    def _check(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        changes = list(differences(old, new))
        if changes:
            raise SystemExit(
                f"{self.path} holds another run: {'; '.join(changes[:5])}\n"
                "give this one another --name, or begin again with --restart, which removes what is there"
            )

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else."""
        if any(self.path.iterdir()) and not (self.path / "config.json").exists():
            raise SystemExit(f"{self.path} is not a run's directory: --restart removes nothing there")
        for part in ("state", "pictures", "events", "replay", "agent"):
            shutil.rmtree(self.path / part, ignore_errors=True)
        for name in ("metrics.jsonl", "timings.jsonl", "results.json", "versions.json", "config.json"):
            (self.path / name).unlink(missing_ok=True)


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Where two JSON values differ, as text."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif old != new:
        yield f"{where} was {old!r:.80} and is {new!r:.80}"


def versions() -> dict[str, Any]:
    """What the figures of a run may depend on."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("--no-optional-locks", "status", "--porcelain")
    return {
        "dreamenvs": dreamenvs.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "commit": commit,
        "dirty": None if changed is None else bool(changed),
    }


def _git(*arguments: str) -> str | None:
    """What git says of the repository that this package is developed in, or None where it is installed elsewhere."""
    package = Path(dreamenvs.__file__).resolve().parent
    command = ["git", "-C", str(package), *arguments]
    try:
        if not (package.parent / ".git").exists():
            return None  # the repository around an installed package is that of another project
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _write_json(path: Path, value: Any) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
