"""One run in one folder: starts, goes on where it was, or is done already."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from crsam.errors import UserError
from crsam.lab.experiment.build import autocast_of, build, check_alone
from crsam.lab.experiment.environment import environment
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.journal import Journal, Result, Watch
from crsam.lab.experiment.measure import check_metrics
from crsam.lab.experiment.occupied import check_apart
from crsam.lab.experiment.recipe import Recipe, uses_own
from crsam.lab.experiment.restore import (
    DATA_FILE,
    Split,
    check_data,
    described,
    has_moved,
    restored,
)
from crsam.lab.experiment.splits import build_data
from crsam.lab.experiment.warmup import too_long
from crsam.lab.train.distributed import World
from crsam.lab.train.evaluate import Score, evaluate
from crsam.lab.train.interrupt import Stopped, stoppable
from crsam.lab.train.loop import Diverged, fit
from crsam.lab.user_modules import imported
from crsam.optim import Curvature
from crsam.progress import say, say_once


def run(
    recipe: Recipe,
    folder: str | Path,
    world: World | None = None,
    *,
    fresh: bool = False,
    label: str | None = None,
    lines: bool = True,
    watch: Watch | None = None,
) -> Result:
    """Trains what the recipe says, or goes on from the last checkpoint in `folder`.

    Args:
        recipe: What to do.
        folder: Of the run; see `RunFolder`.
        world: The processes that take part.
        fresh: Start over where there is a run already.
        label: Of the progress bar.
        lines: Say a line an epoch where there is no terminal.
        watch: Given the epoch and the score after each look at the validation images; what it
            raises ends the run, which can go on later.

    Returns:
        What is in ``result.json``; at once, if the run has been done.

    Raises:
        UserError: If something in recipe, data or folder is wrong.
        Stopped: If the user asked to; there is a checkpoint to go on from.
    """
    world = world or World()
    check_metrics(recipe.measure.metrics)
    place = RunFolder(folder)
    with ExitStack() as stack:
        if world.is_main:
            if recipe.data.name == "folder":
                check_apart(place.path, Path(recipe.data.root))
            stack.enter_context(place.claim())
            try:
                place.check(recipe, fresh)
            except UserError:
                place.leave_nothing()
                if place.begun:
                    check_alone(recipe, begun_from=place.recipe().init)
                raise
        world.wait()
        done = None if fresh else place.result()
        if done is not None:
            if has_moved(place, recipe):
                check_data(place, build_data(recipe, world.device))
            return done
        stop = stack.enter_context(stoppable())
        label = label or f"{recipe.method}, seed {recipe.seed}"
        begins = fresh or not place.has_checkpoint
        try:
            parts = build(recipe, world, label, lines, begins=begins)
        except UserError:
            if world.is_main:
                place.leave_nothing()
            raise
        if not begins:
            check_data(place, parts.splits)
            world.wait()  # or the main process might write before all have looked
        if world.is_main:
            origin = {**environment(world.device), "processes": world.size}
            objective = getattr(parts.training.optimizer, "objective", None)
            if isinstance(objective, Curvature):
                origin["floor"] = objective.floor  # among the options None: the precision's
            origin["options"] = recipe.all_method_options
            origin["rho_warmup"] = getattr(parts.training.optimizer, "warmup", None)
            if uses_own(recipe):
                origin["imports"] = imported()
            place.start(recipe, origin, fresh)
            if begins and recipe.schedule.warmup >= recipe.train.epochs:
                say(f"{label}: schedule.warmup is not below train.epochs: the rate stays too low")
            steps = parts.plan.epochs * len(parts.batches)
            for line in (too_long(recipe, steps), parts.batches.uneven) if begins else ():
                if line is not None:
                    say_once(line)
        world.wait()
        if parts.started is not None and world.is_main:
            say(f"{label}: from {parts.started.file}, {parts.started.loaded}")
            place.write_json(place.init_file.name, parts.started.as_json())
        if world.is_main:
            place.write_json(DATA_FILE, described(parts.splits))
        stack.enter_context(closing(parts.batches))
        journal = stack.enter_context(closing(Journal(place, recipe, parts, world, watch)))
        diverged_at = None
        try:
            fit(
                parts.training,
                parts.batches,
                parts.take_step,
                parts.plan,
                on_metrics=journal.trained,
                on_epoch=journal.ended_epoch,
                stop=stop,
                world=world,
            )
        except Stopped:
            journal.save()
            raise
        except Diverged as error:
            diverged_at = error.step
            journal.save()
        return journal.finish(diverged_at)


def evaluate_run(
    folder: str | Path, world: World | None = None, split: Split = "test", root: str | None = None
) -> tuple[int, Score]:
    """The step of a run's checkpoint, and how good its model is on one of the splits.

    Args:
        folder: Of the run.
        world: The processes that take part.
        split: Which images.
        root: Where the data is, if not where the recipe says.
    """
    world = world or World()
    run = restored(folder, world, root)
    score = evaluate(
        run.model,
        run.images(split),
        run.splits.feed,
        autocast=autocast_of(run.recipe),
        world=world,
    )
    return run.step, score
