"""A worker of a sweep: ``python sweeper.py FOLDER TRIALS [kill]``; killed within its third run."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from crsam.lab.experiment import sweep as sweeping
from lab.experiment.runs import tiny
from lab.experiment.test_sweep import RANGES


def main() -> None:
    folder, trials, *kill = sys.argv[1:]
    real, left = sweeping.run, [3]

    def run(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if kill and left[0] == 0:
            watch = options["watch"]

            def last(epoch: int, score: Any) -> None:
                watch(epoch, score)
                if epoch == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

            options["watch"] = last
        return real(*args, **options)

    sweeping.run = run
    sweeping.sweep(tiny(*RANGES), folder, trials=int(trials))


if __name__ == "__main__":
    main()
