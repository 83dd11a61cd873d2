"""What benchmarks measure with: seconds, floating-point operations, memory, and the machine's peak as a yardstick."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dreamenvs import tree
from dreamenvs.nn.flop_counting import operation_counter

Row = dict[str, Any]
"""A line of a table."""
Turn = Callable[[], Sequence[float]]
"""One or several measurements of the same thing, in seconds."""

SIDE = 2048
GEMM_GFLOP = 2 * SIDE**3 / 1e9
_LEFT, _RIGHT, _PRODUCT = (torch.randn(SIDE, SIDE) for _ in range(3))


def timed(function: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def gemm_seconds() -> list[float]:
    """The yardstick: a large fp32 matrix product."""
    return [timed(lambda: torch.mm(_LEFT, _RIGHT, out=_PRODUCT))]


def interleave(turns: Mapping[str, Turn], seconds: float, least: int = 3) -> dict[str, float]:
    """The median of each, measured turn and turn about, so that a busy moment meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    deadline, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < deadline or done < least:
        for name, turn in turns.items():
            times[name] += turn()
        done += 1
    return {name: statistics.median(values) for name, values in times.items()}


def count_gflop(function: Callable[[], Any]) -> float:
    """Matrix products and convolutions of one call, backward passes included."""
    with operation_counter() as counter:
        function()
    flops: int = counter.get_total_flops()
    return flops / 1e9


def resident_mib() -> int:
    """Memory of this process now."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() // 2**20


def forget_peak() -> None:
    """Let `peak_mib` count from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> int:
    """The most memory that this process had since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 2**10


def tree_mib(state: Any) -> float:
    """Memory that the tensors of a state show."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(state)) / 2**20


def tell(*words: object) -> None:
    """Say what is done, beside the output, for those who wait."""
    print(*words, file=sys.stderr, flush=True)


def table(rows: Sequence[Row]) -> str:
    """Rows as columns for people."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = [[row.get(name, "") for name in names] for row in rows]
    cells = [names] + [[f"{value:,}" if isinstance(value, int) else str(value) for value in line] for line in values]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
