"""ProgressLine: one line of text that names the stage, how much is done and when it ends. It imports nothing.

The Python API reports with it, since the packages that draw progress bars come with the commands alone.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO


class ProgressLine:
    """Called with how much is done and how much there is; writes to a terminal every second, to a file at the end."""

    def __init__(self, stage: str, unit: str, stream: TextIO | None = None) -> None:
        self.stage, self.unit = stage, unit
        self._stream = sys.stderr if stream is None else stream
        self._begun = self._written = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now, ended = time.monotonic(), done >= total
        terminal = self._stream.isatty()
        if not ended and not (terminal and now - self._written >= 1.0):
            return
        self._written, seconds = now, now - self._begun
        left = f"{_minutes(seconds)} in total" if ended else f"{_minutes(seconds / max(done, 1) * (total - done))} left"
        text = f"{self.stage}: {done:,} of {total:,} {self.unit}, {left}"
        self._stream.write(f"\r{text:<72}" if terminal else text)
        self._stream.write("\n" if ended else "")
        self._stream.flush()


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
