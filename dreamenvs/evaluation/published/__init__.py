"""Published results as data: the per-game tables of the papers that the package implements, as they are printed.

    from dreamenvs.evaluation import published

    table = published.load("rem").tables["atari_100k"]
    table.normalized("REM").mean()   # 1.222, as printed

Numbers stand in the files as texts, so that the digits of the paper are kept. What could not be read is null, with a
note that says so.
"""

from __future__ import annotations

from dreamenvs.evaluation.published.checks import Conflict, Disagreement, conflicts, disagreements
from dreamenvs.evaluation.published.tables import NAMES, Paper, Printed, Statement, Table, load

__all__ = [
    "NAMES",
    "Conflict",
    "Disagreement",
    "Paper",
    "Printed",
    "Statement",
    "Table",
    "conflicts",
    "disagreements",
    "load",
]
