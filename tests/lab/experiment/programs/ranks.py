"""Runs under ``torchrun``: ``… ranks.py FOLDER METHOD... [KEY=VALUE]...``."""

from __future__ import annotations

import sys

from crsam.lab.experiment.run import run
from crsam.lab.train.distributed import join
from lab.experiment.runs import tiny


def main() -> None:
    folder, *rest = sys.argv[1:]
    overrides = [word for word in rest if "=" in word]
    with join("cpu") as world:
        for method in (word for word in rest if "=" not in word):
            run(tiny(f"method={method}", *overrides), f"{folder}/{method}", world, lines=False)


if __name__ == "__main__":
    main()
