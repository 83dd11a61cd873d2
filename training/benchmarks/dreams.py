"""How fast untrained models dream: alone, as environments, and after ten thousand steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.models import build_preset

from dreamenvs import tree
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.dream import MIN_ROWS
from dreamenvs.envs.vector import DreamVectorEnv
from dreamenvs.evaluation.measuring import (
    GEMM_GFLOP,
    Row,
    count_gflop,
    gemm_seconds,
    interleave,
    resident_mib,
    tell,
    timed,
    tree_mib,
)
from dreamenvs.evaluation.rollouts import (
    COUNTED_ROWS,
    Rollout,
    RolloutState,
    build,
    fill_window,
    imagination_of,
    observed,
    random_context,
    with_rows,
)
from dreamenvs.models.actions import zero_actions

ENV_ROWS = 64
CORE_FRAMES = 20
"""Frames behind the paper's imagination at its end: a context of 4 and 16 imagined ones."""


@torch.inference_mode()
def measure_imagination(
    families: Sequence[str], preset: str, counts: Sequence[int], seconds: float, window: bool = True
) -> list[Row]:
    """Imagined steps per second over an episode as the paper has it; with a full window too, where there is one."""
    lines = []
    for family in families:
        model, (context, horizon) = build_preset(family, preset), imagination_of(family)
        moments = [RolloutState(observed(model, context), context), fill_window(model, context) if window else None]
        for moment in filter(None, moments):
            lines += imagine(family, model, moment, horizon, counts, seconds)
    return lines


def imagine(
    family: str, model: Any, moment: RolloutState, horizon: int, counts: Sequence[int], seconds: float
) -> list[Row]:
    """From one moment on, for each number of rows: the step alone, and with every row's frame, decoded apart."""
    lines = []
    mflop = Rollout(model, moment.state, horizon).mflop()
    for count in counts:
        rollout = Rollout(model, with_rows(moment.state, count), horizon)
        turns = {"step": rollout.mean_step, "frame": rollout.single_frame, "peak": gemm_seconds}
        times = interleave(turns, 2 * seconds)
        shown = {"tokens": times["step"], "pixels": times["step"] + times["frame"]}
        where = {"family": family, "rows": count, "frames_behind": moment.frames, "horizon": horizon}
        lines += [where | {"shows": what} | speed(count, mflop[what], shown[what], times["peak"]) for what in shown]
        tell(family, "imagined in", count, "rows with", moment.frames, "frames behind")
    return lines


def speed(count: int, mflop: float, seconds: float, peak_seconds: float) -> Row:
    """What a step of so many rows comes to, beside the peak."""
    peak, per_second = GEMM_GFLOP / peak_seconds, count / seconds
    return {
        "env_steps_per_second": round(per_second, 1),
        "ms": round(seconds * 1e3, 2),
        "mflop_per_step": round(mflop, 2),
        "share_of_peak": round(mflop / 1e3 * per_second / peak, 3),
        "steps_per_second_per_peak_gflops": round(per_second / peak, 4),
        "peak_gflops": round(peak, 1),
    }


class Contender(NamedTuple):
    """A model to compare."""

    name: str
    family: str
    config: Any


@torch.inference_mode()
def compare(first: Contender, second: Contender, count: int, seconds: float) -> list[Row]:
    """Imagined steps per second of two models side by side, and how much faster the first is."""
    rollouts = {}
    for contender in (first, second):
        context, horizon = imagination_of(contender.family)
        model = build(contender.family, contender.config)
        rollouts[contender.name] = Rollout(model, with_rows(observed(model, context), count), horizon)
    mflop = {name: rollout.mflop()["tokens"] for name, rollout in rollouts.items()}
    turns = {name: rollout.mean_step for name, rollout in rollouts.items()}
    times = interleave({**turns, "peak": gemm_seconds}, 2 * seconds)
    lines = [
        {"model": name, "tokens_of_a_frame": rollout.model.num_tokens, "rows": count, "horizon": rollout.horizon}
        | speed(count, mflop[name], times[name], times["peak"])
        for name, rollout in rollouts.items()
    ]
    lines[0]["times_faster"] = round(times[second.name] / times[first.name], 2)
    return lines


@torch.inference_mode()
def measure_core(families: Sequence[str], preset: str, counts: Sequence[int], seconds: float) -> list[Row]:
    """The sequence model's step alone, of families that take one input for each frame."""
    lines = []
    for family in families:
        model, context = build_preset(family, preset), imagination_of(family).context
        moments = [RolloutState(observed(model, CORE_FRAMES + 1), CORE_FRAMES), fill_window(model, context)]
        for moment in filter(None, moments):
            mflop = count_gflop(Core(model, with_rows(moment.state, COUNTED_ROWS)).step) * 1e3 / COUNTED_ROWS
            for count in counts:
                core = Core(model, with_rows(moment.state, count))
                times = interleave({"core": core.single_steps, "peak": gemm_seconds}, seconds)
                where = {"family": family, "rows": count, "frames_behind": moment.frames}
                lines.append(where | speed(count, mflop, times["core"], times["peak"]))
    return lines


class Core:
    """One step after another of a frame-level sequence model."""

    def __init__(self, model: Any, state: Any) -> None:
        self.sequence, self.start = model.sequence, state.cache
        self.inputs = torch.randn(len(state.tokens), model.sequence.width)
        self.restart()

    def restart(self) -> None:
        """Go back to the start."""
        self.cache = tree.clone(self.start)

    def step(self) -> None:
        """One more input."""
        _, self.cache = self.sequence.step(self.inputs, self.cache)

    def single_steps(self) -> list[float]:
        """Seconds of a few steps; the first one finds nothing in the caches of the processor and does not count."""
        self.restart()
        self.step()
        return [timed(self.step) for _ in range(5)]


def measure_env(families: Sequence[str], preset: str, seconds: float, count: int = ENV_ROWS) -> list[Row]:
    """`DreamVectorEnv.step` with latent observations against the bare `WorldModel.step`, turn and turn about."""
    lines = []
    for family in families:
        model, context = build_preset(family, preset), imagination_of(family).context
        contexts = random_context(model.spec, 8, context)
        checkpoint = Checkpoint(model=model, contexts=contexts, family=family, config=None, card={}, path=Path("."))
        envs = DreamVectorEnv(count, checkpoint=checkpoint, obs_type="latent", horizon=10**9)
        envs.reset(seed=0)
        step_envs = partial(envs.step, zero_actions(model.spec.actions, count).numpy())
        with torch.inference_mode():
            moment = fill_window(model, context) or RolloutState(observed(model, context), context)
            bare = Rollout(model, with_rows(moment.state, count), horizon=6)
            for _ in range(moment.frames - context):
                step_envs()

            def env_steps(step: Any = step_envs) -> list[float]:
                step()
                return [timed(step) for _ in range(5)]

            times = interleave({"bare": bare.single_steps, "env": env_steps}, 2 * seconds)
        lines.append(
            {
                "family": family,
                "rows": count,
                "frames_behind": moment.frames,
                "model_ms": round(times["bare"] * 1e3, 2),
                "env_ms": round(times["env"] * 1e3, 2),
                "ratio": round(times["env"] / times["bare"], 3),
            }
        )
    return lines


@torch.inference_mode()
def measure_endless(families: Sequence[str], preset: str, seconds: float, moments: tuple[int, int]) -> list[Row]:
    """A step early and late in one dream, turn and turn about, with the memory of the state and of the process."""
    lines = []
    for family in families:
        model = build_preset(family, preset)
        dream = Rollout(model, observed(model, imagination_of(family).context), horizon=max(moments))
        line: Row = {"family": family, "rows": MIN_ROWS}
        states: list[Any] = []
        for moment in moments:
            while dream.steps < moment:
                dream.step()
            states.append(dream.state if states else tree.clone(dream.state))  # one copy, in memory at both moments
            line[f"state_mib_at_{moment}"] = round(tree_mib(dream.state), 2)
            line[f"process_mib_at_{moment}"] = resident_mib()
        names = [f"ms_at_{moment}" for moment in moments]
        turns = {name: Rollout(model, state, 6).single_steps for name, state in zip(names, states, strict=True)}
        times = interleave(turns, 2 * seconds)
        line |= {name: round(times[name] * 1e3, 2) for name in names}
        lines.append(line | {"ratio": round(times[names[1]] / times[names[0]], 3)})
    return lines
