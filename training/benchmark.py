"""Measure how fast and how large models are, against what this machine can do.

    python training/benchmark.py parameters          # the paper's parameter counts
    python training/benchmark.py imagination         # env steps per second of paper-sized models
    python training/benchmark.py env                 # what the environment layer adds to the model's own step
    python training/benchmark.py endless             # time and memory of a step, early and late in one long dream

Times are medians; the machine's peak is a large fp32 matrix product in the same run. `--json` prints for machines.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from torch.utils.flop_counter import FlopCounterMode

from dreamenvs import tree
from dreamenvs.actions import sample_actions
from dreamenvs.checkpoint import Checkpoint
from dreamenvs.dream import MIN_ROWS
from dreamenvs.envs.vector import DreamVectorEnv
from dreamenvs.models import FAMILIES
from dreamenvs.random import Noise
from dreamenvs.types import DiscreteActions, Segment, WorldSpec

Row = dict[str, Any]

PAPER_PAST = 20
"""Frames that the paper's imagination has behind it at the end: a context of 4 and 16 imagined ones."""


@dataclass(frozen=True)
class Args:
    """Measure how fast and how large models are."""

    what: Annotated[Literal["parameters", "imagination", "env", "endless"], tyro.conf.Positional]
    """What to measure."""
    rows: tuple[int, ...] = (1, 16, 64, 1024)
    """Batch sizes of `imagination`."""
    families: tuple[str, ...] = ("STEPVQ", "STEPVQT")
    """Families of `imagination` and `env`."""
    seconds: float = 4.0
    """Time spent on each figure."""
    threads: int | None = None
    """CPU threads; all cores by default."""
    json: bool = False
    """Print JSON instead of a table."""


def main(args: Args) -> None:
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    measure = {"parameters": parameters, "imagination": imagination, "env": env_overhead, "endless": endless}
    measured = measure[args.what](args)
    print(json.dumps(measured, indent=1) if args.json else table(measured))


def parameters(args: Args) -> list[Row]:
    """The bottleneck with its dynamics head, as the paper counts it, and how it grows with the frame."""
    rows = []
    for family in ("STEPVQ", "CB"):
        sizes = {}
        for side in (64, 96):
            model = build(family, side)
            head = sum(p.numel() for p in model.prior.parameters())
            sizes[side] = model.tokenizer.bottleneck_size + head
            total = sum(p.numel() for p in model.parameters())
            rows.append(
                {"family": family, "frame": f"{side}x{side}", "bottleneck_and_head": sizes[side], "whole_model": total}
            )
        rows[-1]["growth"] = round(sizes[96] / sizes[64], 3)
    return rows


@torch.inference_mode()
def imagination(args: Args) -> list[Row]:
    """Imagined steps per second, tokens only; with a full window too, where there is one."""
    rows = []
    for family in args.families:
        model = build(family)
        for past in (PAPER_PAST, model.sequence.config.window) if has_window(model) else (PAPER_PAST,):
            full = warm_state(model, past)
            rows += [imagine(family, model, full, count, past, args.seconds) for count in args.rows]
    return rows


def imagine(family: str, model: Any, full: Any, count: int, past: int, seconds: float) -> Row:
    """One line of `imagination`: the whole step and the sequence model alone, beside the peak."""
    state = tree.take_rows(full, torch.arange(count) % MIN_ROWS)
    functions = {"step": Stepper(model, state), "core": Stepper(model, state, core=True)}
    mflop = {name: count_mflop(function) for name, function in functions.items()}
    times = interleave(functions | {"peak": gemm}, seconds)
    peak = GEMM_FLOP / times["peak"] / 1e9
    share = {name: mflop[name] * count / times[name] / 1e3 / peak for name in functions}
    return {
        "family": family,
        "rows": count,
        "frames_behind": past,
        "env_steps_per_second": round(count / times["step"], 1),
        "ms": round(times["step"] * 1e3, 2),
        "mflop_per_step": round(mflop["step"], 2),
        "share_of_peak": round(share["step"], 3),
        "core_ms": round(times["core"] * 1e3, 2),
        "core_mflop": round(mflop["core"], 2),
        "core_share_of_peak": round(share["core"], 3),
        "gemm_peak_gflops": round(peak, 1),
    }


def count_mflop(function: Stepper) -> float:
    """MFLOP of a step for each row; counted over enough rows that none is padding."""
    rows = 64
    state = tree.take_rows(function.start, torch.arange(rows) % len(function.start.tokens))
    with FlopCounterMode(display=False) as counter:
        Stepper(function.model, state, core=function.core)()
    return counter.get_total_flops() / rows / 1e6


def env_overhead(args: Args) -> list[Row]:
    """`DreamVectorEnv.step` with latent observations against the bare `WorldModel.step`, turn and turn about."""
    rows, count = [], 64
    for family in args.families:
        model = build(family)
        checkpoint = Checkpoint(
            model=model, contexts=random_context(model.spec, 8, 4), family=family, config=None, card={}, path=Path(".")
        )
        envs = DreamVectorEnv(count, checkpoint=checkpoint, obs_type="latent", horizon=10**9)
        envs.reset(seed=0)
        actions = np.zeros(count, dtype=np.int64)
        with torch.inference_mode():
            past = model.sequence.config.window if has_window(model) else PAPER_PAST
            bare = Stepper(model, tree.take_rows(warm_state(model, past), torch.arange(count) % MIN_ROWS))
            for _ in range(past):
                envs.step(actions)
            times = interleave({"bare": bare, "env": partial(envs.step, actions)}, args.seconds * 2)
        rows.append(
            {
                "family": family,
                "rows": count,
                "model_ms": round(times["bare"] * 1e3, 2),
                "env_ms": round(times["env"] * 1e3, 2),
                "ratio": round(times["env"] / times["bare"], 3),
            }
        )
    return rows


@torch.inference_mode()
def endless(args: Args) -> list[Row]:
    """A step after 200 imagined ones and after 10,000 of one dream, turn and turn about, and the memory then."""
    rows = []
    for family in args.families:
        model = build(family)
        step = Stepper(model, model.observe(random_context(model.spec, MIN_ROWS, 2)))
        row: Row = {"family": family, "rows": MIN_ROWS}
        states = []
        for moment in (200, 10_000):
            while step.steps < moment:
                step()
            states.append(step.state if states else tree.clone(step.state))  # one copy, in memory at both moments
            row[f"mib_at_{moment}"] = resident_mib()
        moments = {"ms_at_200": Stepper(model, states[0]), "ms_at_10000": Stepper(model, states[1])}
        times = interleave(moments, args.seconds * 2)
        row |= {name: round(seconds * 1e3, 2) for name, seconds in times.items()}
        rows.append(row | {"ratio": round(times["ms_at_10000"] / times["ms_at_200"], 3)})
    return rows


def timed(function: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def resident_mib() -> int:
    """Memory of this process."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() // 2**20


def build(family: str, side: int = 64) -> Any:
    """A paper-sized model with random weights."""
    torch.manual_seed(0)
    spec = WorldSpec(world="Benchmark", observation_shape=(3, side, side), actions=DiscreteActions(count=18))
    model = FAMILIES[family].build(FAMILIES[family].paper, spec).eval()
    # A fresh head says even odds of an end; a row that is reset is not what is measured here.
    torch.nn.init.constant_(model.termination.output.bias, -30.0)
    return model


def random_context(spec: WorldSpec, rows: int, steps: int) -> Segment:
    """Noise in the shape of experience."""
    frames = torch.randint(0, 256, (rows, steps, *spec.observation_shape), dtype=torch.uint8)
    actions = sample_actions(spec.actions, rows * steps).unflatten(0, (rows, steps))
    flags = torch.zeros(rows, steps, dtype=torch.bool)
    return Segment(frames, actions, torch.zeros(rows, steps), flags, ~flags)


def has_window(model: Any) -> bool:
    """Whether the sequence model attends to a window of the past."""
    return hasattr(model.sequence.config, "window")


def warm_state(model: Any, past: int) -> Any:
    """A state with so many frames behind it."""
    return model.observe(random_context(model.spec, MIN_ROWS, past + 1))


class Stepper:
    """One imagined step after another, of a model or of its sequence model alone; `restart` goes back to the start."""

    def __init__(self, model: Any, state: Any, *, core: bool = False) -> None:
        self.model, self.start, self.core = model, state, core
        rows = len(state.tokens)
        self.actions, self.seeds = sample_actions(model.spec.actions, rows), torch.arange(rows)
        self.inputs = torch.randn(rows, model.sequence.width)
        self.restart()

    def restart(self) -> None:
        self.state, self.steps = tree.clone(self.start), 0

    def __call__(self) -> None:
        if self.core:
            _, cache = self.model.sequence.step(self.inputs, self.state.cache)
            self.state = self.state._replace(cache=cache)
        else:
            noise = Noise(self.seeds, torch.full_like(self.seeds, self.steps))
            self.state, _ = self.model.step(self.state, self.actions, noise)
        self.steps += 1


SIDE = 2048
GEMM_FLOP = 2 * SIDE**3
_LEFT, _RIGHT, _PRODUCT = (torch.randn(SIDE, SIDE) for _ in range(3))


def gemm() -> None:
    """The yardstick."""
    torch.mm(_LEFT, _RIGHT, out=_PRODUCT)


def interleave(functions: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median seconds of each call, measured turn and turn about, so that a busy moment meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(next(iter(times.values()))) < 5:
        for name, function in functions.items():
            if isinstance(function, Stepper):
                function.restart()
                function()  # the first step after the copy finds nothing in the caches of the processor
            times[name] += [timed(function) for _ in range(1 if name == "peak" else 5)]
    return {name: statistics.median(values) for name, values in times.items()}


def table(rows: list[Row]) -> str:
    """Rows as columns for people."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = [[row.get(name, "") for name in names] for row in rows]
    cells = [names] + [[f"{value:,}" if isinstance(value, int) else str(value) for value in line] for line in values]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


if __name__ == "__main__":
    main(tyro.cli(Args))
