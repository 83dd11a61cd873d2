"""Results for files and for people: NamedTuples of numbers as plain JSON, and rows of them as a text table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Progress = Callable[[int, int], None]
"""Told how much is done, and how much there is."""

DIGITS = 4


def to_json(value: Any) -> Any:
    """Nested NamedTuples, mappings, sequences and numbers as JSON holds them; what is not a finite number is None."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return round(float(value), DIGITS) if math.isfinite(value) else None
    if isinstance(value, Sequence):
        return [to_json(part) for part in value]
    raise TypeError(f"a result is made of numbers, texts, sequences and NamedTuples, not {type(value).__name__}")


def text_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows under their columns, numbers to the right, a dash where there is none."""
    lines = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    # The first cell names the row.
    padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join([cells[0].ljust(widths[0]), *padded[1:]]).rstrip()


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float | np.floating) and not math.isfinite(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
