"""The plots of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dreamenvs.evaluation.statistics import Estimate
from dreamenvs.studies.report.figures import Curve, Figures

LABELS = {"mean": "mean", "median": "median", "iqm": "IQM", "optimality_gap": "optimality gap"}
COLUMNS = 3
POINTS = 200
"""Of a mean curve."""


def draw_aggregates(path: Path, figures: Figures) -> None:
    """Aggregates and their intervals, a panel for each kind."""
    aggregates = figures.aggregates
    kinds = list(next(iter(aggregates.values())))
    figure = Figure(figsize=(3.2 * len(kinds), 1.2 + 0.4 * len(aggregates)), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        for place, estimates in enumerate(aggregates.values()):
            _draw_interval(axes, place, estimates[kind])
        axes.set(title=LABELS[kind], xlabel=figures.unit)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(aggregates)), list(aggregates))
    panels[0].set_ylim(len(aggregates) - 0.5, -0.5)
    _save(figure, path)


def draw_returns(path: Path, figures: Figures) -> None:
    """Each run's return, their mean and its interval, and what papers state; a panel for each world."""
    methods = list(figures.seeds)
    figure, panels = _grid(len(figures.returns), 4.6, 1.4 + 0.32 * len(methods))
    for axes, (world, estimates) in zip(panels, figures.returns.items(), strict=True):
        for place, method in enumerate(methods):
            runs = list(figures.runs[world].get(method, {}).values())
            axes.plot(runs, [place] * len(runs), "o", color=f"C{place % 10}", markersize=4, alpha=0.6)
            if method in estimates:
                _draw_interval(axes, place, estimates[method])
        for place, cited in enumerate(figures.published.get(world, {}).values()):
            name = f"{cited.method}, published"
            axes.axvline(cited.episode_return, color="0.4", linewidth=1, linestyle=(3 * place, (4, 4)), label=name)
        if world in figures.published:
            axes.legend(fontsize="small")
        axes.set(title=world, xlabel="return", ylim=(len(methods) - 0.5, -0.5))
        axes.set_yticks(range(len(methods)), methods)
        axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


def draw_profiles(path: Path, figures: Figures) -> None:
    """The share of runs above each score: a panel for each method, with the others in grey behind it."""
    figure, panels = _grid(len(figures.profiles), 3.4, 2.6)
    for place, (axes, (method, profile)) in enumerate(zip(panels, figures.profiles.items(), strict=True)):
        for other in figures.profiles.values():
            axes.plot(other.thresholds, other.shares, color="0.8", linewidth=0.8)
        color = f"C{place % 10}"
        axes.plot(profile.thresholds, profile.shares, color=color)
        axes.fill_between(profile.thresholds, profile.low, profile.high, color=color, alpha=0.2)
        axes.set(title=method, ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
    figure.supxlabel(f"{figures.unit} τ")
    figure.supylabel("share of runs above τ")
    _save(figure, path)


def draw_curves(path: Path, curves: Mapping[str, Mapping[str, Sequence[Curve]]], figures: Figures) -> None:
    """Returns by real steps, a panel for each world: the mean over runs, the runs themselves, and what papers state."""
    figure, panels = _grid(len(curves), 4.2, 3.2)
    for axes, (world, methods) in zip(panels, curves.items(), strict=True):
        for place, (method, runs) in enumerate(methods.items()):
            _draw_runs(axes, method, runs, f"C{place % 10}")
        for place, cited in enumerate(figures.published.get(world, {}).values()):
            name = f"{cited.method}, published"
            axes.axhline(cited.episode_return, color="0.4", linewidth=1, linestyle=(3 * place, (4, 4)), label=name)
        last = max(run.steps[-1] for runs in methods.values() for run in runs)
        for curve in figures.published_curves.get(world, {}).values():
            # Beyond the runs' own steps it would only make them small.
            points = [point for point in zip(curve.steps, curve.returns, strict=True) if point[0] <= last]
            if points:
                axes.plot(*zip(*points, strict=True), "ks--", linewidth=1, label=f"{curve.method}, published")
        axes.set(title=world, xlabel="real steps", ylabel="return")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
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


def _draw_interval(axes: Axes, place: int, estimate: Estimate) -> None:
    """A mean and its interval in the line of a method, no longer than it is."""
    color = f"C{place % 10}"
    value, low, high = estimate
    axes.plot([low, high], [place, place], color=color, linewidth=6, alpha=0.4, solid_capstyle="butt")
    axes.plot(value, place, "|", color=color, markersize=14, markeredgewidth=2)


def _grid(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels of this size, in rows."""
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120, metadata={"Software": None})
