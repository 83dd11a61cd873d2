"""Make a report of a study: tables, intervals, performance profiles and learning curves, as Markdown with pictures.

    python -m dreamenvs.cli.report runs/studies/<name>
    python -m dreamenvs.cli.report runs/studies/<name> --out training/studies/<name> --keep

It is made from the results files of the study's runs alone, and lists the commands that made these. Made again from the
same files, it is the same. Runs that are not finished are named, and left out.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from dreamenvs.evaluation.statistics import RESAMPLES
from dreamenvs.files.atomic_directory import dump_json
from dreamenvs.files.atomic_files import write_file
from dreamenvs.studies.directory import StudyDirectory
from dreamenvs.studies.report.figures import Curve, Figures, compute, to_plain
from dreamenvs.studies.report.plots import draw_aggregates, draw_curves, draw_profiles, draw_returns
from dreamenvs.studies.report.text import render
from dreamenvs.studies.study import ReportConfig, Run


@dataclass(frozen=True)
class Args:
    """Make a report of a study."""

    study: Annotated[Path, tyro.conf.Positional]
    """The study's directory."""
    out: Path | None = None
    """Where the report goes; by default into the study's directory, as report/."""
    resamples: int = RESAMPLES
    """Of the bootstrap."""
    keep: bool = False
    """Put the results of all runs beside the report, in runs/: dreamenvs study --adopt goes on from there."""


def main(args: Args) -> None:
    directory = StudyDirectory(args.study)
    study = directory.read_study()
    out = args.out or args.study / "report"
    out.mkdir(parents=True, exist_ok=True)
    found = {run: results for run in study.runs() if (results := directory.results(run)) is not None}
    if not found:
        raise SystemExit(f"no run of {args.study} is finished yet: dreamenvs study goes on with it")
    settings = study.report
    returns = collect_numbers(found, settings.score)
    measures = {name: collect_numbers(found, path) for name, path in settings.measures.items()}
    figures = compute(returns, study.worlds, study.families, args.resamples, measures, settings.claims)
    curves = collect_curves(found, settings)
    command = shlex.join(["python", "-m", "dreamenvs.cli.report", str(args.study)])
    pictures = draw(out, figures, curves)
    write_file(out / "results.json", dump_json({"study": study.name, "command": command, **to_plain(figures)}))
    for run in found if args.keep else ():
        directory.keep(run, out / "runs")
    text = render(study, directory, list(found), figures, pictures, command)
    write_file(out / "report.md", text.encode())
    print(text.partition("\n## Commands")[0])
    print(f"the report is {out / 'report.md'}, its figures are in {out / 'results.json'}")


def look_up(results: Any, path: str, where: str) -> Any:
    """The value under keys with points between them; of a list, the number of the place is the key."""
    value = results
    for key in path.split("."):
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
            continue
        if not isinstance(value, dict) or key not in value:
            there = ", ".join(map(str, value)) if isinstance(value, dict) else repr(value)
            raise SystemExit(
                f"{where} has no {path!r}: at {key!r} there is {there:.300}; see `report` in the study file"
            )
        value = value[key]
    return value


def collect_numbers(found: dict[Run, dict[str, Any]], path: str) -> dict[str, dict[str, dict[int, float]]]:
    """A number of all runs, by method, world and seed; null, where there was nothing to measure, is not a number."""
    numbers: dict[str, dict[str, dict[int, float]]] = {}
    for run, results in found.items():
        value = look_up(results, path, f"the results file of {run.key}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise SystemExit(f"{path!r} of {run.key} is {value!r}; it must be a number")
        by_world = numbers.setdefault(run.method, {}).setdefault(run.env, {})
        if value is not None:
            by_world[run.seed] = float(value)
    return numbers


def collect_curves(found: dict[Run, dict[str, Any]], config: ReportConfig) -> dict[str, dict[str, list[Curve]]]:
    """The learning curves: world, method, runs."""
    curves: dict[str, dict[str, list[Curve]]] = {}
    for run, results in found.items() if config.curve is not None else ():
        where = f"the curve of {run.key}"
        points = look_up(results, config.curve or "", f"the results file of {run.key}")
        if points:
            steps = [float(look_up(point, config.curve_steps, where)) for point in points]
            values = [float(look_up(point, config.curve_score, where)) for point in points]
            curve = Curve(np.array(steps), np.array(values))
            curves.setdefault(run.env, {}).setdefault(run.method, []).append(curve)
    return curves


def draw(out: Path, figures: Figures, curves: dict[str, dict[str, list[Curve]]]) -> list[str]:
    """The names of the plots that there is something for."""
    names = ["returns.png"]
    draw_returns(out / "returns.png", figures)
    if figures.aggregates:
        draw_aggregates(out / "aggregates.png", figures)
        draw_profiles(out / "profiles.png", figures)
        names += ["aggregates.png", "profiles.png"]
    if curves:
        draw_curves(out / "curves.png", curves, figures)
        names.append("curves.png")
    return names


if __name__ == "__main__":
    main(tyro.cli(Args))
