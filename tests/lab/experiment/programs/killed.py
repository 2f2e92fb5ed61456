"""A run that is killed at a chosen moment: ``python killed.py MOMENT COUNT FOLDER [KEY=VALUE]...``.

MOMENT is ``step`` (in the middle of one, the weights moved), ``line`` (half a line of metrics
written), ``checkpoint`` (half of it written), ``rename`` (just before it takes the old one's
place), ``renamed`` (just after), ``linked`` (the old checkpoint is about to become the previous
one), ``kept`` (it has just become so) or ``result`` (half written); COUNT: which of them. The
variable NO_LINKS makes hard links fail.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crsam import _files
from crsam.lab.experiment.folder import MetricsLog
from crsam.lab.experiment.run import run
from crsam.lab.train.step import EagerStep
from lab.experiment.runs import tiny


class Killer:
    """Counts down to the moment."""

    def __init__(self, moment: str, count: int) -> None:
        self.moment, self.left = moment, count

    def at(self, moment: str, last_words: Callable[[], object] = lambda: None) -> None:
        if moment == self.moment:
            self.left -= 1
            if self.left == 0:
                last_words()
                os.kill(os.getpid(), signal.SIGKILL)

    def in_line(self, log: MetricsLog, line: dict[str, Any]) -> None:
        def half() -> None:
            log._file.write(b'{"kind": "tr')
            log._file.flush()

        self.at("line", half)

    def in_file(self, path: Path, content: bytes, keep: Path | None = None) -> None:
        beside = path.with_name(path.name + ".tmp")
        self.at(path.stem, lambda: beside.write_bytes(content[: len(content) // 2]))

    def replace(self, path: Path, target: Path) -> Path:
        before, after = {
            "checkpoint.pt": ("rename", "renamed"),
            "checkpoint.previous.pt": ("linked", "kept"),
        }.get(target.name, ("", ""))
        self.at(before)
        os.replace(path, target)
        self.at(after)
        return target


def no_links(path: Path, target: Path) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def before(function: Callable[..., Any], first: Callable[..., None]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        first(*args, **kwargs)
        return function(*args, **kwargs)

    return both


def main() -> None:
    moment, count, folder, *overrides = sys.argv[1:]
    killer = Killer(moment, int(count))
    EagerStep._forward = before(EagerStep._forward, lambda *_: killer.at("step"))  # type: ignore[method-assign]
    MetricsLog.write = before(MetricsLog.write, killer.in_line)  # type: ignore[method-assign]
    _files.write = before(_files.write, killer.in_file)
    Path.replace = lambda path, target: killer.replace(path, target)  # type: ignore[assignment,method-assign]
    if "NO_LINKS" in os.environ:
        Path.hardlink_to = no_links  # type: ignore[method-assign]
    run(tiny(*overrides), folder, lines=False)


if __name__ == "__main__":
    main()
