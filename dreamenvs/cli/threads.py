"""How many CPU threads a command takes: what it is told, else OMP_NUM_THREADS, else one.

Two threads on a busy machine of two cores made fits 4 and agents 10 times slower than one.
"""

from __future__ import annotations

import os

import torch


def use_threads(asked: int | None) -> None:
    """Set PyTorch's threads."""
    if asked is not None and asked < 1:
        raise SystemExit(f"--threads is {asked}; it is at least 1")
    named = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(asked or (int(named) if named.isdecimal() and int(named) else 1))
