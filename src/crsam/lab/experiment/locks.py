"""Locks between processes: files that the system sets free when their holder is gone.

They are opened to read and to write: NFS refuses to lock others.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


class Claim:
    """A lock that is held."""

    def __init__(self, file: IO[Any]) -> None:
        self._file = file

    def share(self) -> None:
        """From here on others may hold it too, if they share it as well."""
        fcntl.flock(self._file, fcntl.LOCK_SH)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Within, no other process is; it waits for one that is."""
    with file.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def claimed(file: Path, *, shared: bool = False) -> Iterator[Claim | None]:
    """Held within, or None: another process holds it.

    Args:
        file: Made if it is not there; its folder must be.
        shared: Others may hold it too, if they share it as well.
    """
    with file.open("a+") as lock:
        is_ours = _taken(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield Claim(lock) if is_ours else None


def is_held(file: Path) -> bool:
    """Whether a process holds it."""
    try:
        with file.open("r+") as lock:
            return not _taken(lock, fcntl.LOCK_EX)
    except FileNotFoundError:
        return False


def _taken(lock: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
