"""What people see of a study that runs: a table that is redrawn in a terminal, a line for every change elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal, TextIO

from dreamenvs.studies.attempt import tail
from dreamenvs.studies.study import Run

RunState = Literal["waiting", "running", "finished", "failed", "stopped"]
MARKS: Mapping[RunState, str] = {"waiting": "·", "running": "▸", "finished": "✓", "failed": "✗", "stopped": "–"}
REDRAW = 0.5


class ProgressTable:
    """The state of every run, and when all will be done."""

    def __init__(self, runs: Sequence[Run], directory: Path, seconds: Mapping[str, float], out: TextIO | None = None):
        self.runs, self.directory = runs, directory
        self.states: dict[str, RunState] = {run.key: "waiting" for run in runs}
        self.slots = 1
        self.stopping = False
        self._seconds = dict(seconds)
        self._begun: dict[str, float] = {}
        self._out = sys.stdout if out is None else out
        self._live = self._out.isatty()
        self._height = 0
        self._drawn = 0.0

    def set(self, run: Run, state: RunState, note: str = "", seconds: float = 0.0) -> None:
        """A change; where nothing is redrawn, it is a line. `seconds` is what an attempt took that ended with it."""
        self._begun.pop(run.key, None)
        if state == "running":
            self._begun[run.key] = time.monotonic()
        self._seconds[run.key] = self._seconds.get(run.key, 0.0) + seconds
        self.states[run.key] = state
        if self._live:
            if note and state != "finished":
                self.say(f"{run.title}: {note}")
            self.redraw(now=True)
        else:
            took = f" after {duration(seconds)}" if seconds else ""
            print(
                f"{state} {run.title}{took}{': ' + note if note else ''} [{self.summary()}]", file=self._out, flush=True
            )

    def redraw(self, *, now: bool = False) -> None:
        """Draw the table in the place of the last one, now and then."""
        if not self._live or (not now and time.monotonic() < self._drawn + REDRAW):
            return
        size = shutil.get_terminal_size()
        lines = [line[: size.columns - 1] for line in self.lines(size.lines - 2)]
        self._erase()
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._height, self._drawn = len(lines), time.monotonic()

    def lines(self, most: int) -> list[str]:
        """The table, in so many lines at most: groups with their seeds, what runs, and a summary."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(f"{run.method}  {run.env}", []).append(run)
        width = max(map(len, groups), default=0)
        rows = [f"{name:<{width}}  {''.join(MARKS[self.states[r.key]] for r in each)}" for name, each in groups.items()]
        working = [self._working(run) for run in self.runs if self.states[run.key] == "running"]
        room = max(1, most - 1)
        working = working[: max(1, room // 2)]
        if len(rows) > room - len(working):
            kept = max(0, room - len(working) - 1)
            rows = [*rows[:kept], f"… and {len(rows) - kept} more"]
        return [*rows, *working, self.summary()]

    def summary(self) -> str:
        """Counts, and the time that is left."""
        count = Counter(self.states.values())
        parts = [f"{count['finished']} of {len(self.runs)} finished"]
        parts += [f"{count[state]} {state}" for state in ("running", "failed", "stopped") if count[state]]
        left = self.seconds_left()
        if count["waiting"] or count["running"]:
            parts.append(f"ETA {'–' if left is None else duration(left)}")
        return ", ".join(parts)

    def seconds_left(self) -> float | None:
        """Until all is done, if runs take as long as others of their method did; None before one has finished."""
        known = [run for run in self.runs if self.states[run.key] == "finished" and self._seconds.get(run.key)]
        if not known:
            return None
        times: dict[str, list[float]] = {}
        for run in known:
            times.setdefault(run.method, []).append(self._seconds[run.key])
        usual = sum(self._seconds[run.key] for run in known) / len(known)
        left = []
        for run in self.runs:
            if self.states[run.key] in ("waiting", "running"):
                own = times.get(run.method, [usual])
                since = time.monotonic() - self._begun[run.key] if run.key in self._begun else 0.0
                left.append(max(0.0, sum(own) / len(own) - self._seconds.get(run.key, 0.0) - since))
        return max(sum(left) / max(1, self.slots), max(left, default=0.0))

    def say(self, text: str) -> None:
        """Something besides, above the table."""
        self._erase()
        print(text, file=self._out, flush=True)

    def close(self) -> None:
        """Leave the last table standing."""
        self.redraw(now=True)
        self._height = 0

    def _working(self, run: Run) -> str:
        last = tail(self.directory / run.key / "log.txt", 1)
        since = duration(time.monotonic() - self._begun[run.key])
        return f"{MARKS['running']} {run.title}  {since}  {last[0] if last else ''}"

    def _erase(self) -> None:
        if self._height:
            self._out.write(f"\x1b[{self._height}F\x1b[J")
        self._height = 0


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))
