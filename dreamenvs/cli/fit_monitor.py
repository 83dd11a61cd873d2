"""FitMonitor: tells people how a fit is going, with a progress bar, JSON lines, TensorBoard, pictures and speed."""

from __future__ import annotations

import copy
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from dreamenvs import tree
from dreamenvs.cli.run_directory import RunDirectory
from dreamenvs.data.episode import Episode
from dreamenvs.data.segments import start_contexts
from dreamenvs.evaluation.measuring import GEMM_GFLOP, gemm_seconds
from dreamenvs.evaluation.pictures import colour, mosaic, side_by_side, write_gif, write_png
from dreamenvs.evaluation.teacher_forcing import TeacherForcing
from dreamenvs.fitting.fit import Fit, Metrics
from dreamenvs.nn.flop_counting import operation_counter
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise
from dreamenvs.types import Segment

EVERY = 25
"""Updates whose average is one line of metrics."""
CONTEXT, HORIZON = 4, 12
"""Frames of a picture strip: real ones that the dream starts from, and imagined ones."""


class FitMonitor:
    """Takes the metrics of every update; pictures are drawn every so many minutes and at the end of each stage."""

    def __init__(self, run: RunDirectory, fit: Fit, held_out: Sequence[Episode], picture_minutes: float) -> None:
        self.run, self.fit, self.picture_seconds = run, fit, 60 * picture_minutes
        self._example = example_segment(held_out)
        self._drawn = time.monotonic()
        self._stage: _StageTotals | None = None
        self._recent: list[Metrics] = []
        self._peak: float | None = None
        self._offsets = _offsets(fit)
        keep_until(run, fit)
        self._lines = run.metrics.open("a", encoding="utf-8")
        self._board = open_board(run, self._offsets.get(self._current, 0) + fit.update)

    def record(self, metrics: Metrics) -> None:
        """One update."""
        if self._stage is None:
            self._stage = _StageTotals(metrics, count_flop(self.fit) if self._current == metrics.stage else None)
        self._stage.add(metrics)
        self._recent.append(metrics)
        ended = metrics.update == metrics.updates
        if ended or len(self._recent) == EVERY:
            self._write(average(self._recent))
            self._recent = []
        if ended or time.monotonic() - self._drawn >= self.picture_seconds:
            self.draw(metrics)
        if ended:
            self._stage.bar.close()
            tqdm.write(self._summary(self._stage), file=sys.stdout)
            self._stage = None

    def draw(self, metrics: Metrics) -> None:
        """A strip and a GIF of what the model now sees and imagines."""
        self.fit.model.eval()  # type: ignore[attr-defined]
        real, restored, imagined = (colour(frames) for frames in imagine(self.fit.model, self._example))
        scale = max(1, 64 // real.shape[1])
        strip = mosaic([frames.repeat(scale, 1).repeat(scale, 2) for frames in (real, restored, imagined)])
        path = self.run.pictures / f"{metrics.stage}-{metrics.update:06d}.png"
        write_png(path, strip)
        write_gif(path.with_suffix(".gif"), side_by_side(real, imagined, scale=2 * scale), fps=8)
        if self._board is not None:
            self._board.add_image("pictures", strip, self._step(metrics), dataformats="HWC")
        self._drawn = time.monotonic()

    def close(self) -> None:
        """Close files and the bar."""
        if self._stage is not None:
            self._stage.bar.close()
        self._lines.close()
        if self._board is not None:
            self._board.close()

    @property
    def _current(self) -> str | None:
        return None if self.fit.finished else self.fit.stages[self.fit.stage].name

    def _step(self, metrics: Metrics) -> int:
        return self._offsets[metrics.stage] + metrics.update

    def _write(self, line: dict[str, Any]) -> None:
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        if self._board is not None:
            step = self._offsets[line["stage"]] + line["update"]
            for name, value in line.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{line['stage']}/{name}", value, step)

    def _summary(self, stage: _StageTotals) -> str:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)
        text = f"{stage.name}: {stage.updates} updates, {stage.frames / stage.seconds:,.0f} frames/s, "
        text += f"sampling {stage.sampling / stage.seconds:.1%} of the time, peak memory {memory:,} MiB"
        if stage.flop is not None:
            self._peak = self._peak or GEMM_GFLOP / statistics.median(gemm_seconds()[0] for _ in range(4))
            rate = stage.flop * stage.frames / (stage.seconds - stage.sampling) / 1e9
            peak = self._peak * self.fit.ranks.count
            text += f", {rate:,.1f} GFLOP/s: {rate / peak:.0%} of the GEMM peak of {peak:,.0f}"
        return text


class _StageTotals:
    """The sums of a stage in this process, and its bar."""

    def __init__(self, first: Metrics, flop: float | None) -> None:
        self.name, self.flop = first.stage, flop
        self.updates = self.frames = 0
        self.sampling = self.seconds = 0.0
        self.averages: dict[str, float] = {}
        total, done = first.updates, first.update - 1
        self.bar = tqdm(total=total, initial=done, desc=first.stage, unit="update", mininterval=2)

    def add(self, metrics: Metrics) -> None:
        self.updates += 1
        self.frames += metrics.frames
        self.sampling += metrics.sampling_seconds
        self.seconds += metrics.sampling_seconds + metrics.update_seconds
        for part, value in metrics.parts.items():
            self.averages[part] = self.averages.get(part, value) + 0.02 * (value - self.averages.get(part, value))
        shown = {part: f"{value:.3g}" for part, value in self.averages.items()}
        self.bar.set_postfix({"frames/s": f"{self.frames / self.seconds:,.0f}", **shown}, refresh=False)
        self.bar.update()


def average(recent: Sequence[Metrics]) -> dict[str, Any]:
    """One line of metrics: the means of several updates, under the number of the last."""
    last = recent[-1]
    seconds = sum(each.sampling_seconds + each.update_seconds for each in recent)
    line: dict[str, Any] = {"stage": last.stage, "update": last.update}
    line |= {name: statistics.fmean(getattr(each, name) for each in recent) for name in ("loss", "gradient_norm")}
    line |= {part: statistics.fmean(each.parts[part] for each in recent) for part in last.parts}
    line |= {"learning_rate": last.learning_rate, "frames_per_second": sum(each.frames for each in recent) / seconds}
    return line | {"sampling_share": sum(each.sampling_seconds for each in recent) / seconds}


def keep_until(run: RunDirectory, fit: Fit) -> None:
    """Drop the lines of updates that were lost when the run was killed, and will come again."""
    if not run.metrics.exists():
        return
    names = [stage.name for stage in fit.stages]
    kept = []
    for text in run.metrics.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break  # cut off by the kill
        if (names.index(line["stage"]), line["update"]) <= (fit.stage, fit.update):
            kept.append(text + "\n")
    run.metrics.write_text("".join(kept), encoding="utf-8")


def open_board(run: RunDirectory, step: int) -> Any:
    """TensorBoard's writer where TensorBoard is installed; events after `step` are of updates that come again."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(run.path / "events", purge_step=step or None)


def count_flop(fit: Fit) -> float:
    """Operations of an update for each of its frames, counted on a copy of the model; batches differ in padding."""
    segment, model = fit.example(), copy.deepcopy(fit.model)
    with torch.random.fork_rng(devices=[]), operation_counter() as counter:
        model.stages()[fit.stage].loss(segment).total.backward()  # type: ignore[no-untyped-call]
    flops: int = counter.get_total_flops()
    return flops / int(segment.valid.sum())


def example_segment(held_out: Sequence[Episode]) -> Segment:
    """One real excerpt (1, T), always the same."""
    length = min(CONTEXT + HORIZON, max(len(episode) for episode in held_out))
    return start_contexts(held_out, 1, length, np.random.default_rng(0))


class Strip(NamedTuple):
    """Frames (T, C, H, W) of one excerpt."""

    real: torch.Tensor
    restored: torch.Tensor
    """Given back one by one, each from its tokens after the real frames before it."""
    imagined: torch.Tensor
    """Dreamed under the real actions, after a context that is given back."""


@torch.inference_mode()
def imagine(model: WorldModel[Any], segment: Segment) -> Strip:
    """What the model makes of one excerpt (1, T)."""
    frames = segment.observations[0]
    restored = restore(model, segment)
    context = min(CONTEXT, len(frames))
    state = model.observe(tree.map(lambda leaf: leaf[:, :context], segment))
    imagined, seeds = list(restored[:context]), torch.zeros(1, dtype=torch.int64)
    for step in range(context, len(frames)):
        state, _ = model.step(state, segment.actions[:, step - 1], Noise(seeds, seeds + step))
        imagined.append(model.decode(state)[0])
    return Strip(frames, restored, torch.stack(imagined))


def restore(model: WorldModel[Any], segment: Segment) -> torch.Tensor:
    """The frames (T, C, H, W) of one excerpt (1, T) as their tokens give them back.

    A family may keep the frame itself in its state, which shows nothing: so each frame is imagined, from the true
    tokens. Where a prior does not take them, the state is shown.
    """
    state, zeros = model.observe(tree.map(lambda leaf: leaf[:, :1], segment)), torch.zeros(1, dtype=torch.int64)
    restored = [model.decode(state)]
    for step in range(1, segment.actions.shape[1]):
        actions = segment.actions[:, step - 1]
        following = model.update(state, actions, segment.observations[:, step])
        teacher = TeacherForcing.build(Noise(zeros, zeros), model.tokens(following), forcing=True)
        imagined, _ = model.step(state, actions, teacher)
        restored.append(model.decode(imagined if teacher.complete else following))
        state = following
    return torch.cat(restored)


def _offsets(fit: Fit) -> dict[str | None, int]:
    """How many updates come before each stage."""
    offsets: dict[str | None, int] = {}
    total = 0
    for stage in fit.stages:
        offsets[stage.name] = total
        total += stage.updates
    return offsets | {None: total}
