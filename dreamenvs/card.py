"""The card of a checkpoint: what it was fitted on, what was measured and by which commands, for people to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def card_markdown(card: Mapping[str, Any]) -> str:
    """The card for people: `title` and `summary` first, then each key as a section."""
    lines = [f"# {card.get('title', 'A dream')}", ""]
    if "summary" in card:
        lines += [str(card["summary"]), ""]
    for key, value in card.items():
        if key not in ("title", "summary"):
            lines += [f"## {key.replace('_', ' ').capitalize()}", "", *_section(key, value), ""]
    return "\n".join(lines)


def _section(key: str, value: Any) -> Iterator[str]:
    if key == "commands" and isinstance(value, list):
        yield from ("```sh", *map(str, value), "```")
    elif isinstance(value, dict):
        yield from _table([key.replace("_", " "), ""], [[name, part] for name, part in value.items()])
    elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        columns = list(dict.fromkeys(name for row in value for name in row))
        yield from _table(columns, [[row.get(name, "") for name in columns] for row in value])
    elif isinstance(value, list):
        yield from (f"- {part}" for part in value)
    else:
        yield str(value)


def _table(columns: list[str], rows: list[list[Any]]) -> Iterator[str]:
    yield "| " + " | ".join(map(_cell, columns)) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(map(_cell, row)) + " |"


def _cell(value: Any) -> str:
    text = "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").split())
