"""The report of a study as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dreamenvs.evaluation.statistics import LEVEL, Estimate
from dreamenvs.studies.directory import StudyDirectory
from dreamenvs.studies.report.figures import Figures
from dreamenvs.studies.report.plots import LABELS
from dreamenvs.studies.study import Run, Study

WIDE = 6
"""Columns of a table that people read with ease; one with more, and with fewer rows, is laid on its side."""
CAPTIONS = {
    "returns.png": "Returns: single runs as points, their mean, and its interval",
    "aggregates.png": "Aggregates and their intervals",
    "profiles.png": "Performance profiles: the share of runs above each score",
    "curves.png": "Learning curves: means over runs, and single runs",
}


def render(
    study: Study,
    directory: StudyDirectory,
    finished: Sequence[Run],
    figures: Figures,
    pictures: Sequence[str],
    command: str,
) -> str:
    """The whole text."""
    failed = {key for key, count in directory.failures().items() if count > study.retries}
    parts = [
        f"# {study.name}",
        _overview(study, finished, figures),
        *_missing(study, finished, failed),
        f"## Returns\n\n{_returns(figures)}",
        *_measures(figures),
        *_claims(figures),
        *_aggregates(figures),
        *_improvements(figures),
        *(f"![{CAPTIONS[name]}]({name})" for name in pictures),
        f"## Commands\n\n{_commands(finished, command)}",
    ]
    return "\n\n".join(parts) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under their columns; the first cell names the row."""
    lines = [columns, ["---", *("---:" for _ in columns[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def show(estimate: Estimate | None) -> str:
    """A figure and its interval, where there is one."""
    if estimate is None:
        return "–"
    value, low, high = map(show_number, estimate)
    return value if math.isnan(estimate.low) or low == high == value else f"{value} [{low}, {high}]"


def show_number(value: float) -> str:
    """Four digits, or all before the point.

    >>> show_number(0.123456), show_number(1338769.0)
    ('0.1235', '1,338,769')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _overview(study: Study, finished: Sequence[Run], figures: Figures) -> str:
    total = len(list(study.runs()))
    text = (
        f"{len(finished)} of {total} runs are finished. Brackets are {LEVEL:.0%} percentile bootstrap intervals: of a "
        f"return over its runs, of an aggregate stratified by world. A figure without brackets comes from one run, "
        f"or from runs that agree."
    )
    if figures.unit == "return" and len(figures.returns) > 1:
        text += " Aggregates are of raw returns, in which worlds with large rewards weigh most."
    return text


def _missing(study: Study, finished: Sequence[Run], failed: set[str]) -> list[str]:
    done = {run.key for run in finished}
    left = [run for run in study.runs() if run.key not in done]
    lines = [f"- {run.title}: {'failed' if run.key in failed else 'not finished'}" for run in left]
    return ["Left out:", "\n".join(lines)] if lines else []


def _returns(figures: Figures) -> str:
    methods = list(figures.seeds)
    papers = {name: cited.source for known in figures.published.values() for name, cited in known.items()}
    rows = []
    for world, estimates in figures.returns.items():
        known = figures.published.get(world, {})
        cells = [f"{show(estimates.get(m))} ({len(figures.runs[world].get(m, {}))})" for m in methods]
        rows.append(
            [world, *cells, *(show_number(known[name].episode_return) if name in known else "–" for name in papers)]
        )
    columns = ["world", *(f"{method} (runs)" for method in methods), *(f"{name}, published" for name in papers)]
    if len(columns) > WIDE > len(rows):
        columns, *rows = map(list, zip(columns, *rows, strict=True))
    sources = [f"- {name}, published: {source}" for name, source in papers.items()]
    return "\n\n".join([markdown_table(columns, rows), *(["\n".join(sources)] if sources else [])])


def _measures(figures: Figures) -> list[str]:
    parts = []
    for world, methods in figures.measures.items():
        names = list(dict.fromkeys(name for each in methods.values() for name in each))
        rows = [[method, *(show(each.get(name)) for name in names)] for method, each in methods.items()]
        parts.append(f"### {world}\n\n{markdown_table(['method', *names], rows)}")
    return ["## Measures", *parts] if parts else []


def _claims(figures: Figures) -> list[str]:
    if not figures.claims:
        return []
    worlds = list(figures.returns)
    rows = [
        [
            claim.text,
            f"{claim.measure}: {claim.first} − {claim.second}",
            *(show(claim.differences.get(world)) for world in worlds),
            f"{claim.chance:.2g}",
            f"**{claim.verdict}**",
        ]
        for claim in figures.claims
    ]
    text = (
        "Differences of means over runs. p is that of an exact permutation test over all worlds: how often runs that "
        f"were dealt out at random would differ as much. Up to {1 - LEVEL:.2g} a claim holds, or does not; above, it "
        "is undecided. Three runs of two methods in one world cannot come below 0.1. No correction is made for there "
        "being several claims."
    )
    table = markdown_table(["claim", "difference", *worlds, "p", "at this scale"], rows)
    return [f"## Claims\n\n{text}\n\n{table}"]


def _aggregates(figures: Figures) -> list[str]:
    if not figures.aggregates:
        return ["No seed is finished in every world yet: there are no aggregates."]
    kinds = list(next(iter(figures.aggregates.values())))
    rows = [
        [method, str(len(figures.seeds[method])), *(show(each[kind]) for kind in kinds)]
        for method, each in figures.aggregates.items()
    ]
    for method, values in figures.published_aggregates.items():
        cells = [f"{values[kind]:.4g}" if kind in values else "–" for kind in kinds]
        rows.append([f"{method}, published, the same worlds", "–", *cells])
    table = markdown_table(["method", "seeds", *(LABELS[kind] for kind in kinds)], rows)
    return [f"## Aggregates\n\nOf the {figures.unit}, over the seeds that are finished in every world.\n\n{table}"]


def _improvements(figures: Figures) -> list[str]:
    if not figures.improvements:
        return []
    methods = list(figures.aggregates)
    rows = [[f"**{a}**", *(show(figures.improvements.get(a, {}).get(b)) for b in methods)] for a in methods]
    table = markdown_table(["", *methods], rows)
    return [f"## Probability of improvement\n\nThat a run of the row's method beats one of the column's.\n\n{table}"]


def _commands(finished: Sequence[Run], command: str) -> str:
    lines = [f"# {run.title}: {run.work}/results.json\n" + "\n".join(run.typed()) for run in finished]
    text = (
        "`results.json` beside this file holds every figure above. It is made by the first of these commands from the "
        "results files of the runs; each of the others, given at the top of the repository, makes one of them again."
    )
    return f"{text}\n\n```sh\n{command}\n\n" + "\n".join(lines) + "\n```"
