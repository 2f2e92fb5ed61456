"""Progress bars on a terminal. Elsewhere, and where rich is not installed, nothing is shown."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol


class Advance(Protocol):
    """Moves a bar on by `steps`; a `note` replaces the text at its end, a `total` the old one."""

    def __call__(
        self, steps: int = 1, note: str | None = None, total: int | None = None
    ) -> None: ...


_display: Any = None  # the one live display; a bar within a bar is a line of it


@contextmanager
def bar(label: str, total: int, *, done: int = 0, shown: bool | None = None) -> Iterator[Advance]:
    """Shows a progress bar of `total` steps. Bars may be nested.

    Args:
        label: What is being done.
        total: Number of steps.
        done: How many of them are done already.
        shown: Whether to show it. Defaults to whether the standard error stream is a terminal and
            rich is installed.

    Yields:
        The function that moves it on.

    Example:
        >>> with bar("counting", 3, shown=False) as advance:
        ...     for _ in range(3):
        ...         advance()
    """
    global _display
    if not (on_terminal() if shown is None else shown):
        yield lambda steps=1, note=None, total=None: None
        return
    outermost = _display is None
    if outermost:
        _display = _new_display()
        _display.start()
    task = _display.add_task(label, total=total, completed=done, note="")

    def advance(steps: int = 1, note: str | None = None, total: int | None = None) -> None:
        _display.update(
            task, advance=steps, total=total, **({} if note is None else {"note": note})
        )

    try:
        yield advance
    finally:
        _display.remove_task(task)
        if outermost:
            _display.stop()
            _display = None


def on_terminal() -> bool:
    """Whether a bar can be shown: the standard error stream is a terminal, and rich is there."""
    return sys.stderr.isatty() and find_spec("rich") is not None


def say(line: str) -> None:
    """A line on the standard error stream, above any bar."""
    if _display is None:
        print(line, file=sys.stderr, flush=True)
    else:
        _display.console.print(line, markup=False, highlight=False, soft_wrap=True)


@functools.cache
def say_once(line: str) -> None:
    """The same, but only the first time in this process: a comparison starts many runs."""
    say(line)


def _new_display() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
