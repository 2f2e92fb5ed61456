"""A run on photographs under ``torchrun``: ``… photos.py ROOT FOLDER LOG STOP [KEY=VALUE]...``.

Stopped after STOP steps of this start, as by SIGTERM (0: not at all). Each process writes to LOG
the images of each step that it trained on, and how many it had decoded when it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from crsam.lab.data.decoded import Decoded
from crsam.lab.data.images import Part, Shown
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.run import run
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.train.distributed import join
from crsam.lab.train.interrupt import Stopped
from crsam.lab.train.step import EagerStep

OPTIONS = (
    "data.name=folder", "data.image_size=8", "data.workers=1", "augment=inception",
    "train.batch_size=6", "train.epochs=2", "train.precision=float64", "log.every=1",
    "method=sam", "model.width=8",
)  # fmt: skip


def recipe(root: str | Path, *overrides: str) -> Recipe:
    return load_recipe("digits", [f"data.root={root}", *OPTIONS, *overrides])


def main() -> None:
    root, folder, log, stop, *overrides = sys.argv[1:]
    seen: list[list[int]] = []
    real_stream, real_step = Decoded.stream, EagerStep.__call__

    def stream(images: Decoded, parts: Iterable[Part], most: int) -> Iterator[Shown]:
        random: list[bool] = []

        def told() -> Iterator[Part]:
            for part in parts:
                random.append(part.seeds is not None)
                yield part

        for i, shown in enumerate(real_stream(images, told(), most)):
            if random[i]:
                seen.append(shown.rows.tolist())
            yield shown

    def step(self: EagerStep, batch: Any) -> tuple[Tensor, Tensor]:
        done = real_step(self, batch)
        if len(seen) == int(stop):
            os.kill(os.getpid(), signal.SIGTERM)
        return done

    Decoded.stream = stream  # type: ignore[method-assign]
    EagerStep.__call__ = step  # type: ignore[method-assign]
    with join("cpu") as world:
        try:
            run(recipe(root, *overrides), folder, world, lines=False)
        except Stopped:
            assert int(stop)
        assert world.union({world.rank, 9}) == {*range(world.size), 9}
        Path(log, f"{world.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # now and then torch's own threads abort at the end: not what is tested
