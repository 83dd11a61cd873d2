"""The queue of a study: which runs wait, which are at work, here or on Ray, and how often each failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Protocol

from dreamenvs.studies.attempt import Attempt, Orders, Task, attempt
from dreamenvs.studies.directory import StudyDirectory
from dreamenvs.studies.progress_table import ProgressTable
from dreamenvs.studies.study import Run, Study

TICK = 0.2


class Workers(Protocol):
    """Where attempts are made."""

    def slots(self) -> int:
        """How many attempts there is room for, now."""

    def submit(self, task: Task) -> None:
        """Begin an attempt."""

    def wait(self, seconds: float) -> Iterable[tuple[str, Attempt]]:
        """The attempts that have ended, by the key of their run; waits so long at most where there is none."""

    def stop(self) -> None:
        """Let all attempts save and end."""

    def close(self) -> None:
        """End what is still at work, at once."""


class LocalWorkers:
    """Threads of this process, each of which watches over the scripts of one run."""

    def __init__(self, count: int) -> None:
        self._count, self._orders = count, Orders()
        self._pool = ThreadPoolExecutor(count)
        self._attempts: dict[Future[Attempt], str] = {}

    def slots(self) -> int:
        return self._count

    def submit(self, task: Task) -> None:
        self._attempts[self._pool.submit(attempt, task, self._orders)] = task.key

    def wait(self, seconds: float) -> Iterable[tuple[str, Attempt]]:
        done, _ = wait(self._attempts, timeout=seconds, return_when=FIRST_COMPLETED)
        for future in done:
            yield self._attempts.pop(future), _result(future)

    def stop(self) -> None:
        self._orders.stop.set()

    def close(self) -> None:
        self._orders.stop.set()
        self._orders.kill.set()
        self._pool.shutdown(wait=True)


def _result(future: Future[Attempt]) -> Attempt:
    try:
        return future.result()
    except OSError as error:  # the disk is full, say: other runs may have another one
        return Attempt("failed", f"cannot run it: {error}")


class Drive:
    """The queue of a study: what waits, what runs, and how often it failed."""

    def __init__(
        self, study: Study, directory: StudyDirectory, scripts: Mapping[str, str | Path], *, again: bool = False
    ) -> None:
        self.study, self.directory, self.scripts = study, directory, scripts
        self.runs = {run.key: run for run in study.runs()}
        self.table = ProgressTable(list(self.runs.values()), directory.path, directory.seconds())
        self._failures = directory.failures()
        self._queue: deque[Run] = deque()
        self._active: set[str] = set()
        for run in self.runs.values():
            hopeless = self._failures[run.key] > study.retries
            if directory.finished(run):
                self.table.states[run.key] = "finished"
            elif hopeless and not again:
                self.table.states[run.key] = "failed"
            else:
                if hopeless:
                    directory.pardon(run)
                    self._failures[run.key] = 0
                self._queue.append(run)

    def run(self, workers: Workers, stop: Event) -> None:
        """Run all that is not finished, until it is, or until told to stop."""
        while self._active or (self._queue and not stop.is_set()):
            self.table.slots = workers.slots()
            while self._queue and not stop.is_set() and len(self._active) < self.table.slots:
                self._begin(self._queue.popleft(), workers)
            for key, result in list(workers.wait(TICK)):
                self._active.remove(key)
                self._settle(self.runs[key], result)
            self.table.redraw()
            if stop.is_set() and self._active and not self.table.stopping:
                self.table.stopping = True
                self.table.say("stopping: runs save first; Ctrl-C again ends them at once")
                workers.stop()
        for run in self._queue:
            self.table.states[run.key] = "stopped"
        self.table.close()

    def _begin(self, run: Run, workers: Workers) -> None:
        commands = tuple((*self._script(name), *words) for name, *words in run.filled())
        place = str(self.directory.prepare(run).resolve())
        seconds = None if self.study.minutes is None else 60 * self.study.minutes
        workers.submit(Task(run.key, place, run.work, commands, run.threads, seconds))
        self._active.add(run.key)
        self.table.set(run, "running")

    def _script(self, name: str) -> tuple[str, ...]:
        """What Python is given to run a script."""
        place = self.scripts[name]
        return ("-m", place) if isinstance(place, str) else (str(place.resolve()),)

    def _settle(self, run: Run, result: Attempt) -> None:
        """Keep what an attempt came to, and try again what failed."""
        self.directory.record(run, result)
        if result.outcome != "failed":
            lost = f"{result.lost} earlier attempts were killed" if result.lost else ""
            self.table.set(run, result.outcome, lost, result.seconds)
            return
        self._failures[run.key] += 1
        note = "\n    ".join([result.reason, *result.tail[-3:]])
        if self._failures[run.key] <= self.study.retries:
            self._queue.append(run)
            self.table.set(run, "waiting", f"{note}\n  it is tried again", result.seconds)
        else:
            self.table.set(run, "failed", note, result.seconds)
