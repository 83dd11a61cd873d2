"""Where dreams are kept: finds a checkpoint directory by id, name or path. Imports no torch."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym

from dreamenvs.files.atomic_directory import is_artifact
from dreamenvs.ids import fitting_command, is_name

NAMESPACE = "dreamenvs/"
TIERS = ("broken", None, "demo", "good")
"""What the doctor calls dreams, the worst first; None is one that it has not seen."""
BUNDLED = Path(__file__).resolve().parent.parent / "dreams"


_warned: set[Path] = set()


class DreamNotFoundError(FileNotFoundError):
    """No checkpoint of that name is at hand; the message says which command makes one.

    >>> import dreamenvs
    >>> dreamenvs.load("dreamenvs/REM-Breakout-v0")
    Traceback (most recent call last):
    dreamenvs.checkpoints.library.DreamNotFoundError: no dream 'REM-Breakout-v0' is at hand ...
    """


class AvailableDream(NamedTuple):
    """A dream at hand, as its card describes it."""

    id: str
    family: str
    world: str
    """The id of the real environment, or the name of the world where that is not known."""
    tier: str | None
    """What the doctor called it, good, demo or broken, if its card says so."""
    real_steps: int | None
    """What it was fitted on."""
    size: int
    """Bytes on disk."""
    path: Path


def available() -> list[AvailableDream]:
    """Every dream at hand: bundled, on `DREAMENVS_PATH`, and in the user's data directory, in this order.

    >>> import dreamenvs
    >>> dreams = dreamenvs.available()
    >>> next(dream.world for dream in dreams if dream.id == "dreamenvs/STEPVQ-Pong-v0")
    'ALE/Pong-v5'
    """
    found: dict[str, AvailableDream] = {}
    for shelf in shelves():
        for path in sorted(shelf.iterdir()) if shelf.is_dir() else ():
            if is_name(path.name) and path.name not in found and is_artifact(path):
                found[path.name] = describe_dream(path)
    return list(found.values())


def describe_dream(path: Path) -> AvailableDream:
    """What a checkpoint directory says of itself, read without torch; what it does not say is left open."""
    config, spec, card = (_read(path / f"{name}.json") for name in ("config", "spec", "card"))
    source, data = _part(spec, "source"), _part(card, "data")
    tier, steps = _part(card, "doctor").get("tier"), data.get("real_steps")
    return AvailableDream(
        id=NAMESPACE + path.name,
        family=str(config.get("family", "unknown")),
        world=str(source.get("id") or spec.get("world", "unknown")),
        tier=tier if isinstance(tier, str) else None,
        real_steps=steps if isinstance(steps, int) else None,
        size=sum(file.stat().st_size for file in path.iterdir()),
        path=path,
    )


def user_directory() -> Path:
    """The user's own shelf, where fitting puts dreams unless told otherwise."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "dreamenvs"


def shelves() -> list[Path]:
    """The directories that are searched, in order: bundled dreams, `DREAMENVS_PATH`, the user's data directory."""
    extra = os.environ.get("DREAMENVS_PATH", "")
    return [BUNDLED, *(Path(part).expanduser() for part in extra.split(os.pathsep) if part), user_directory()]


def shelved() -> Iterator[str]:
    """The names of all dreams on the shelves, such as STEPVQ-Pong-v1."""
    for shelf in shelves():
        if shelf.is_dir():
            yield from (path.name for path in sorted(shelf.iterdir()) if is_name(path.name) and is_artifact(path))


def new_name(family: str, world: str) -> str:
    """The name for a dream of one's own: the first version that no bundled dream has."""
    names = (f"{family}-{world}-v{version}" for version in count())
    return next(name for name in names if not is_artifact(BUNDLED / name))


def locate(id_or_path: str | os.PathLike[str]) -> Path:
    """The checkpoint directory of an environment id, a dream's name or a path.

    >>> import dreamenvs
    >>> dreamenvs.locate("dreamenvs/STEPVQ-Pong-v0").name
    'STEPVQ-Pong-v0'
    """
    if not isinstance(id_or_path, str | os.PathLike):
        raise TypeError(f"a checkpoint is named by an id or a path, not by {id_or_path!r}")
    text = os.fspath(id_or_path)
    spec = gym.registry.get(text)
    if spec is not None and isinstance(registered := spec.kwargs.get("checkpoint"), str) and registered != text:
        return locate(registered)
    path = Path(text).expanduser()
    if is_artifact(path):
        return path
    name = text.removeprefix(NAMESPACE)
    if "/" not in name and "\\" not in name:
        found = _best(name) if name.startswith("DreamEnv-") else _named(name)
        if found is not None:
            return found
    raise DreamNotFoundError(_missing(text, name))


def _named(name: str) -> Path | None:
    return next((shelf / name for shelf in shelves() if is_artifact(shelf / name)), None)


def _best(name: str) -> Path | None:
    """The dream of a world with the best tier, then with the best transfer, then with the highest measured fidelity."""
    world = name.removeprefix("DreamEnv").removesuffix("-v0")
    found = [path for shelf in shelves() if shelf.is_dir() for path in sorted(shelf.glob(f"*{world}-v*"))]
    return max(filter(is_artifact, found), key=_quality, default=None)


def _quality(path: Path) -> tuple[int, float, float]:
    """What dreams of one world are compared by; what was never measured comes last.

    The tier, the real return of the policy that learned inside, and the PSNR of imagined frames. Nothing is known of a
    dream without a tier, which is better than to know that it is broken.
    """
    card = _read(path / "card.json")
    tier = _part(card, "doctor").get("tier")
    returns = _part(_part(_part(_part(card, "transfer"), "trained"), "returns"), "real")
    rank = TIERS.index(tier) if tier in TIERS else TIERS.index(None)
    return rank, _number(returns.get("mean")), _number(_part(card, "fidelity").get("psnr"))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("-inf")


def warn_if_broken(id_or_path: str | os.PathLike[str], stacklevel: int = 2) -> None:
    """Warn, once in a process, of a dream whose card calls it broken, and say why."""
    path = locate(id_or_path).resolve()
    doctor = _part(_read(path / "card.json"), "doctor")
    if doctor.get("tier") != "broken" or path in _warned:
        return
    _warned.add(path)
    findings = doctor.get("findings")
    rows = [row for row in findings if isinstance(row, dict)] if isinstance(findings, list) else []
    why = "; ".join(dict.fromkeys(str(row.get("fault")).replace("_", " ") for row in rows if row.get("broken") is True))
    name = NAMESPACE + path.name if is_name(path.name) else str(path)
    warnings.warn(
        f"the dream {name} is broken ({why or 'its card does not say why'}): what a policy earns in it says little of "
        f"what it earns for real; see `dreamenvs info {name}`",
        stacklevel=stacklevel + 1,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _part(value: dict[str, Any], name: str) -> dict[str, Any]:
    part = value.get(name)
    return part if isinstance(part, dict) else {}


def _missing(text: str, name: str) -> str:
    searched = ", ".join(str(shelf) for shelf in shelves())
    command = fitting_command(name)
    if command is None:
        known = f"ids look like {NAMESPACE}STEPVQ-Pong-v0, and a path must hold a dream's manifest.json"
        return f"there is no dream {text!r}: {known}; searched: {searched}"
    return f"no dream {name!r} is at hand (searched: {searched}); this command makes one: {command}"
