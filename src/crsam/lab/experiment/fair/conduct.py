"""Runs a study, one run after the other, in a folder that is all it remembers.

Any number of processes may work on one folder: each takes the next run that no other one holds.
"""

from __future__ import annotations

import gc
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, get_args

import torch

from crsam.errors import UserError
from crsam.lab.experiment.fair.jobs import Job, Progress, Stage, has_diverged, is_done, look, said
from crsam.lab.experiment.fair.study import Measured, Study
from crsam.lab.experiment.fair.summary import write_summary
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.locks import alone, claimed, is_held
from crsam.lab.experiment.measure import Setting, measure_run
from crsam.lab.experiment.occupied import check_free
from crsam.lab.experiment.run import run
from crsam.lab.train.distributed import World
from crsam.lab.train.interrupt import Stop, Stopped, stoppable
from crsam.progress import bar, on_terminal, say

PAUSE = 1.0
"""Seconds between two looks at what other processes have done."""
WAITING = "other processes are at work on all that can be run now: waiting for them"


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

    Other processes may do so at the same time: when all that can be run is held by them, it waits.

    Args:
        study: What to do.
        folder: For all runs, and for ``study.json``, which is renewed after each of them.
        world: The processes that train one model together.
        minutes: When they are over, the run that is going on is checkpointed. A run that would not
            fit into what is left of them, but into as many, is left for the next time.
        summary: Where ``study.json`` is to be written as well.
        fresh: Remove the runs that are there first.

    Returns:
        How far it came.

    Raises:
        UserError: If something in study, data or folder is wrong; if others work on it, and the
            study is to start over or `world` has several processes.
        Stopped: If the user asked to; there is a checkpoint to go on from.
    """
    world, folder, clock = world or World(), Path(folder), Clock(minutes)
    shown = None if world.is_main else False
    files = [folder / "study.json", *([] if summary is None else [Path(summary)])]
    with _joined(folder, world, fresh), stoppable() as stop:
        progress, note = look(study, folder), ""
        done = progress.num_done
        with bar(study.name, len(progress.jobs), done=done, shown=shown) as advance:
            while True:
                if world.any(stop.asked and not clock.is_up):
                    raise Stopped
                with _turn(progress, folder, clock, world) as (job, again):
                    if job is None and not again:
                        break
                    if job is not None and not _do(study, job, folder, world, clock, stop):
                        break
                if job is not None:
                    progress = _renewed(study, folder, world, files)
                    note = _told(folder, job, world)
                else:
                    if note != WAITING and not on_terminal():
                        say(WAITING)
                    note = WAITING
                    time.sleep(PAUSE)
                    progress = look(study, folder)
                advance(progress.num_done - done, note=note, total=len(progress.jobs))
                done = progress.num_done
        return _renewed(study, folder, world, files)


@contextmanager
def _joined(folder: Path, world: World, fresh: bool) -> Iterator[None]:
    """Within, this process, or those of its world, work on the study.

    Raises:
        UserError: If the folder holds somebody else's files. Or if other processes work on the
            study and it cannot be shared: the processes of a world might not see the same runs of
            others as done.
    """
    with ExitStack() as stack:
        if world.is_main:
            check_free(folder)
            shared = not fresh and world.size == 1
            try:
                folder.mkdir(parents=True, exist_ok=True)
                claim = stack.enter_context(claimed(folder / ".lock", shared=shared))
            except OSError as error:
                raise UserError(f"cannot write to {folder}: {error.strerror}") from error
            if claim is None:
                why = "it starts over, or is under torchrun"
                if not shared:
                    why = "it would lose its runs" if fresh else "torchrun does not share a study"
                raise UserError(f"another process is working on the study in {folder}: {why}")
            if fresh:
                for stage in get_args(Stage):
                    shutil.rmtree(folder / stage, ignore_errors=True)
            if world.size == 1:
                claim.share()
        world.wait()
        yield


class Turn(NamedTuple):
    """What a process is to do next."""

    job: Job | None
    """A run that it holds; None: there is none that is free and that there is time for."""
    again: bool = False
    """Whether there may be one later: others hold some, or have just ended some."""


@contextmanager
def _turn(progress: Progress, folder: Path, clock: Clock, world: World) -> Iterator[Turn]:
    """The first run that there is time for, held within."""
    again = False
    for job in progress.pending:
        place = RunFolder(folder / job.place)
        begun = place.has_checkpoint
        fits = not world.any(not clock.allows(progress.seconds(job), begun))
        if world.size > 1:  # then there are no others
            if fits:
                yield Turn(job)
                return
            continue
        if not fits and not place.path.exists():
            continue
        place.path.mkdir(parents=True, exist_ok=True)
        with claimed(place.path / ".study") as claim:
            is_free = claim is not None and not is_held(place.lock_file)  # by `crsam train`
            if not is_free or is_done(progress.study, folder, job):  # by now
                again = True
            elif fits:
                yield Turn(job)
                return
    yield Turn(None, again and not clock.is_up)


def _renewed(study: Study, folder: Path, world: World, files: Sequence[Path]) -> Progress:
    """The study as its folder shows it now, written to all the files."""
    if not world.is_main:
        return look(study, folder)
    with alone(folder / ".summary"):  # or a process that looked earlier might write later
        progress = look(study, folder)
        for file in files:
            write_summary(progress, folder, file)
    return progress


def _do(study: Study, job: Job, folder: Path, world: World, clock: Clock, stop: Stop) -> bool:
    """Runs and measures; whether there was time for it.

    Raises:
        Stopped: If that was asked for by someone else than the clock.
    """
    place = folder / job.place
    try:
        with clock.asking(stop):
            result = run(job.recipe, place, world, label=_label(job), lines=False)
    except Stopped:
        if not world.any(clock.is_up):
            raise
        return False
    if world.is_main:
        tested = job.stage != "choose"
        if study.measure is not None and tested and not has_diverged(result):
            _measure(study.measure, place, world)
        if study.checkpoints == "none" or (study.checkpoints == "final" and not tested):
            RunFolder(place).remove_checkpoints()
    world.wait()  # or the others would not find it measured
    if world.device.type == "cuda":
        gc.collect()  # graphs hold memory until then
        torch.cuda.empty_cache()
    return True


def _measure(wanted: Measured, place: Path, world: World) -> None:
    for split in wanted.splits:
        measure_run(
            place,
            wanted.metrics,
            split=split,  # type: ignore[arg-type]
            samples=wanted.samples,
            how=Setting(rho=wanted.rho, num_probes=wanted.num_probes, batch_size=wanted.batch_size),
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


def _told(folder: Path, job: Job, world: World) -> str:
    """How a run went, in a line, which is said where no bar shows it."""
    result = RunFolder(folder / job.place).result()
    assert result is not None
    kind = "validation" if job.stage == "choose" else "test"
    line = f"{_label(job)}: {kind} accuracy {result[f'{kind}_accuracy']:.2f} %"
    if world.is_main and not on_terminal():
        say(f"{line}  ({result['seconds']:.0f} s)")
    return line
