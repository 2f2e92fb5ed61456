"""Ctrl-C and SIGTERM as a request to stop between two steps, when everything is consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stop:
    """Whether someone asked to stop."""

    asked: bool = False


class Stopped(Exception):
    """The run was asked to stop and has; it can be resumed."""


_outer: Stop | None = None


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Turns the first SIGINT or SIGTERM into a request; a second SIGINT stops at once.

    Within another one it is the same request: what is asked of a part is asked of the whole.
    Signals can be caught in the main thread only; elsewhere nothing is ever asked.
    """
    global _outer
    if _outer is not None or threading.current_thread() is not threading.main_thread():
        yield _outer or Stop()
        return
    stop = _outer = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = True

    before: dict[int, Any] = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        _outer = None
        for number, handler in before.items():
            signal.signal(number, handler)
