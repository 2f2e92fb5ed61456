"""Runs a study, one run after the other, in a folder that is all it remembers."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import torch

from crsam.experiment.fair.jobs import Job, Progress, Stage, look, said
from crsam.experiment.fair.study import Measured, Study
from crsam.experiment.fair.summary import write_summary
from crsam.experiment.folder import RunFolder
from crsam.experiment.measure import Setting, measure_run
from crsam.experiment.run import run
from crsam.progress import bar, on_terminal, say
from crsam.train.distributed import World
from crsam.train.interrupt import Stop, Stopped, stoppable


class Clock:
    """A budget of time; None: as long as it takes."""

    def __init__(self, minutes: float | None) -> None:
        self.began = time.monotonic()
        self.budget = None if minutes is None else 60 * minutes

    @property
    def left(self) -> float | None:
        return None if self.budget is None else self.began + self.budget - time.monotonic()

    @property
    def is_up(self) -> bool:
        return self.left is not None and self.left <= 0

    def allows(self, seconds: float | None, begun: bool) -> bool:
        """Whether a run should start: it fits into what is left, or into no budget at all."""
        if self.left is None or self.budget is None:
            return True
        if begun or seconds is None or seconds > self.budget:
            return self.left > 0
        return seconds <= self.left

    @contextmanager
    def asking(self, stop: Stop) -> Iterator[None]:
        """Within, a stop is asked for as soon as the time is up."""
        if self.left is None:
            yield
            return
        timer = threading.Timer(max(self.left, 0), lambda: setattr(stop, "asked", True))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def conduct(
    study: Study,
    folder: str | Path,
    world: World | None = None,
    *,
    minutes: float | None = None,
    summary: str | Path | None = None,
    fresh: bool = False,
) -> Progress:
    """Runs what is not done yet, or as much of it as there is time for.

    Args:
        study: What to do.
        folder: For all runs, and for ``study.json``, which is renewed after each of them.
        world: The processes that take part.
        minutes: When they are over, the run that is going on is checkpointed. A run that would not
            fit into what is left of them, but into as many, is left for the next time.
        summary: Where ``study.json`` is to be written as well.
        fresh: Remove the runs that are there first.

    Returns:
        How far it came.

    Raises:
        UserError: If something in study, data or folder is wrong.
        Stopped: If the user asked to; there is a checkpoint to go on from.
    """
    world, folder, clock = world or World(), Path(folder), Clock(minutes)
    if fresh and world.is_main:
        for stage in get_args(Stage):
            shutil.rmtree(folder / stage, ignore_errors=True)
    world.wait()
    files = [folder / "study.json", *([] if summary is None else [Path(summary)])]
    progress = look(study, folder)
    done = sum(job.result is not None for job in progress.jobs)
    shown = None if world.is_main else False
    with (
        stoppable() as stop,
        bar(study.name, len(progress.jobs), done=done, shown=shown) as advance,
    ):
        while job := _next(progress, folder, clock, world):
            try:
                with clock.asking(stop):
                    _do(study, job, folder, world)
            except Stopped:
                if not world.any(clock.is_up):
                    raise
                break
            if world.is_main:
                _tell(RunFolder(folder / job.place), job, advance)
            progress = look(study, folder)
            if world.is_main:
                for file in files:
                    write_summary(progress, folder, file)
            if world.any(stop.asked and not clock.is_up):
                raise Stopped
    if world.is_main:
        for file in files:
            write_summary(progress, folder, file)
    return progress


def _next(progress: Progress, folder: Path, clock: Clock, world: World) -> Job | None:
    """The first run that there is time for."""
    for job in progress.pending:
        begun = RunFolder(folder / job.place).checkpoint_file.exists()
        if not world.any(not clock.allows(progress.seconds(job), begun)):
            return job
    return None


def _do(study: Study, job: Job, folder: Path, world: World) -> None:
    place = folder / job.place
    run(job.recipe, place, world, label=_label(job), lines=False)
    if world.is_main:
        if study.measure is not None and job.stage == "final":
            _measure(study.measure, place, world)
        keeps = study.checkpoints == "all" or (study.checkpoints, job.stage) == ("final", "final")
        if not keeps:
            RunFolder(place).checkpoint_file.unlink(missing_ok=True)
    if world.device.type == "cuda":
        gc.collect()  # graphs hold memory until then
        torch.cuda.empty_cache()


def _measure(wanted: Measured, place: Path, world: World) -> None:
    for split in wanted.splits:
        measure_run(
            place,
            wanted.metrics,
            split=split,  # type: ignore[arg-type]
            samples=wanted.samples,
            how=Setting(num_probes=wanted.num_probes),
            world=World(world.device),
        )


def _label(job: Job) -> str:
    assert job.setting is not None
    words = [
        job.contestant,
        *([said(job.setting)] if job.setting else []),
        f"seed {job.recipe.seed}",
    ]
    return f"{job.stage}: {', '.join(words)}"


def _tell(place: RunFolder, job: Job, advance: Callable[..., None]) -> None:
    result = place.result()
    assert result is not None
    kind = "validation" if job.stage == "choose" else "test"
    line = f"{_label(job)}: {kind} accuracy {result[f'{kind}_accuracy']:.2f} %"
    advance(note=line)
    if not on_terminal():
        say(f"{line}  ({result['seconds']:.0f} s)")
