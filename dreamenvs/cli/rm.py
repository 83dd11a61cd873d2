"""Remove a dream of one's own.

dreamenvs rm dreamenvs/STEPVQ-Pong-v1
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Annotated

import tyro

from dreamenvs.checkpoints.library import locate, user_directory


@dataclass(frozen=True)
class Args:
    """Remove a dream from your data directory."""

    dream: Annotated[str, tyro.conf.Positional]
    """Its id or path."""
    yes: bool = False
    """Do not ask first."""


def main(args: Args) -> None:
    """Remove a dream that lies in the user's data directory, and no other."""
    path = locate(args.dream).resolve()
    if path.parent != user_directory().resolve():
        raise SystemExit(f"{path} is not in your data directory {user_directory()}; only what is there is removed")
    if not args.yes and input(f"remove {path}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise SystemExit("nothing was removed")
    shutil.rmtree(path)
    print(f"removed {path}")
