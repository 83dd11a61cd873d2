"""Run a study: families × worlds × variants × seeds, on this machine or on a Ray cluster.

    python training/suite.py study.json                # one run per core
    python training/suite.py study.json --ray auto     # on the cluster that this machine belongs to
    python training/suite.py study.json --plan         # only say what would be run
    python training/suite.py study.json --adopt training/studies/minatar/runs    # go on with what a report kept

What is finished is never run again: after Ctrl-C, a power cut or with more seeds in the file, the same command goes on.
A run that fails is tried again, from where it came to, and in the end left aside while the others go on. The exit code
is 0 if all are finished, 1 if some failed, and 130 after Ctrl-C. training/report.py makes tables and plots of it all.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Annotated, Protocol

import tyro
from attempt import Attempt, Orders, Task, attempt
from interruption import interruption
from study import SCRIPTS, Run, Study, read_study
from study_directory import StudyDirectory
from suite_table import Table

TICK = 0.2
STOPPED = 130
"""The exit code after Ctrl-C, as shells have it."""


@dataclass(frozen=True)
class Args:
    """Run a study."""

    study: Annotated[Path, tyro.conf.Positional]
    """The study file."""
    directory: Path | None = None
    """Where it is kept; by default runs/studies/<name>."""
    workers: int | None = None
    """Runs at a time; by default as many as the cores, here or of the cluster, have room for."""
    ray: str | None = None
    """`auto`, or the address of a Ray cluster; `local` starts Ray on this machine alone."""
    gpus: float = 0.0
    """GPUs of a run, or the share of one; on Ray."""
    again: bool = False
    """Try once more what has failed."""
    adopt: Path | None = None
    """Results of runs that are finished, as `training/report.py --keep` leaves them; they are not run again. A run is
    the same if all its commands are."""
    plan: bool = False
    """Print the commands that are left to run, and run none."""


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


def main(args: Args, scripts: Mapping[str, Path] = SCRIPTS) -> int:
    """The exit code."""
    study = read_study(args.study, scripts)
    directory = StudyDirectory(args.directory or Path("runs") / "studies" / study.name)
    if args.plan:
        left = [run for run in study.runs() if not directory.finished(run)]
        left = [run for run in left if args.adopt is None or not directory.adoptable(run, args.adopt)]
        for run in left:
            print("\n".join([f"# {run.title}: {directory.path / run.key}", *run.typed()]))
        print(f"# {len(left)} of {len(list(study.runs()))} runs are left")
        return 0
    with directory.lead(study):
        if args.adopt is not None:
            print(f"adopted {sum(directory.adopt(run, args.adopt) for run in study.runs())} results of {args.adopt}")
        workers = build_workers(args, study)
        drive = Drive(study, directory, scripts, again=args.again)
        try:
            with interruption() as stop:
                drive.run(workers, stop)
        except KeyboardInterrupt:
            print("ended at once; the same command goes on from what was saved")
            return STOPPED
        finally:
            workers.close()
    return conclude(drive.table, directory)


def build_workers(args: Args, study: Study) -> Workers:
    """Threads here, or tasks on Ray."""
    if args.workers is not None and args.workers < 1:
        raise SystemExit(f"--workers is {args.workers}; it must be 1 or more")
    if args.ray is None:
        return LocalWorkers(args.workers or max(1, _cores() // study.threads))
    try:
        from suite_ray import RayWorkers
    except ImportError as error:
        raise SystemExit(f'--ray needs Ray: pip install "dreamenvs[ray]" ({error})') from error
    return RayWorkers(args.ray, args.workers, study.threads, args.gpus, study.retries)


class Drive:
    """The queue of a study: what waits, what runs, and how often it failed."""

    def __init__(
        self, study: Study, directory: StudyDirectory, scripts: Mapping[str, Path], *, again: bool = False
    ) -> None:
        self.study, self.directory, self.scripts = study, directory, scripts
        self.runs = {run.key: run for run in study.runs()}
        self.table = Table(list(self.runs.values()), directory.path, directory.seconds())
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
        commands = tuple((str(self.scripts[script].resolve()), *words) for script, *words in run.filled())
        place = str(self.directory.prepare(run).resolve())
        seconds = None if self.study.minutes is None else 60 * self.study.minutes
        workers.submit(Task(run.key, place, run.work, commands, run.threads, seconds))
        self._active.add(run.key)
        self.table.set(run, "running")

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


def conclude(table: Table, directory: StudyDirectory) -> int:
    """Say what is done and what to do next."""
    print(f"{table.summary()}; everything is in {directory.path}")
    states = set(table.states.values())
    failed = [run for run in table.runs if table.states[run.key] == "failed"]
    for run in failed:
        print(f"failed: {run.title}, see {directory.path / run.key / 'log.txt'}")
    if failed:
        print("once the reason is gone, --again tries them once more")
    if "stopped" in states:
        print("the same command goes on from here")
        return STOPPED
    if "finished" in states:
        print(f"python training/report.py {directory.path}    # tables and plots")
    return 1 if failed else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
