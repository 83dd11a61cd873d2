"""Ctrl-C as a question: work ends at the next good moment, and nothing is left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruption(*, insistent: bool = False) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the second one has its usual effect, unless `insistent`.

    `torchrun` hands every signal on to processes that have often had it from the terminal already, and kills after 30
    seconds those that are still there: for them the second one is no news.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: Any) -> None:
        stop.set()
        if not insistent:
            restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()
