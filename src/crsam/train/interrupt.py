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


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Turns the first SIGINT or SIGTERM into a request; a second SIGINT stops at once.

    Signals can be caught in the main thread only; elsewhere nothing is ever asked.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = True

    before: dict[int, Any] = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
