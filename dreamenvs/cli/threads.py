"""How many CPU threads a command takes: what it is told, else OMP_NUM_THREADS, else as many as there are free cores.

Two threads on a busy machine of two cores made fits 4 and agents 10 times slower than one. Sums round differently with
another number of threads, so a run that is resumed keeps the number that it began with.
"""

from __future__ import annotations

import os

import torch


def use_threads(asked: int | None) -> None:
    """Set PyTorch's threads."""
    if asked is not None and asked < 1:
        raise SystemExit(f"--threads is {asked}; it is at least 1")
    torch.set_num_threads(asked or named_threads() or free_cores())


def keep_threads(asked: int | None, before: int) -> None:
    """Set the threads of a run that is resumed: those `before`, where nobody asks for a number."""
    if asked is None and named_threads() is None:
        torch.set_num_threads(before)


def named_threads() -> int | None:
    """OMP_NUM_THREADS, if it is a number; it may also be a list, one for each level of nesting."""
    named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(named) if named.isdecimal() and int(named) else None


def free_cores() -> int:
    """The cores of this process that nothing ran on in the last minute, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # Windows has none
    return max(1, min(cores, round(cores - load)))
