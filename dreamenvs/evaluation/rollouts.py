"""Imagined episodes of untrained models, for benchmarks: as long as the papers have them, or with a full window."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from dreamenvs import families, tree
from dreamenvs.dream import MIN_ROWS
from dreamenvs.evaluation.measuring import GEMM_GFLOP, count_gflop, gemm_seconds, interleave, timed
from dreamenvs.models import FAMILIES
from dreamenvs.models.actions import sample_actions
from dreamenvs.random import Noise
from dreamenvs.types import DiscreteActions, Segment, WorldSpec


class Imagination(NamedTuple):
    """How a paper's agent learns in its world model."""

    context: int
    """Real frames at the start."""
    horizon: int
    """Imagined steps."""


PATIENCE = 40
"""Steps of the same cost after which a window is full; the Transformer reads its window in parts of 32 inputs."""
STRIDE = 8
"""Operations are counted in every eighth step, for counting is slow."""
COUNTED_ROWS = 16
"""Rows that operations are counted with: enough that none is padding."""


def imagination_of(family: str) -> Imagination:
    """The context and horizon of a family's paper."""
    entry = families.FAMILIES[family]
    return Imagination(entry.context, entry.horizon)


@torch.inference_mode(False)  # weights that are made in it cannot be packed
def build(family: str, config: Any = None, side: int = 64) -> Any:
    """A model with random weights, by default of the paper's size, that never ends an episode."""
    torch.manual_seed(0)
    spec = WorldSpec(world="Benchmark", observation_shape=(3, side, side), actions=DiscreteActions(count=18))
    chosen = FAMILIES[family]
    model = chosen.build(chosen.paper if config is None else config, spec).eval()
    # A fresh head says even odds of an end; a row that is reset is not what is measured here.
    *_, odds = model.outcomes.parameters()  # whatever the outcomes are, the bias of the log-odds comes last
    torch.nn.init.constant_(odds, -30.0)
    return model


def random_context(spec: WorldSpec, rows: int, steps: int) -> Segment:
    """Noise in the shape of experience."""
    frames = torch.randint(0, 256, (rows, steps, *spec.observation_shape), dtype=torch.uint8)
    actions = sample_actions(spec.actions, rows * steps)
    actions = actions.reshape(rows, steps, *actions.shape[1:])
    flags = torch.zeros(rows, steps, dtype=torch.bool)
    return Segment(frames, actions, torch.zeros(rows, steps), flags, ~flags)


def observed(model: Any, frames: int) -> Any:
    """The state of a few rows after so many real frames."""
    return model.observe(random_context(model.spec, MIN_ROWS, frames))


def with_rows(state: Any, count: int) -> Any:
    """A state with `count` rows, copies of those that are there."""
    return tree.take_rows(state, torch.arange(count) % len(next(tree.leaves(state))))


class Rollout:
    """`horizon` imagined steps from a state on, again and again."""

    def __init__(self, model: Any, start: Any, horizon: int) -> None:
        self.model, self.start, self.horizon = model, start, horizon
        rows = len(next(tree.leaves(start)))
        self.actions, self.seeds = sample_actions(model.spec.actions, rows), torch.arange(rows)
        self.restart()

    def restart(self) -> None:
        """Go back to the start."""
        self.state, self.steps = tree.clone(self.start), 0

    def step(self) -> None:
        """One imagined step."""
        noise = Noise(self.seeds, torch.full_like(self.seeds, self.steps))
        self.state, _ = self.model.step(self.state, self.actions, noise)
        self.steps += 1

    def run(self) -> None:
        """The steps up to the horizon."""
        while self.steps < self.horizon:
            self.step()

    def mean_step(self) -> list[float]:
        """Seconds of a step, the mean over one rollout."""
        self.step()  # the first step after something else finds nothing in the caches of the processor
        self.restart()
        return [timed(self.run) / self.horizon]

    def single_frame(self) -> list[float]:
        """Seconds of decoding every row's frame, once."""
        return [timed(lambda: self.model.decode(self.state))]

    def single_steps(self) -> list[float]:
        """Seconds of every step of one rollout but the first, which finds nothing in the caches of the processor."""
        self.restart()
        self.step()
        return [timed(self.step) for _ in range(self.horizon - 1)]

    def mflop(self) -> dict[str, float]:
        """Of a step for each row, without and with its frame: the mean of the first, the middle and the last step.

        Counting all would take minutes, and what a step attends to grows evenly.
        """
        counted = Rollout(self.model, with_rows(self.start, COUNTED_ROWS), self.horizon)
        counts = []
        for place in (0, self.horizon // 2, self.horizon - 1):
            while counted.steps < place:
                counted.step()
            counts.append(count_gflop(counted.step))
        step = sum(counts) / len(counts)
        frame = count_gflop(lambda: self.model.decode(counted.state))
        return {"tokens": step * 1e3 / COUNTED_ROWS, "pixels": (step + frame) * 1e3 / COUNTED_ROWS}


@torch.inference_mode()
def measure_speed(model: Any, context: Segment, horizon: int, rows: int = 64, seconds: float = 2.0) -> dict[str, Any]:
    """How large a model is, what an imagined step of it takes, and how many it makes from its contexts."""
    few = tree.map(lambda leaf: leaf[:COUNTED_ROWS], context)
    rollout = Rollout(model, with_rows(model.observe(few), rows), horizon)
    mflop = rollout.mflop()["tokens"]
    times = interleave({"step": rollout.mean_step, "peak": gemm_seconds}, seconds)
    per_second, peak = rows / times["step"], GEMM_GFLOP / times["peak"]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "mflop_per_step": round(mflop, 3),
        "steps_per_second": round(per_second, 1),
        "steps_per_second_per_peak_gflops": round(per_second / peak, 3),
        "peak_gflops": round(peak, 1),
        "rows": rows,
        "threads": torch.get_num_threads(),
    }


class RolloutState(NamedTuple):
    """A state of a few rows, and how many frames are behind it."""

    state: Any
    frames: int


def fill_window(model: Any, context: int) -> RolloutState | None:
    """Dream on until a step stops getting dearer; None if the first costs as much as all others.

    So no model need say what its window is: whatever attends to a growing past shows in the operations it takes.
    """
    rollout = Rollout(model, observed(model, context), 10**9)
    first = last = count_gflop(rollout.step)
    full = 0
    while rollout.steps - full <= PATIENCE:
        for _ in range(STRIDE - 1):
            rollout.step()
        gflop = count_gflop(rollout.step)
        if gflop > last:
            last, full = gflop, rollout.steps
    return RolloutState(rollout.state, context + rollout.steps) if last > first else None
