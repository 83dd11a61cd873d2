"""What the papers state of a family in a world, beside which a report puts its own figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dreamenvs.evaluation import published
from dreamenvs.evaluation.statistics import Scores, human_normalized
from dreamenvs.ids import ATARI, WORLDS


class Column(NamedTuple):
    """A method in a table of a paper."""

    paper: str
    table: str
    method: str


ATARI_COLUMNS: Mapping[str, Column] = {
    "stepvq": Column("step_vq", "mamba2", "STEP-VQ-M"),
    "stepvqt": Column("step_vq", "transformer", "STEP-VQ-T"),
    "cb": Column("step_vq", "mamba2", "CB-M"),
    "cbt": Column("step_vq", "transformer", "CB-T"),
    "storm": Column("git_storm", "atari_100k", "STORM"),
    "gitstorm": Column("git_storm", "atari_100k", "GIT-STORM"),
    "iris": Column("rem", "atari_100k", "IRIS"),
    "rem": Column("rem", "atari_100k", "REM"),
    "deltairis": Column("delta_iris", "atari_100k", "Δ-IRIS"),
}
"""By family, as the scripts spell it; returns after 100,000 real steps."""
DMC_COLUMNS: Mapping[str, Column] = {
    "storm": Column("git_storm", "dmc", "STORM"),
    "gitstorm": Column("git_storm", "dmc", "GIT-STORM"),
}
CRAFTER_CURVES: Mapping[str, Column] = {"deltairis": Column("delta_iris", "crafter_returns", "Δ-IRIS")}
"""Their tasks are numbers of real steps."""
_WORLDS = {env: world for world, env in WORLDS.items()}
_MILLION = 1_000_000


class Cited(NamedTuple):
    """What a paper states of a method in a world."""

    method: str
    source: str
    episode_return: float
    """Where the table has normalised scores alone, computed from these, and as coarse as they are."""
    normalized: float | None
    """Where there are human players."""


class CitedCurve(NamedTuple):
    """A learning curve of a paper."""

    method: str
    source: str
    steps: tuple[float, ...]
    returns: tuple[float, ...]


def cite(family: str, env: str) -> Cited | None:
    """What the family's paper states of an environment, if it does."""
    world = _WORLDS.get(env, "")
    columns = ATARI_COLUMNS if world in ATARI else DMC_COLUMNS
    if family not in columns:
        return None
    column = columns[family]
    table = _table(column)
    tasks = [task.replace(" ", "") for task in table.tasks]
    if world not in tasks:
        return None
    place = tasks.index(world)
    value, normalized = float(table.scores(column.method)[place]), None
    if world in ATARI:
        normalized = float(table.normalized(column.method)[place])
        low, high = anchors([env])
        value = float(low[0] + normalized * (high[0] - low[0])) if table.unit == "human_normalized" else value
    return None if math.isnan(value) else Cited(column.method, _source(column), value, normalized)


def cite_curve(family: str, env: str) -> CitedCurve | None:
    """The learning curve that the family's paper states, if it does."""
    if family not in CRAFTER_CURVES or env != WORLDS["Crafter"]:
        return None
    column = CRAFTER_CURVES[family]
    table = _table(column)
    steps = tuple(float(task.removesuffix("M")) * _MILLION for task in table.tasks)
    return CitedCurve(column.method, _source(column), steps, tuple(table.scores(column.method).tolist()))


def normalizable(envs: Sequence[str]) -> bool:
    """Whether people and random actions have been measured in all of them."""
    return all(_WORLDS.get(env) in ATARI for env in envs)


def normalize(returns: Scores, envs: Sequence[str]) -> Scores:
    """Human-normalised scores of returns (R, M) in M environments."""
    return human_normalized(returns, *anchors(envs))


def anchors(envs: Sequence[str]) -> tuple[Scores, Scores]:
    """What random actions earn in Atari games, and what people do, as REM's paper prints it; both (M,)."""
    table = published.load("rem").tables["atari_100k"]
    places = [table.tasks.index(_WORLDS[env]) for env in envs]
    low, high = (np.array([cell.value for cell in column]) for column in table.anchors())
    return low[places], high[places]


def _table(column: Column) -> published.Table:
    return published.load(column.paper).tables[column.table]


def _source(column: Column) -> str:
    table = _table(column)
    quoted = ", which quotes it" if column.method in table.quoted else ""
    converted = ", from normalised scores" if table.unit == "human_normalized" else ""
    return f"table {table.number} of the {table.paper} paper{quoted}{converted}"
