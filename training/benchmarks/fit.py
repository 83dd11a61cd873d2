"""How fast models are fitted: every stage of a family on random episodes, through the loop that fits dreams."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from benchmarks.models import build_preset

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.measuring import GEMM_GFLOP, Row, count_gflop, forget_peak, gemm_seconds, peak_mib, tell
from dreamenvs.fitting.fit import Fit
from dreamenvs.models.actions import sample_actions
from dreamenvs.protocols import Stage
from dreamenvs.types import WorldSpec

EPISODES = 4


def measure_fit(families: Sequence[str], presets: Sequence[str], updates: int, max_frames: int) -> list[Row]:
    """Frames per second of the stages of each family under each preset; sampling is part of it."""
    lines = []
    for preset in presets:
        for family in families:
            where = {"family": family, "preset": preset}
            lines += [where | line for line in measure_stages(build_preset(family, preset), updates, max_frames)]
            tell(family, "fitted with the preset", preset)
            gc.collect()
    return lines


def measure_stages(model: Any, updates: int, max_frames: int) -> Iterator[Row]:
    """A few updates of every stage."""
    stages = model.stages()
    fit = Fit(model, random_episodes(model.spec, max(stage.length for stage in stages)))
    fit.stages = tuple(shorten(stage, updates, max_frames) for stage in stages)
    for whole, short in zip(stages, fit.stages, strict=True):
        rows = f"{short.rows:,}" if short.rows == whole.rows else f"{short.rows:,} of {whole.rows:,}"
        yield {"stage": whole.name, "rows": rows, "length": whole.length} | measure_stage(fit, updates)


def shorten(stage: Stage, updates: int, max_frames: int) -> Stage:
    """The stage with a few updates, and with fewer rows if a batch has more than `max_frames` frames."""
    return replace(stage, updates=1 + updates, rows=min(stage.rows, max(1, max_frames // stage.length)))


def measure_stage(fit: Fit, updates: int) -> Row:
    """The updates of the stage under way, beside the peak; the medians of all but the first, which warms up."""
    fit.example()  # where a stage sees tokens, they are made of the episodes now
    under_way = fit.run()
    gflop = count_gflop(lambda: next(under_way))
    forget_peak()
    done, peaks = [], []
    for _ in range(updates):
        done.append(next(under_way))
        peaks += gemm_seconds()
    update_seconds = statistics.median(metrics.update_seconds for metrics in done)
    sampling_seconds = statistics.median(metrics.sampling_seconds for metrics in done)
    peak = GEMM_GFLOP / statistics.median(peaks)
    frames = statistics.median(metrics.frames for metrics in done)
    return {
        "frames_per_second": round(frames / (update_seconds + sampling_seconds), 1),
        "update_seconds": round(update_seconds, 3),
        "sampling_seconds": round(sampling_seconds, 4),
        "gflop_per_update": round(gflop, 2),
        "share_of_peak": round(gflop / update_seconds / peak, 3),
        "peak_mib": peak_mib(),
        "peak_gflops": round(peak, 1),
    }


def random_episodes(spec: WorldSpec, length: int) -> list[Episode]:
    """Noise in the shape of episodes, each as long as two segments, so that no step of a batch is padding."""
    rng, steps = np.random.default_rng(0), max(2 * length, 8)
    channels, height, width = spec.observation_shape
    ends = np.arange(steps) == steps - 1
    return [
        Episode(
            observations=rng.integers(0, 256, (steps + 1, height, width, channels), dtype=np.uint8),
            actions=sample_actions(spec.actions, steps).numpy(),
            rewards=rng.normal(size=steps).astype(np.float32),
            terminated=ends,
            truncated=np.zeros(steps, bool),
        )
        for _ in range(EPISODES)
    ]
