"""Kills itself at a chosen moment of a landscape: ``python killed.py MOMENT COUNT FILE``.

MOMENT is ``point`` (in the middle of a point, while the weights are moved), ``write`` (half of the
file is written) or ``rename`` (just before the new file replaces the old one). COUNT says at which
of these moments.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from crsam.landscape import file as landscape_file
from landscape.test_resume import whole
from landscape.test_surface import losses_and_right


def main() -> None:
    moment, count, path = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    landscape_file.EVERY = -1.0  # after every point
    left = count

    def at(now: str) -> None:
        nonlocal left
        left -= now == moment
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    fsync, replace = os.fsync, Path.replace

    def loss_fn(model: Any, batch: Any) -> Any:
        at("point")
        return losses_and_right(model, batch)

    def sync(descriptor: int) -> None:
        if left == 1:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        at("write")
        fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        at("rename")
        return replace(path, target)

    if moment == "write":
        os.fsync = sync
    Path.replace = rename  # type: ignore[method-assign,assignment]
    whole(path, loss_fn)


if __name__ == "__main__":
    main()
