"""Becomes another Python program, which ends when its parent does: `python child_process.py <parent> <command> …`.

On Linux the kernel sends SIGTERM, upon which the commands save and end. A parent may block or ignore
SIGINT, as Ray's workers do, and children inherit that: here Ctrl-C is given back its meaning.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was asked
        raise SystemExit("the process that started this one is gone")
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
