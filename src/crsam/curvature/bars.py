"""Progress bars of measurements."""

from __future__ import annotations

from contextlib import AbstractContextManager

from crsam.progress import Advance, bar


def progress_bar(label: str, total: int, wanted: bool) -> AbstractContextManager[Advance]:
    """A bar, if it is wanted, on a terminal, and the number of steps is known (not 0)."""
    return bar(label, total, shown=None if wanted and total > 0 else False)
