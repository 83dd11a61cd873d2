"""The plots of an evaluation. Needs matplotlib, of the `train` extra."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dreamenvs.evaluation.fidelity import Fidelity
from dreamenvs.evaluation.transfer import Transfer
from dreamenvs.evaluation.video import VideoFigures


def draw(out: Path, fidelity: Fidelity, transfers: dict[str, Transfer]) -> None:
    """The plots."""
    draw_psnr(out / "psnr.png", fidelity)
    draw_events(out / "events.png", fidelity)
    if transfers:
        draw_returns(out / "returns.png", transfers)


def draw_psnr(path: Path, fidelity: Fidelity) -> None:
    """PSNR by the number of imagined steps, of whole frames and of what changes, with the copied frame."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    steps = range(1, len(fidelity.pixels) + 1)
    kinds = (("whole frame", "psnr", "copy_psnr"), ("pixels that change", "change_psnr", "copy_change_psnr"))
    for axes, (title, own, copied) in zip(figure.subplots(1, 2), kinds, strict=True):
        axes.plot(steps, [getattr(figures, own) for figures in fidelity.pixels], marker="o", label="dream")
        axes.plot(steps, [getattr(figures, copied) for figures in fidelity.pixels], "--", label="last frame copied")
        axes.set(title=title, xlabel="imagined steps", ylabel="PSNR (dB)")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    figure.savefig(path, dpi=120)


def draw_events(path: Path, fidelity: Fidelity) -> None:
    """Precision, recall and F1 of rewards and terminations, one step ahead."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2), ("rewards", "terminations"), strict=True):
        events = getattr(fidelity.one_step_events, kind)
        for place, name in enumerate(("model", "copy", "majority")):
            detection = getattr(events, name)
            axes.bar(np.arange(3) + 0.25 * place, np.nan_to_num(detection), width=0.25, label=name)
        axes.set(title=f"{events.positives} {kind} in {events.steps:,} steps", ylim=(0, 1.05))
        axes.set_xticks(np.arange(3) + 0.25, detection._fields)
        axes.legend()
    figure.savefig(path, dpi=120)


def draw_returns(path: Path, transfers: dict[str, Transfer]) -> None:
    """Mean returns with their intervals, dreamed and real."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(("dream", "real up to the horizon", "real")):
        estimates = [(t.dream.episode_return, t.real_early, t.real.episode_return)[place] for t in transfers.values()]
        means, low, high = np.array(estimates).T
        errors = np.nan_to_num(np.stack([means - low, high - means]))
        axes.bar(np.arange(len(means)) + 0.25 * place, means, width=0.25, yerr=errors, capsize=4, label=name)
    axes.set_xticks(np.arange(len(transfers)) + 0.25, transfers)
    axes.set(title="mean return", xlabel="policy")
    axes.legend()
    figure.savefig(path, dpi=120)


def draw_distances(path: Path, videos: VideoFigures) -> None:
    """Distances from real videos, with the spread of resamples."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    sides = {"dreamed": videos.dream, "last frame copied": videos.copy, "real, decoded": videos.decoded}
    distances, spreads = np.array(list(sides.values())).T
    axes.bar(range(len(sides)), distances, yerr=np.nan_to_num(spreads), capsize=4)
    axes.set_xticks(range(len(sides)), list(sides))
    setting = videos.setting
    axes.set_title(f"{setting.videos} videos, {setting.context} frames seen, {setting.horizon} dreamed")
    axes.set_ylabel(videos.distance.replace(" on ", "\non "))
    figure.savefig(path, dpi=120)
