"""Measure how fast and how large models are, against what this machine can do.

    python training/benchmark.py parameters          # the paper's parameter counts
    python training/benchmark.py imagination         # env steps per second over an episode as the paper imagines it
    python training/benchmark.py core                # the sequence model's step alone, where it takes whole frames
    python training/benchmark.py grids               # REM against IRIS with as many tokens in a frame
    python training/benchmark.py env                 # what the environment layer adds to the model's own step
    python training/benchmark.py endless             # time and memory of a step, early and late in one long dream
    python training/benchmark.py fit                 # frames per second of every stage of fitting
    python training/benchmark.py agent               # what an agent adds to the model's own steps

Times are medians; the machine's peak is a large fp32 matrix product in the same run. `--json` prints for machines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import tyro
from benchmarks.agents import measure_agents
from benchmarks.dreams import Contender, compare, measure_core, measure_endless, measure_env, measure_imagination
from benchmarks.fit import measure_fit

from dreamenvs.evaluation.measuring import Row, table
from dreamenvs.evaluation.rollouts import build
from dreamenvs.models import FAMILIES
from dreamenvs.models.iris import iris_on_rem_grid
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.storm import StormConfig

Subject = Literal["parameters", "imagination", "core", "grids", "env", "endless", "fit", "agent"]
FRAME_LEVEL = tuple(name for name, family in FAMILIES.items() if issubclass(family.config, StepVQConfig | StormConfig))


@dataclass(frozen=True)
class Args:
    """Measure how fast and how large models are."""

    what: Annotated[Subject, tyro.conf.Positional]
    """What to measure."""
    families: tuple[str, ...] = ()
    """Which families; by default all, for `core` those whose sequence model takes whole frames, and for `agent` STEP-VQ
    and STORM."""
    rows: tuple[int, ...] = (1, 16, 64)
    """Batch sizes of `imagination` and `core`."""
    preset: Literal["paper", "small"] | None = None
    """Model sizes; by default the paper's, and both for `fit`."""
    seconds: float = 4.0
    """Time spent on each figure, or more, where three rollouts take longer."""
    window: bool = True
    """Whether `imagination` measures with a full window too, where there is one; filling it takes a while."""
    moments: tuple[int, int] = (200, 10_000)
    """Imagined steps at which `endless` measures."""
    updates: int = 3
    """Updates of each stage that `fit` times."""
    max_frames: int = 256
    """Frames in a batch of `fit`; where a stage has more, it gets fewer rows, and the output says so."""
    agent_rows: int = 1024
    """Rows of `agent`."""
    dreams: tuple[str, ...] = ("dreamenvs/STEPVQ-MinAtarBreakout-v0",)
    """Dreams that `agent` measures besides the untrained models."""
    threads: int | None = None
    """CPU threads; all cores by default."""
    json: bool = False
    """Print JSON instead of a table."""


def main(args: Args) -> None:
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    measured = measure(args)
    print(json.dumps(measured, indent=1) if args.json else table(measured))


def measure(args: Args) -> list[Row]:
    """What the command line asks for."""
    families, preset = choose_families(args), args.preset or "paper"
    if args.what == "parameters":
        return parameters()
    if args.what == "imagination":
        return measure_imagination(families, preset, args.rows, args.seconds, args.window)
    if args.what == "core":
        return measure_core(families, preset, args.rows, args.seconds)
    if args.what == "grids":
        return grids(args.seconds)
    if args.what == "env":
        return measure_env(families, preset, args.seconds)
    if args.what == "agent":
        return measure_agents(families, preset, args.dreams, args.agent_rows, args.seconds)
    if args.what == "endless":
        return measure_endless(families, preset, args.seconds, args.moments)
    presets = ("paper", "small") if args.preset is None else (args.preset,)
    return measure_fit(families, presets, args.updates, args.max_frames)


def choose_families(args: Args) -> tuple[str, ...]:
    """The families that are asked for, if they are there and can be measured so."""
    known = FRAME_LEVEL if args.what == "core" else tuple(FAMILIES)
    for family in args.families:
        if family not in known:
            raise SystemExit(f"{args.what} measures {', '.join(known)}, not {family}")
    if args.what == "agent" and not args.families:
        return tuple(family for family in ("STEPVQ", "STORM") if family in FAMILIES)
    return args.families or known


def parameters() -> list[Row]:
    """The bottleneck with its dynamics head, as the paper counts it, and how it grows with the frame."""
    rows: list[Row] = []
    for family in ("STEPVQ", "CB"):
        sizes = {}
        for side in (64, 96):
            model = build(family, side=side)
            head = sum(p.numel() for p in model.prior.parameters())
            sizes[side] = model.tokenizer.bottleneck_size + head
            total = sum(p.numel() for p in model.parameters())
            rows.append(
                {"family": family, "frame": f"{side}x{side}", "bottleneck_and_head": sizes[side], "whole_model": total}
            )
        rows[-1]["growth"] = round(sizes[96] / sizes[64], 3)
    return rows


def grids(seconds: float) -> list[Row]:
    """REM and IRIS with the same grid of tokens, one row each: what predicting a whole frame at once is worth."""
    rem = Contender("REM", "REM", FAMILIES["REM"].paper)
    return compare(rem, Contender("IRIS on REM's grid", "IRIS", iris_on_rem_grid()), count=1, seconds=seconds)


if __name__ == "__main__":
    main(tyro.cli(Args))
