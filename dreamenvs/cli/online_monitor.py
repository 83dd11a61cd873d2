"""OnlineMonitor: tells people how an online run is going, with a progress bar, JSON lines and TensorBoard."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from tqdm import tqdm

from dreamenvs.cli.fit_monitor import open_board
from dreamenvs.cli.run_directory import RunDirectory
from dreamenvs.fitting.online import Event, Online
from dreamenvs.fitting.online_state import Counters

SECONDS = 2.0
"""From one drawing of the bar to the next."""
EVERY = 25
"""Updates of a part whose average is one line of metrics."""


class OnlineMonitor:
    """Takes every event of a run. What is left of it is estimated from what each kind of update took so far."""

    def __init__(self, run: RunDirectory, online: Online) -> None:
        self.online = online
        self.seconds: dict[str, float] = {}
        """What each kind of event took in this process, altogether."""
        self._counts: dict[str, int] = {}
        self._recent: dict[str, list[Event]] = {}
        keep_until(run, online.counters)
        self._lines = run.metrics.open("a", encoding="utf-8")
        self._board = open_board(run, online.counters.clock)
        end = online.schedule.end
        layout = "{desc} {percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt} steps [{elapsed}{postfix}]"
        self.bar = tqdm(total=end, initial=online.counters.clock, desc="online", bar_format=layout, unit="step")
        self._shown: dict[str, str] = {}
        self._drawn = 0.0

    def record(self, event: Event) -> None:
        """One event."""
        kind, steps = event.name, event.clock - self.bar.n if event.name == "collect" else 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + event.seconds
        self._counts[kind] = self._counts.get(kind, 0) + steps
        recent = self._recent.setdefault(kind, [])
        recent.append(event)
        if len(recent) == EVERY or kind in ("collect", "evaluation"):
            self._write(recent)
            self._recent[kind] = []
        if kind == "collect":
            self.bar.n = event.clock
        # The bar does not move while a round's updates are made up for, and would not be drawn by itself.
        if time.monotonic() - self._drawn >= SECONDS or event.clock == self.bar.total:
            self.bar.set_postfix({"left": self.left(), **self._shown}, refresh=True)
            self._drawn = time.monotonic()

    def left(self) -> str:
        """How long the rest will take, by what was measured; of parts that have not begun nothing is known yet."""
        counters, schedule = self.online.counters, self.online.schedule
        missing = {"collect": max(schedule.steps - counters.clock, 0)}
        missing["agent"] = schedule.agent.due(schedule.end) - counters.agent_updates
        for name, done in zip(counters.stages, counters.updates, strict=True):
            missing[name] = schedule.stages[name].due(schedule.end) - done
        known = {name: count for name, count in missing.items() if self._counts.get(name)}
        seconds = sum(count * self.seconds[name] / self._counts[name] for name, count in known.items())
        sign = "" if all(name in known for name, count in missing.items() if count) else ">"
        return sign + str(tqdm.format_interval(seconds))

    def close(self) -> None:
        """Close files and the bar."""
        for recent in self._recent.values():
            if recent:
                self._write(recent)
        self.bar.close()
        self._lines.close()
        if self._board is not None:
            self._board.close()

    def _write(self, recent: list[Event]) -> None:
        last = recent[-1]
        names = dict.fromkeys(name for event in recent for name in event.values)
        means = {
            name: statistics.fmean(event.values[name] for event in recent if name in event.values) for name in names
        }
        line: dict[str, Any] = {"part": last.name, "clock": last.clock, "number": last.number}
        self._lines.write(json.dumps(line | means | {"seconds": sum(event.seconds for event in recent)}) + "\n")
        self._lines.flush()
        if self._board is not None:
            for name, value in means.items():
                self._board.add_scalar(f"{last.name}/{name}", value, last.clock)
        for name in ("episode_return", "mean", "loss", "return"):
            if name in means:
                self._shown[f"{last.name}_{name}" if name != "episode_return" else name] = f"{means[name]:.3g}"


def keep_until(run: RunDirectory, counters: Counters) -> None:
    """Drop the lines of what was lost when the run was killed, and will come again."""
    if not run.metrics.exists():
        return
    done = dict(zip(counters.stages, counters.updates, strict=True))
    done |= {"collect": counters.clock, "agent": counters.agent_updates, "evaluation": counters.evaluations}
    kept = []
    for text in run.metrics.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break  # cut off by the kill
        if line["number"] <= done.get(line["part"], 0):
            kept.append(text + "\n")
    run.metrics.write_text("".join(kept), encoding="utf-8")
