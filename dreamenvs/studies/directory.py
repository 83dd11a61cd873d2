"""The directory of a study: its file, a directory for every run, and the journal of all attempts.

A run is finished when its `results.json` is there, and nothing else decides that: it is written once, whole, by the one
process that leads the study.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dreamenvs.config import from_json, to_json
from dreamenvs.files.atomic_directory import dump_json, parse_json
from dreamenvs.files.atomic_files import append_line, write_file
from dreamenvs.studies.attempt import Attempt
from dreamenvs.studies.study import Run, Study

if sys.platform != "win32":
    import fcntl


class StudyDirectory:
    """`study.json`, `attempts.jsonl` and `<run>/results.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "attempts.jsonl"

    @contextmanager
    def lead(self, study: Study) -> Iterator[None]:
        """Begin a study or go on with it, as the only process that does."""
        self.path.mkdir(parents=True, exist_ok=True)
        foreign = any(self.path.iterdir()) and not (self.path / "study.json").exists()
        if foreign and any(entry.name != "lock" for entry in self.path.iterdir()):
            raise SystemExit(f"{self.path} holds something else than a study: give another --directory")
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if sys.platform != "win32":
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise SystemExit(f"another suite is at work in {self.path}: wait for it, or stop it") from None
            write_file(self.path / "study.json", dump_json(to_json(study)))
            yield
        finally:
            os.close(descriptor)

    def read_study(self) -> Study:
        """The study as it was last begun."""
        path = self.path / "study.json"
        if not path.is_file():
            raise SystemExit(f"{self.path} holds no study: dreamenvs study makes one from a study file")
        return from_json(Study, parse_json(path.read_bytes(), str(path)), "study")

    def prepare(self, run: Run) -> Path:
        """The directory of a run, which says what it is of."""
        place = self.path / run.key
        place.mkdir(exist_ok=True)
        if not (place / "run.json").exists():
            write_file(place / "run.json", dump_json(run._asdict() | {"typed": run.typed()}))
        return place

    def finished(self, run: Run) -> bool:
        """Whether its results are there."""
        return (self.path / run.key / "results.json").is_file()

    def results(self, run: Run) -> dict[str, Any] | None:
        """The results of a run, or None where there are none yet."""
        path = self.path / run.key / "results.json"
        if not path.is_file():
            return None
        value: dict[str, Any] = parse_json(path.read_bytes(), str(path))
        return value

    def adoptable(self, run: Run, kept: Path) -> bool:
        """Whether `adopt` would take over a result."""
        return not self.finished(run) and _kept_file(run, kept).is_file()

    def adopt(self, run: Run, kept: Path) -> bool:
        """Take over the results of a run that `keep` put into another place; whether there were any to take."""
        source = _kept_file(run, kept)
        if not self.adoptable(run, kept):
            return False
        data = source.read_bytes()
        parse_json(data, str(source))
        write_file(self.prepare(run) / "results.json", data)
        self._append({"run": run.key, "outcome": "adopted", "from": str(kept)})
        return True

    def keep(self, run: Run, kept: Path) -> None:
        """Put the results of a finished run into another place, from where `adopt` takes them over."""
        kept.mkdir(parents=True, exist_ok=True)
        write_file(_kept_file(run, kept), (self.path / run.key / "results.json").read_bytes())

    def record(self, run: Run, attempt: Attempt) -> None:
        """Keep what an attempt came to: first the results, then the line in the journal."""
        if attempt.results is not None and not self.finished(run):
            write_file(self.path / run.key / "results.json", attempt.results)
        line = {"run": run.key, "ended": datetime.now(UTC).isoformat(timespec="seconds")} | attempt._asdict()
        del line["results"]
        if attempt.outcome == "finished":
            del line["tail"]
        self._append(line)

    def pardon(self, run: Run) -> None:
        """Forget how often a run failed."""
        self._append({"run": run.key, "outcome": "pardoned"})

    def attempts(self) -> list[dict[str, Any]]:
        """The journal; half a line, which a power cut may leave, is left out."""
        if not self.journal.exists():
            return []
        lines = []
        for text in self.journal.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                line = json.loads(text)
                if isinstance(line, dict) and "run" in line and "outcome" in line:
                    lines.append(line)
        return lines

    def failures(self) -> Counter[str]:
        """How often each run failed, since it was last pardoned."""
        count: Counter[str] = Counter()
        for line in self.attempts():
            count[line["run"]] += line["outcome"] == "failed"
            if line["outcome"] == "pardoned":
                count[line["run"]] = 0
        return count

    def seconds(self) -> dict[str, float]:
        """How long each run took so far, over all its attempts."""
        total: dict[str, float] = {}
        for line in self.attempts():
            total[line["run"]] = total.get(line["run"], 0.0) + line.get("seconds", 0.0)
        return total

    def _append(self, line: dict[str, Any]) -> None:
        append_line(self.journal, json.dumps(line).encode())


def _kept_file(run: Run, kept: Path) -> Path:
    return kept / f"{run.key}.json"
