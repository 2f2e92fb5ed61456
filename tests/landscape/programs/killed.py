"""A landscape that is killed at a chosen moment: ``python killed.py MOMENT COUNT FILE``.

MOMENT is ``point`` (in the middle of one, the weights moved), ``write`` (half of the file written)
or ``rename`` (just before it takes the old one's place); COUNT: which of them.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from crsam.landscape import file as landscape_file
from crsam.landscape.mean import Mean
from landscape.test_resume import whole


def main() -> None:
    moment, count, path = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    landscape_file.EVERY = -1.0  # after every point
    left = count

    def at(now: str) -> None:
        nonlocal left
        left -= now == moment
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sums, fsync, replace = Mean._sums, os.fsync, Path.replace

    def evaluate(*args: Any) -> Any:
        at("point")
        return sums(*args)

    def sync(descriptor: int) -> None:
        if left == 1:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        at("write")
        fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        at("rename")
        return replace(path, target)

    Mean._sums = evaluate  # type: ignore[method-assign]
    if moment == "write":
        os.fsync = sync
    Path.replace = rename  # type: ignore[method-assign,assignment]
    whole(path)


if __name__ == "__main__":
    main()
