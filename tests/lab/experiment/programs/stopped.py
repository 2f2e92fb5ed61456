"""Runs under ``torchrun``, and stops: ``… stopped.py FOLDER NUM_LOOKS [KEY=VALUE]...``."""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress

from crsam.lab.experiment.run import run
from crsam.lab.train import interrupt
from crsam.lab.train.distributed import join
from crsam.lab.train.interrupt import Stopped
from lab.experiment.runs import tiny


def main() -> None:
    folder, looks, *overrides = sys.argv[1:]
    count = itertools.count(1)
    interrupt.Stop.asked = property(lambda stop: next(count) == int(looks))  # type: ignore
    with suppress(Stopped), join("cpu") as world:  # as the command line does
        run(tiny(*overrides), folder, world, lines=False)
        raise SystemExit("the run was not stopped")


if __name__ == "__main__":
    main()
