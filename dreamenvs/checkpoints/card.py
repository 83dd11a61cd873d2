"""The card of a checkpoint: what it was fitted on, what was measured and by which commands, for people to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any


def card_markdown(card: Mapping[str, Any]) -> str:
    """The card for people: `title` and `summary` first, then each key as a section."""
    lines = [f"# {card.get('title', 'A dream')}", ""]
    if "summary" in card:
        lines += [str(card["summary"]), ""]
    for key, value in card.items():
        if key not in ("title", "summary"):
            lines += [f"## {_heading(key).capitalize()}", "", *_section(key, value), ""]
    return "\n".join(lines)


def _section(key: str, value: Any, level: int = 3) -> Iterator[str]:
    if key == "commands" and isinstance(value, list):
        yield from ("```sh", *map(str, value), "```")
    elif isinstance(value, dict) and value and all(_is_row(part) for part in value.values()):
        yield from _records([{"": name} | part for name, part in value.items()])
    elif isinstance(value, dict):
        yield from _object(key, value, level)
    elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        yield from _records(value)
    elif isinstance(value, list):
        yield from (f"- {part}" for part in value)
    else:
        yield str(value)


def _object(key: str, value: dict[str, Any], level: int) -> Iterator[str]:
    """Plain values as one table, and then what has parts of its own, each under its heading."""
    nested = {name: part for name, part in value.items() if _has_parts(part)}
    plain = [[name, part] for name, part in value.items() if name not in nested]
    blocks: list[Iterator[str]] = [_table([_heading(key), ""], plain)] if plain or not nested else []
    for name, part in nested.items():
        blocks.append(chain((f"{'#' * level} {_heading(name).capitalize()}", ""), _section(name, part, level + 1)))
    for number, block in enumerate(blocks):
        yield from [""] * (number > 0)
        yield from block


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and not any(map(_has_parts, value.values()))


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(part, dict) for part in value))


def _records(rows: list[dict[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    yield from _table(list(map(_heading, columns)), [[row.get(name, "") for name in columns] for row in rows])


def _heading(name: str) -> str:
    return name.replace("_", " ")


def _table(columns: list[str], rows: list[list[Any]]) -> Iterator[str]:
    yield "| " + " | ".join(map(_cell, columns)) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(map(_cell, row)) + " |"


def _cell(value: Any) -> str:
    text = "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").split())
