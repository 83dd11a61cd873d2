"""Run a study: families × worlds × variants × seeds, on this machine or on a Ray cluster.

    python training/suite.py study.json                # one run per core
    python training/suite.py study.json --ray auto     # on the cluster that this machine belongs to
    python training/suite.py study.json --plan         # only say what would be run

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
from study import SCRIPTS, Run, Study, check_scripts, read_study
from study_directory import StudyDirectory
from suite_table import Table

TICK = 0.2


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
        for run in left:
            print("\n".join([f"# {run.title}: {directory.path / run.key}", *run.typed()]))
        print(f"# {len(left)} of {len(list(study.runs()))} runs are left")
        return 0
    with directory.lead(study):
        workers = build_workers(args, study)
        try:
            with interruption() as stop:
                table = drive(study, directory, workers, stop, scripts, again=args.again)
        finally:
            workers.close()
    return conclude(table, directory)


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


def drive(
    study: Study,
    directory: StudyDirectory,
    workers: Workers,
    stop: Event,
    scripts: Mapping[str, Path] = SCRIPTS,
    *,
    again: bool = False,
) -> Table:
    """Run all that is not finished, until it is, or until told to stop."""
    check_scripts(study, scripts)
    runs = {run.key: run for run in study.runs()}
    failures = directory.failures()
    table = Table(list(runs.values()), directory.path, directory.seconds())
    queue: deque[Run] = deque()
    for run in runs.values():
        if directory.finished(run):
            table.states[run.key] = "finished"
        elif failures[run.key] > study.retries and not again:
            table.states[run.key] = "failed"
        else:
            if failures[run.key] > study.retries:
                directory.pardon(run)
                failures[run.key] = 0
            queue.append(run)
    active: set[str] = set()
    told = False
    while active or queue:
        table.slots = workers.slots()
        while queue and not stop.is_set() and len(active) < table.slots:
            run = queue.popleft()
            workers.submit(describe(run, study, directory, scripts))
            active.add(run.key)
            table.set(run, "running")
        if stop.is_set() and not told:
            print("\nstopping: runs save first; Ctrl-C again ends them at once", flush=True)
            workers.stop()
            told = True
        for key, result in list(workers.wait(TICK)):
            active.remove(key)
            settle(runs[key], result, study, directory, table, failures, queue)
        table.redraw()
        if stop.is_set():
            for run in queue:
                table.states[run.key] = "stopped"
            queue.clear()
    table.close()
    return table


def describe(run: Run, study: Study, directory: StudyDirectory, scripts: Mapping[str, Path]) -> Task:
    """What whoever makes an attempt needs to know."""
    commands = tuple((str(scripts[script].resolve()), *words) for script, *words in run.filled())
    place = str(directory.prepare(run).resolve())
    seconds = None if study.minutes is None else 60 * study.minutes
    return Task(run.key, place, run.work, commands, run.threads, seconds)


def settle(
    run: Run,
    result: Attempt,
    study: Study,
    directory: StudyDirectory,
    table: Table,
    failures: dict[str, int],
    queue: deque[Run],
) -> None:
    """Keep what an attempt came to, and try again what failed."""
    directory.record(run, result)
    lost = f"{result.lost} earlier attempts were killed" if result.lost else ""
    if result.outcome != "failed":
        table.set(run, result.outcome, lost, result.seconds)
        return
    failures[run.key] += 1
    note = "\n    ".join([result.reason, *result.tail[-3:]])
    if failures[run.key] <= study.retries:
        queue.append(run)
        table.set(run, "waiting", f"{note}\n  it is tried again", result.seconds)
    else:
        table.set(run, "failed", note, result.seconds)


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
        return 130
    if "finished" in states:
        print(f"python training/report.py {directory.path}    # tables and plots")
    return 1 if failed else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
