"""List the dreams at hand.

dreamenvs list
"""

from __future__ import annotations

from dataclasses import dataclass

from dreamenvs.checkpoints.library import BUNDLED, AvailableDream, available, user_directory
from dreamenvs.families import FAMILIES
from dreamenvs.ids import WORLDS

COLUMNS = ("id", "family", "world", "tier", "real steps", "size", "where")


@dataclass(frozen=True)
class Args:
    """List the dreams at hand, and say where they are kept."""

    paths: bool = False
    """Show the whole path of every dream."""


def main(args: Args) -> None:
    """Print a table."""
    rows = [COLUMNS, *(row_of(dream, args.paths) for dream in available())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"\nYour own dreams are in {user_directory()}; `dreamenvs rm <id>` removes one.")
    print(f"{len(FAMILIES)} families can be fitted on {len(WORLDS)} known worlds, or on an environment of your own:")
    print("dreamenvs fit stepvq --env MinAtar/Breakout-v1")


def row_of(dream: AvailableDream, paths: bool) -> tuple[str, ...]:
    """One line of the table."""
    shelf = dream.path.parent
    where = "bundled" if shelf == BUNDLED else "yours" if shelf == user_directory() else str(shelf)
    steps = "–" if dream.real_steps is None else f"{dream.real_steps:,}"
    size = f"{dream.size / 1e6:.1f} MB"
    return dream.id, dream.family, dream.world, dream.tier or "–", steps, size, str(dream.path) if paths else where
