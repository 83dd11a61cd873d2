"""What an online run will cost: a few updates of every kind are measured on copies, and multiplied."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dreamenvs.evaluation.results import text_table
from dreamenvs.fitting.online import Online
from dreamenvs.models.actions import sample_actions
from dreamenvs.nn.flop_counting import operation_counter
from dreamenvs.presets.online import Preset
from dreamenvs.protocols import Stage
from dreamenvs.types import Segment, WorldSpec

SHARE = 8
"""A batch is measured with an eighth of its rows, and multiplied: a whole one may take minutes on a small machine."""
QUICK = 4.0
"""Where that comes to fewer seconds, the whole batch is measured instead: few rows cost more each than many."""
PADDED = 16
"""Fewer rows are filled up to as many while dreaming, so that fewer would be counted too dear."""


class Cost(NamedTuple):
    """What one part of a run costs, in all its updates."""

    name: str
    updates: int
    seconds: float
    """Of one update."""
    flop: float
    """Of one update: matrix products and convolutions, forward and backward."""
    kept_bytes: float
    """What one update keeps for its backward pass."""


def estimate_costs(online: Online, preset: Preset) -> str:
    """A table for people, before the work begins. The run itself is left as it is."""
    schedule, counters = online.schedule, online.counters
    model: Any = copy.deepcopy(online.model)
    learner: Any = copy.deepcopy(online.learner)
    costs = []
    for stage, done in zip(model.stages(), counters.updates, strict=True):
        left = schedule.stages[stage.name].due(schedule.end) - done
        costs.append(_stage_cost(model, stage, left))
    left = schedule.agent.due(schedule.end) - counters.agent_updates
    costs.append(_agent_cost(model, learner, preset, left))
    return _table(costs, online, preset)


def _stage_cost(model: Any, stage: Stage, updates: int) -> Cost:
    model.train()

    def prepare(rows: int) -> Callable[[], None]:
        segment = random_segment(model.spec, rows, stage.length)

        def update() -> None:
            seen = segment
            if stage.prepare is not None:
                with torch.no_grad():
                    tokens = stage.prepare(segment.observations.flatten(0, 1))
                seen = segment._replace(observations=tokens.reshape(*segment.rewards.shape, -1))
            stage.loss(seen).total.backward()  # type: ignore[no-untyped-call]

        return update

    return _measure_some(stage.name, updates, stage.rows, 1, prepare)


def _agent_cost(model: Any, learner: Any, preset: Preset, updates: int) -> Cost:
    learning = preset.agent.learning
    model.eval()

    def prepare(rows: int) -> Callable[[], None]:
        context = random_segment(model.spec, rows, learning.context)
        return lambda: learner.update(model, context, 0)

    return _measure_some("agent", updates, learning.rows, PADDED, prepare)


def _measure_some(name: str, updates: int, rows: int, least: int, prepare: Callable[[int], Callable[[], None]]) -> Cost:
    """Of a part of a batch's rows, and of all where that takes no time."""
    part = min(rows, max(least, rows // SHARE))
    cost = _measure(name, updates, rows / part, prepare(part))
    return cost if part == rows or cost.seconds > QUICK else _measure(name, updates, 1.0, prepare(rows))


def _measure(name: str, updates: int, scale: float, update: Any) -> Cost:
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.random.fork_rng(devices=[]):
        with (
            operation_counter() as counter,
            torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept),
        ):
            update()
        begin = time.perf_counter()
        update()
        seconds = time.perf_counter() - begin
    return Cost(name, updates, scale * seconds, scale * counter.get_total_flops(), scale * sum(kept.values()))


def _table(costs: list[Cost], online: Online, preset: Preset) -> str:
    rows = [
        [
            cost.name,
            f"{cost.updates:,}",
            _text(cost.seconds),
            _text(cost.flop / 1e9),
            _text(cost.updates * cost.flop / 1e15),
            _text(cost.updates * cost.seconds / 3600),
        ]
        for cost in costs
    ]
    model: Any = online.model
    weights = sum(each.numel() for each in (*model.parameters(), *online.actor.agent.parameters()))  # type: ignore[attr-defined]
    memory = 16 * weights + max(cost.kept_bytes for cost in costs)
    channels, height, width = model.spec.observation_shape
    disk = online.schedule.steps * channels * height * width
    hours = sum(cost.updates * cost.seconds for cost in costs) / 3600
    total = sum(cost.updates * cost.flop for cost in costs) / 1e15
    columns = ["", "updates", "s/update", "GFLOP/update", "PFLOP", "hours"]
    return (
        f"{text_table(columns, rows)}\n"
        f"altogether {_text(total)} PFLOP, {_text(hours)} hours as measured now on {torch.get_num_threads()} threads; "
        "real steps and evaluations not counted\n"
        f"memory about {memory / 2**30:.2g} GiB for weights, moments, gradients and one update; "
        f"{disk / 2**30:.2g} GiB of frames on disk"
    )


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def random_segment(spec: WorldSpec, rows: int, length: int) -> Segment:
    """Noise in the shape of experience."""
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (rows, length, *spec.observation_shape), dtype=torch.uint8, generator=generator)
    actions = sample_actions(spec.actions, rows * length, generator)
    flags = torch.zeros(rows, length, dtype=torch.bool)
    return Segment(frames, actions.reshape(rows, length, *actions.shape[1:]), torch.zeros(rows, length), flags, ~flags)
