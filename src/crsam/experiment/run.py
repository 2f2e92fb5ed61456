"""One run in one folder: starts, goes on where it was, or is done already."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from crsam import curvature
from crsam.data.batches import Batch, in_order
from crsam.data.images import Images
from crsam.errors import UserError
from crsam.experiment.build import (
    Parts,
    Splits,
    autocast_of,
    build,
    build_data,
    build_model,
)
from crsam.experiment.environment import environment
from crsam.experiment.folder import MetricsLog, RunFolder, finite
from crsam.experiment.recipe import Recipe
from crsam.experiment.scalars import ScalarWriter
from crsam.train import checkpoint
from crsam.train.distributed import World
from crsam.train.evaluate import Score, evaluate
from crsam.train.interrupt import Stopped, stoppable
from crsam.train.loop import Diverged, Metrics, fit

SHARPNESS_RHO = 0.05
"""The radius at which all models are compared, whatever they were trained with."""
NUM_MEASURED = 2048
"""Training images on which gradient norm and sharpness are taken."""

Result = dict[str, Any]


def run(
    recipe: Recipe,
    folder: str | Path,
    world: World | None = None,
    *,
    fresh: bool = False,
    label: str | None = None,
    lines: bool = True,
) -> Result:
    """Trains what the recipe says, or goes on from the last checkpoint in `folder`.

    Args:
        recipe: What to do.
        folder: Of the run; see `RunFolder`.
        world: The processes that take part.
        fresh: Start over where there is a run already.
        label: Of the progress bar.
        lines: Say a line an epoch where there is no terminal.

    Returns:
        What is in ``result.json``; at once, if the run has been done.

    Raises:
        UserError: If something in recipe, data or folder is wrong.
        Stopped: If the user asked to; there is a checkpoint to go on from.
    """
    world = world or World()
    place = RunFolder(folder)
    with ExitStack() as stack:
        if world.is_main:
            stack.enter_context(place.claim())
            place.start(recipe, {**environment(world.device), "processes": world.size}, fresh)
        world.wait()
        done = place.result()
        if done is not None:
            return done
        stop = stack.enter_context(stoppable())
        label = label or f"{recipe.method}, seed {recipe.seed}"
        parts = build(recipe, world, label, lines)
        journal = stack.enter_context(closing(Journal(place, recipe, parts, world)))
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
        return journal.finish(diverged_at)


class Journal:
    """What a run writes down while it goes on, and reads when it starts again."""

    def __init__(self, place: RunFolder, recipe: Recipe, parts: Parts, world: World) -> None:
        self.place, self.recipe, self.parts, self.world = place, recipe, parts, world
        self.autocast = autocast_of(recipe)
        self.began, self.seconds_before, length = time.perf_counter(), 0.0, 0
        if place.checkpoint_file.exists():
            state = checkpoint.load(place.checkpoint_file, world.device)
            try:
                parts.training.load_state_dict(state["training"])
                length, self.seconds_before = state["metrics_length"], state["seconds"]
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"{place.checkpoint_file} is of another model or optimizer: "
                    f"{str(error).splitlines()[0]}"
                ) from error
        world.wait()  # or the main process might write a new checkpoint before all have read
        self.log = MetricsLog(place.metrics_file, length) if world.is_main else None
        self.scalars = None
        if recipe.log.tensorboard and world.is_main:
            self.scalars = ScalarWriter(place.path, parts.training.step)

    def write(self, kind: str, values: Metrics) -> None:
        if self.log is not None:
            self.log.write({"kind": kind, **values})
        if self.scalars is not None:
            self.scalars.write(kind, values)

    def trained(self, values: Metrics) -> None:
        epoch = values["step"] / len(self.parts.batches)
        self.write("train", {"epoch": round(epoch, 4), **values})

    def ended_epoch(self, epoch: int) -> None:
        last = epoch == self.parts.plan.epochs
        if self.parts.splits.validation is not None and (
            last or epoch % self.recipe.log.evaluate == 0
        ):
            score = self.score(self.parts.splits.validation, "validating")
            self.write("validation", {"epoch": epoch, **score._asdict()})
        if last or epoch % self.recipe.log.checkpoint == 0:
            self.save()

    def score(self, images: Images, label: str) -> Score:
        return evaluate(
            self.parts.training.judged,
            images,
            self.parts.splits.feed,
            autocast=self.autocast,
            world=self.world,
            label=label,
        )

    def save(self) -> None:
        if self.log is not None:
            state = {
                "training": self.parts.training.state_dict(),
                "metrics_length": self.log.sync(),
                "seconds": self.seconds,
            }
            checkpoint.save(self.place.checkpoint_file, state)

    @property
    def seconds(self) -> float:
        """Of training, over all starts."""
        return self.seconds_before + time.perf_counter() - self.began

    def finish(self, diverged_at: int | None) -> Result:
        """The test set, once; and the figures that show how flat the place is."""
        seconds, step = self.seconds, self.parts.training.step
        test = self.score(self.parts.splits.test, "testing")
        result: Result = {
            "method": self.recipe.method,
            "seed": self.recipe.seed,
            "test_accuracy": test.accuracy,
            "test_loss": test.loss,
            "train_loss": None,
            "gradient_norm": None,
            "sharpness": None,
            "steps": step,
            "seconds": round(seconds, 3),
            "images_per_second": round(step * self.parts.batches.batch_size / seconds, 1),
            "diverged_at": diverged_at,
        }
        if diverged_at is None:
            result |= flatness(self.parts.training.judged, self.parts.splits)
        self.write("test", {"step": step, **test._asdict()})
        result = finite(result)
        if self.world.is_main:
            self.place.write_json(self.place.result_file.name, result)
        self.world.wait()
        return result

    def close(self) -> None:
        for file in (self.log, self.scalars):
            if file is not None:
                file.close()


def flatness(model: nn.Module, splits: Splits) -> dict[str, float]:
    """Loss, gradient norm and sharpness on (at most 2,048 of) the training images, unaugmented."""
    some = torch.arange(min(len(splits.train), NUM_MEASURED), device=splits.train.device)
    batches = list(in_order(splits.train.part(some), splits.feed, batch_size=512))
    was = model.training
    model.eval()
    try:
        losses = [cross_entropy(model, batch).item() * len(batch.targets) for batch in batches]
        return {
            "train_loss": sum(losses) / len(some),
            "gradient_norm": curvature.gradient_norm(model, cross_entropy, batches),
            "sharpness": curvature.sharpness(model, cross_entropy, batches, rho=SHARPNESS_RHO),
        }
    finally:
        model.train(was)


def cross_entropy(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean loss of a batch."""
    return F.cross_entropy(model(batch.inputs), batch.targets)


def evaluate_run(
    folder: str | Path,
    world: World | None = None,
    split: Literal["train", "validation", "test"] = "test",
    root: str | None = None,
) -> tuple[int, Score]:
    """The step of a run's checkpoint, and how good its model is on one of the splits.

    Args:
        folder: Of the run.
        world: The processes that take part.
        split: Which images.
        root: Where the data is, if not where the recipe says.
    """
    from dataclasses import replace

    world = world or World()
    place = RunFolder(folder)
    recipe = place.recipe()
    if root is not None:
        recipe = replace(recipe, data=replace(recipe.data, root=root))
    if not place.checkpoint_file.exists():
        raise UserError(f"{place.path} has no checkpoint yet: train first")
    splits = build_data(recipe, world.device)
    images = getattr(splits, split)
    if images is None:
        raise UserError("this run held out no validation images: data.validation is 0")
    state = checkpoint.load(place.checkpoint_file, world.device)["training"]
    model = build_model(recipe, splits, world.device)
    weights = state["model"]
    if state["average"] is not None:
        prefix = "module."
        weights = {
            k.removeprefix(prefix): v for k, v in state["average"].items() if k.startswith(prefix)
        }
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{place.checkpoint_file} is of another model: {first}") from error
    return state["step"], evaluate(
        model, images, splits.feed, autocast=autocast_of(recipe), world=world
    )
