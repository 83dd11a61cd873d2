"""Attempts as tasks on a Ray cluster; the only module that imports ray.

dreamenvs must be installed on every machine. The study's directory need not be there: a machine that does not
see it works on its own disk, and the results come back through Ray, to be written by the process that leads the study.
Where all see it, on a shared disk, a run whose machine is lost goes on elsewhere from where it came to.

Ray trusts everybody who can reach its ports: keep them inside your own network. `local` starts one at 127.0.0.1.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterable
from typing import Any

import ray
import ray.cloudpickle
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from dreamenvs.studies.attempt import Attempt, Task

# By value: a machine without dreamenvs reports that, instead of failing to load the task.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class RayWorkers:
    """Each attempt is a task. Ray tries again where a worker dies, and the study where a script fails."""

    def __init__(self, address: str, limit: int | None, threads: int, gpus: float, retries: int) -> None:
        self._limit, self._threads, self._gpus = limit, threads, gpus
        self._began = not ray.is_initialized()
        if self._began:
            _connect(address, limit, threads)
        # Ray tries again what a lost machine or a killed worker took along, and nothing else.
        remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=max(1, retries))
        self._remote = remote(make_attempt)
        self._attempts: dict[ray.ObjectRef[Any], str] = {}

    def slots(self) -> int:
        """What the cluster has room for; machines that join are used."""
        if self._limit is not None:
            return self._limit
        there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        room = there.get("CPU", 0.0) // self._threads
        if self._gpus:
            room = min(room, there.get("GPU", 0.0) // self._gpus)
        return max(1, int(room))

    def submit(self, task: Task) -> None:
        self._attempts[self._remote.remote(tuple(task))] = task.key

    def wait(self, seconds: float) -> Iterable[tuple[str, Attempt]]:
        if not self._attempts:
            time.sleep(seconds)
            return
        done, _ = ray.wait(list(self._attempts), num_returns=1, timeout=seconds)
        for reference in done:
            yield self._attempts.pop(reference), _result(reference)

    def stop(self) -> None:
        for reference in self._attempts:
            ray.cancel(reference, force=False)

    def close(self) -> None:
        for reference in self._attempts:
            ray.cancel(reference, force=True)
        self._attempts.clear()
        if self._began:
            ray.shutdown()


def make_attempt(task: tuple[Any, ...]) -> tuple[Any, ...]:
    """What runs on the cluster, where modules are those of that machine: only plain values go in and out."""
    try:
        from dreamenvs.studies.attempt import Orders, Task, attempt
    except ImportError as error:
        return ("failed", f"dreamenvs is not installed on {platform.node()}: {error}")
    return tuple(attempt(Task(*task), Orders()))


def _result(reference: ray.ObjectRef[Any]) -> Attempt:
    try:
        return Attempt(*ray.get(reference))
    except TaskCancelledError:
        return Attempt("stopped")
    except RayTaskError as error:
        reason = str(error.cause)
        return Attempt("stopped") if isinstance(error.cause, KeyboardInterrupt) else Attempt("failed", reason)
    except RayError as error:  # it was tried again, and lost again
        return Attempt("failed", f"Ray lost it: {type(error).__name__}: {str(error).splitlines()[0]}")


def _connect(address: str, limit: int | None, threads: int) -> None:
    if address != "local":
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise SystemExit(f"there is no Ray cluster at {address!r}: {error}") from error
        return
    count = None if limit is None else limit * threads
    ray.init(
        address="local",
        num_cpus=count,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
