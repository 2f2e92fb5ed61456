"""A run that is killed at a chosen moment: ``python killed.py MOMENT COUNT FOLDER [KEY=VALUE]...``.

MOMENT is ``step`` (in the middle of one, the weights moved), ``line`` (half a line of metrics
written), ``checkpoint`` (half of it written), ``rename`` (just before it takes the old one's
place), ``renamed`` (just after) or ``result`` (half written); COUNT: which of them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crsam import _files
from crsam.experiment.folder import MetricsLog
from crsam.experiment.run import run
from crsam.train.step import EagerStep
from experiment.runs import tiny


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

    def in_file(self, path: Path, content: bytes) -> None:
        beside = path.with_name(path.name + ".tmp")
        self.at(path.stem, lambda: beside.write_bytes(content[: len(content) // 2]))

    def replace(self, path: Path, target: Path) -> Path:
        if target.name == "checkpoint.pt":
            self.at("rename")
        os.replace(path, target)
        if target.name == "checkpoint.pt":
            self.at("renamed")
        return target


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
    run(tiny(*overrides), folder, lines=False)


if __name__ == "__main__":
    main()
