"""The tables of papers: how they are read from the package's files, and what can be asked of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from dreamenvs.evaluation.statistics import human_normalized

NAMES = ("rem", "delta_iris", "git_storm", "step_vq")
"""What `load` takes."""

Unit = Literal["return", "human_normalized", "fvd", "perplexity", "crafter_score"]
Column = NDArray[np.float64]  # (M,), NaN where the paper could not be read


class Printed(NamedTuple):
    """A number as it is printed."""

    value: float
    half: float
    """Half a unit of its last digit: what was rounded to it lies no further away."""


class Statement(NamedTuple):
    """What the running text says about an aggregate of a table."""

    place: str
    method: str
    aggregate: str
    printed: Printed


class Table(NamedTuple):
    """One table of a paper: a column of scores for each method."""

    paper: str
    number: str
    benchmark: str
    unit: Unit
    runs: int | None
    """Runs behind each score; None where the paper does not say."""
    tasks: tuple[str, ...]
    printed: Mapping[str, tuple[Printed | None, ...]]
    """The scores by method; None where one could not be read."""
    quoted: tuple[str, ...]
    """Methods whose scores the paper took from others."""
    aggregates: Mapping[str, Mapping[str, Printed]]
    """What the table itself says of its columns, by the name of the aggregate and the method."""
    statements: tuple[Statement, ...]
    notes: tuple[str, ...]
    reference: str | None
    """The table that holds what random actions and people earn, as `paper/table`; None where it is this one."""

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.printed)

    def scores(self, method: str) -> Column:
        """(M,) in the table's unit, in the order of `tasks`."""
        return np.array([math.nan if cell is None else cell.value for cell in self._column(method)])

    def normalized(self, method: str) -> Column:
        """(M,) human-normalised scores: as printed, or by the table's columns of random actions and people."""
        if self.unit == "human_normalized":
            return self.scores(method)
        low, high = self.anchors()
        return human_normalized(self.scores(method), [cell.value for cell in low], [cell.value for cell in high])

    def anchors(self) -> tuple[tuple[Printed, ...], tuple[Printed, ...]]:
        """What random actions earn in each task, and what people do."""
        source = self
        if self.reference is not None:
            paper, name = self.reference.split("/")
            source = load(paper).tables[name]
        if self.unit != "return" or not {"Random", "Human"} <= source.printed.keys():
            raise ValueError(f"table {self.number} of {self.paper} has no scores of random actions and of people")
        places = [source.tasks.index(task) for task in self.tasks]
        low, high = (
            tuple(cell for place in places if (cell := source.printed[name][place]) is not None)
            for name in ("Random", "Human")
        )
        return low, high

    def _column(self, method: str) -> tuple[Printed | None, ...]:
        if method not in self.printed:
            raise KeyError(f"table {self.number} of {self.paper} has {', '.join(self.methods)}, and no {method}")
        return self.printed[method]


class Paper(NamedTuple):
    """A paper and its tables by name."""

    name: str
    title: str
    source: str
    tables: Mapping[str, Table]


@cache
def load(name: str) -> Paper:
    """The tables of a paper: `rem`, `delta_iris`, `git_storm` or `step_vq`."""
    if name not in NAMES:
        raise ValueError(f"published results are of {', '.join(NAMES)}, not of {name!r}")
    data = json.loads(files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    tables = {key: _read_table(data["paper"], table) for key, table in data["tables"].items()}
    return Paper(data["paper"], data["title"], data["source"], MappingProxyType(tables))


def parse(text: str) -> Printed:
    """A printed number, such as 1.222 or -20.7, with its precision."""
    decimals = len(text.partition(".")[2])
    return Printed(float(text), 0.5 * 10.0**-decimals)


def _read_table(paper: str, data: dict[str, Any]) -> Table:
    tasks, unit = tuple(data["tasks"]), data["unit"]
    columns = {
        method: tuple(None if text is None else parse(text) for text in column)
        for method, column in data["scores"].items()
    }
    if unit not in get_args(Unit) or any(len(column) != len(tasks) for column in columns.values()):
        raise ValueError(f"table {data['table']} of {paper} is not in order")
    return Table(
        paper=paper,
        number=data["table"],
        benchmark=data["benchmark"],
        unit=unit,
        runs=data["runs"],
        tasks=tasks,
        printed=MappingProxyType(columns),
        quoted=tuple(data["quoted"]),
        aggregates=MappingProxyType(
            {
                name: MappingProxyType({method: parse(text) for method, text in row.items()})
                for name, row in data["aggregates"].items()
            }
        ),
        statements=tuple(
            Statement(said["place"], said["method"], said["aggregate"], parse(said["value"]))
            for said in data["statements"]
        ),
        notes=tuple(data["notes"]),
        reference=data["reference"],
    )
