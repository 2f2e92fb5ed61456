"""How much of its time training waits for data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PENDING = 64
"""Waits of a GPU that are added up at a time."""


class Waits:
    """Seconds of training, and of waiting for data in them.

    On a GPU it is the device that counts, not the host, which runs ahead of it: how long it had
    nothing to do between the last step and the arrival of the next batch. Events in its stream tell
    that afterwards; nothing waits for them.

    Args:
        device: Where training takes place.

    Example:
        >>> waits = Waits(torch.device("cpu"))
        >>> with waits.training(), waits.waiting():
        ...     time.sleep(0.01)
        >>> waits.share > 0.9
        True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._seconds, self._waited = 0.0, 0.0
        self._began: float | None = None
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def training(self) -> Iterator[None]:
        """Within, time is counted."""
        self._began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds, self._began = self.seconds, None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within, training can do nothing but wait."""
        if self.device.type != "cuda":
            began = time.perf_counter()
            yield
            self._waited += time.perf_counter() - began
            return
        done, ready = (_event(), _event())
        done.record(torch.cuda.current_stream(self.device))
        yield
        ready.record(torch.cuda.current_stream(self.device))
        self._pending.append((done, ready))
        if len(self._pending) >= PENDING:
            self._add_up()

    @property
    def seconds(self) -> float:
        """Of training, up to now."""
        now = 0.0 if self._began is None else time.perf_counter() - self._began
        return self._seconds + now

    @property
    def waited(self) -> float:
        """Seconds of waiting."""
        self._add_up()
        return self._waited

    @property
    def share(self) -> float:
        """Of the seconds of training that were waits."""
        return self.waited / self.seconds if self.seconds else 0.0

    def _add_up(self) -> None:
        while self._pending and _is_past(self._pending[0][1]):
            done, ready = self._pending.pop(0)
            self._waited += done.elapsed_time(ready) / 1000

    def state_dict(self) -> dict[str, float]:
        return {"seconds": self.seconds, "waited": self.waited}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._seconds, self._waited = state["seconds"], state["waited"]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _is_past(event: torch.cuda.Event) -> bool:
    return event.query()  # type: ignore[no-untyped-call]
