"""The plots of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report_figures import Curve
from report_statistics import Profile

from dreamenvs.evaluation.statistics import Estimate

COLUMNS = 3
POINTS = 200
"""Of a mean curve."""


def draw_aggregates(path: Path, aggregates: Mapping[str, Mapping[str, Estimate]], unit: str) -> None:
    """Aggregates and their intervals, a panel for each kind."""
    kinds = list(next(iter(aggregates.values())))
    figure = Figure(figsize=(3.2 * len(kinds), 1.2 + 0.4 * len(aggregates)), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        for place, estimates in enumerate(aggregates.values()):
            value, low, high = estimates[kind]
            axes.plot([low, high], [place, place], color=f"C{place % 10}", linewidth=6, alpha=0.4)
            axes.plot(value, place, "|", color=f"C{place % 10}", markersize=14, markeredgewidth=2)
        axes.set(title=kind, xlabel=unit)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(aggregates)), list(aggregates))
    panels[0].set_ylim(len(aggregates) - 0.5, -0.5)
    _save(figure, path)


def draw_profiles(path: Path, profiles: Mapping[str, Profile], unit: str) -> None:
    """The share of runs above each score."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    for method, profile in profiles.items():
        (line,) = axes.plot(profile.thresholds, profile.share, label=method)
        axes.fill_between(profile.thresholds, profile.low, profile.high, color=line.get_color(), alpha=0.2)
    axes.set(xlabel=f"{unit} τ", ylabel="share of runs above τ", ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def draw_curves(
    path: Path, curves: Mapping[str, Mapping[str, Sequence[Curve]]], published: Mapping[str, Mapping[str, float]]
) -> None:
    """Returns by real steps, a panel for each world: the mean over runs, the runs themselves, and what papers state."""
    columns = min(COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (world, methods) in zip(panels, curves.items(), strict=False):
        for place, (method, runs) in enumerate(methods.items()):
            _draw_runs(axes, method, runs, f"C{place % 10}")
        for place, (name, value) in enumerate(published.get(world, {}).items()):
            axes.axhline(value, color="0.4", linewidth=1, linestyle=(place, (4, 3)), label=f"{name} (published)")
        axes.set(title=world, xlabel="real steps", ylabel="return")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    _save(figure, path)


def mean_curve(runs: Sequence[Curve]) -> Curve:
    """The mean over runs, between points in straight lines, where all runs have been."""
    first, last = max(run.steps[0] for run in runs), min(run.steps[-1] for run in runs)
    steps = np.unique(np.concatenate([run.steps for run in runs]))
    steps = steps[(steps >= first) & (steps <= last)]
    if len(steps) > POINTS:
        steps = np.linspace(first, last, POINTS)
    return Curve(steps, np.mean([np.interp(steps, run.steps, run.scores) for run in runs], axis=0))


def _draw_runs(axes: Axes, method: str, runs: Sequence[Curve], color: str) -> None:
    mean = mean_curve(runs)
    axes.plot(mean.steps, mean.scores, color=color, label=method)
    for run in runs if len(runs) > 1 else ():
        axes.plot(run.steps, run.scores, color=color, linewidth=0.6, alpha=0.4)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120, metadata={"Software": None})
