"""Locks between processes: files that the system sets free when their holder is gone."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Within, no other process is; it waits for one that is."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def claimed(file: Path, *, shared: bool = False) -> Iterator[bool]:
    """Whether no other process holds it; if so, none can claim it within.

    Args:
        file: Made if it is not there; its folder must be.
        shared: Others may hold it too, if they share it as well.
    """
    with file.open("w") as lock:
        yield _taken(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def is_held(file: Path) -> bool:
    """Whether a process holds it."""
    try:
        with file.open() as lock:
            return not _taken(lock, fcntl.LOCK_EX)
    except FileNotFoundError:
        return False


def _taken(lock: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
