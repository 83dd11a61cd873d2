"""Run a study: families × worlds × variants × seeds, on this machine or on a Ray cluster.

    dreamenvs study study.json                # one run per core
    dreamenvs study study.json --ray auto     # on the cluster that this machine belongs to
    dreamenvs study study.json --plan         # only say what would be run
    dreamenvs study study.json --adopt training/studies/minatar/runs    # go on with what a report kept

What is finished is never run again: after Ctrl-C, a power cut or with more seeds in the file, the same command goes on.
A run that fails is tried again, from where it came to, and in the end left aside while the others go on. The exit code
is 0 if all are finished, 1 if some failed, and 130 after Ctrl-C. dreamenvs.cli.report makes tables and plots of it all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dreamenvs.interruption import interruption
from dreamenvs.studies.directory import StudyDirectory
from dreamenvs.studies.progress_table import ProgressTable
from dreamenvs.studies.runner import Drive, LocalWorkers, Workers
from dreamenvs.studies.study import SCRIPTS, Study, read_study

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
    """Results of runs that are finished, as `python -m dreamenvs.cli.report --keep` leaves them; they are not run
    again. A run is the same if all its commands are."""
    plan: bool = False
    """Print the commands that are left to run, and run none."""


def main(args: Args, scripts: Mapping[str, str | Path] = SCRIPTS) -> int:
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
        from dreamenvs.studies.ray_runner import RayWorkers
    except ImportError as error:
        raise SystemExit(f'--ray needs Ray: pip install "dreamenvs[ray]" ({error})') from error
    return RayWorkers(args.ray, args.workers, study.threads, args.gpus, study.retries)


def conclude(table: ProgressTable, directory: StudyDirectory) -> int:
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
        print(f"python -m dreamenvs.cli.report {directory.path}    # tables and plots")
    return 1 if failed else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))
