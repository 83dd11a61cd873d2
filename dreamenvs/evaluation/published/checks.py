"""Where papers disagree: with their own tables, and with each other about the same numbers. Computed, never typed.

The files were made from texts that a machine took out of PDFs: a disagreement may be a misread digit, too.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from dreamenvs.evaluation import statistics
from dreamenvs.evaluation.published.tables import NAMES, Column, Printed, Table, load

# A table holds no runs: of its means alone, these are the aggregates that follow.
_FIGURES = {"mean": statistics.mean, "median": statistics.median, "superhuman": statistics.superhuman}
_ROUNDING = 1e-9


class Disagreement(NamedTuple):
    """An aggregate that a paper prints, and another value that follows from its own table."""

    paper: str
    table: str
    place: str
    """Where it is printed: the table itself, or a section of the text."""
    method: str
    aggregate: str
    printed: float
    computed: float
    """Of the table's scores; for a place in the text, what the table prints or has."""
    rounding: bool
    """Whether it may come of the rounding of the table's scores: some scores that are printed alike agree."""


class Conflict(NamedTuple):
    """A score that two papers quote, or one paper prints twice, with different values."""

    method: str
    task: str
    papers: tuple[str, str]
    tables: tuple[str, str]
    values: tuple[float, float]
    """As printed where both tables have the same unit, otherwise human-normalised."""


def disagreements() -> list[Disagreement]:
    """Every place where a paper's aggregate is not that of its own table, to the digits printed.

    Mean, median and the number of superhuman games follow from a table of means; IQM and optimality gap are over runs,
    which no table holds, and are compared only where the text repeats them.
    """
    found = []
    for name in NAMES:
        for table in load(name).tables.values():
            found += _against_scores(table) + _against_table(table)
    return found


def conflicts() -> list[Conflict]:
    """Every score that stands in two tables and differs by more than rounding, of methods that both papers quote."""
    tables = [table for name in NAMES for table in load(name).tables.values()]
    found = []
    for first, second in combinations(tables, 2):
        if {first.unit, second.unit} <= {"return", "human_normalized"}:
            found += _compare(first, second)
    return found


class _Range(NamedTuple):
    """A column of a table, and the ends of what would be printed alike; NaN where it could not be read."""

    values: Column
    low: Column
    high: Column


def _against_scores(table: Table) -> list[Disagreement]:
    """Aggregates at the foot of a table: of human-normalised scores where there are any, of returns otherwise."""
    found, place = [], f"table {table.number}"
    for name, row in table.aggregates.items():
        for method, printed in row.items():
            if name not in _FIGURES or None in table.printed[method]:
                continue
            columns = _range(table, method, normalized=_is_normalized(table))
            value, low, high = (float(_FIGURES[name](column[None])) for column in columns)
            if not _within(printed, value, value):
                explained = _within(printed, low, high)
                found.append(
                    Disagreement(table.paper, table.number, place, method, name, printed.value, value, explained)
                )
    return found


def _against_table(table: Table) -> list[Disagreement]:
    """What the running text says, against what the table prints."""
    found = []
    for place, method, name, printed in table.statements:
        held = Printed(len(table.tasks), 0.5) if name == "tasks" else table.aggregates[name][method]
        # Text and table may round the same number differently, but not print other digits of the same precision.
        slack = 0.0 if held.half == printed.half else max(held.half, printed.half)
        if abs(held.value - printed.value) > slack + _ROUNDING:
            found.append(Disagreement(table.paper, table.number, place, method, name, printed.value, held.value, False))
    return found


def _within(printed: Printed, low: float, high: float) -> bool:
    """Whether some value from low to high may be printed so."""
    return low - printed.half - _ROUNDING <= printed.value <= high + printed.half + _ROUNDING


def _is_normalized(table: Table) -> bool:
    """Whether the table has human-normalised scores, or what they are made of."""
    anchored = table.reference is not None or {"Random", "Human"} <= table.printed.keys()
    return table.unit == "human_normalized" or anchored


def _range(table: Table, method: str, *, normalized: bool) -> _Range:
    """A column with the smallest and the largest scores that would be printed as it is.

    A normalised score rises with the return, falls with that of people, and goes one way or the other with that of
    random actions: so its extremes are at the corners of what the three may have been.
    """
    scores = table.scores(method)
    half = np.array([np.nan if cell is None else cell.half for cell in table.printed[method]])
    if not normalized or table.unit == "human_normalized":
        return _Range(scores, scores - half, scores + half)
    values = table.normalized(method)
    if method in ("Random", "Human"):
        return _Range(values, values, values)  # 0 and 1, however they were rounded
    anchors = [np.array(column) for column in table.anchors()]  # (M, 2) each, of values and halves
    corners = []
    for sign, low, high in product((-1, 1), repeat=3):
        (least, most) = (column[:, 0] + side * column[:, 1] for column, side in zip(anchors, (low, high), strict=True))
        corners.append(statistics.human_normalized(scores + sign * half, least, most))
    return _Range(values, np.min(corners, axis=0), np.max(corners, axis=0))


def _compare(first: Table, second: Table) -> list[Conflict]:
    """Scores of the methods that both quote, or both print in the same paper."""
    found = []
    own, same = first.paper == second.paper, first.unit == second.unit
    if not same and not (_is_normalized(first) and _is_normalized(second)):
        return []
    for method in [name for name in first.methods if name in second.methods]:
        if not own and not (method in first.quoted and method in second.quoted):
            continue
        one, other = (_range(table, method, normalized=not same) for table in (first, second))
        for place, task in enumerate(first.tasks):
            if task not in second.tasks:
                continue
            there = second.tasks.index(task)
            if one.low[place] > other.high[there] + _ROUNDING or other.low[there] > one.high[place] + _ROUNDING:
                values = (float(one.values[place]), float(other.values[there]))
                numbers = (first.number, second.number)
                found.append(Conflict(method, task, (first.paper, second.paper), numbers, values))
    return found
