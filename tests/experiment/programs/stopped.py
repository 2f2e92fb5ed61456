"""Runs under ``torchrun``, and stops: ``… stopped.py FOLDER NUM_LOOKS [KEY=VALUE]...``."""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress

from crsam.experiment.run import run
from crsam.train import interrupt
from crsam.train.distributed import join
from crsam.train.interrupt import Stopped
from experiment.runs import tiny


def main() -> None:
    folder, looks, *overrides = sys.argv[1:]
    count = itertools.count(1)
    interrupt.Stop.asked = property(lambda stop: next(count) == int(looks))  # type: ignore
    with suppress(Stopped), join("cpu") as world:  # as the command line does
        run(tiny(*overrides), folder, world, lines=False)
        raise SystemExit("the run was not stopped")


if __name__ == "__main__":
    main()
