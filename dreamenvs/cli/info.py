"""Show the card of a dream.

dreamenvs info dreamenvs/STEPVQ-Pong-v0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from dreamenvs.checkpoints.library import describe_dream, locate


@dataclass(frozen=True)
class Args:
    """Show what is known of a dream."""

    dream: Annotated[str, tyro.conf.Positional]
    """An environment id or the path of a checkpoint directory."""


def main(args: Args) -> None:
    """Print the card, after where it is."""
    path = locate(args.dream)
    dream = describe_dream(path)
    print(f"{dream.family} dream of {dream.world}, {dream.size / 1e6:.1f} MB, in {path}\n")
    card = path / "card.md"
    print(card.read_text(encoding="utf-8").rstrip() if card.is_file() else "It has no card.")
