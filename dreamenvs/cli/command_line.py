"""The command that is being run, as cards and results name it."""

from __future__ import annotations

import shlex
import sys


def command_line(name: str) -> str:
    """Such as `dreamenvs fit stepvq --seed 1`, however it was started."""
    return shlex.join(["dreamenvs", name, *sys.argv[1:]])
