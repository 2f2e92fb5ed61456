"""From a recipe to all that it names: the one module that knows everything."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

import crsam
from crsam import data
from crsam.data.augment import Augmentation, Flip, Inception, make_augment
from crsam.data.augment import options as augment_options
from crsam.data.batches import Batches, Feed, derive
from crsam.data.broken import Broken
from crsam.data.images import Images
from crsam.errors import UserError
from crsam.experiment.init import Started, read_init
from crsam.experiment.options import optimizers
from crsam.experiment.recipe import Data, Recipe
from crsam.models import make_model
from crsam.models import options as model_options
from crsam.models.weights import head_of
from crsam.optim.captured import why_not
from crsam.optim.methods import options as method_options
from crsam.progress import say
from crsam.train.captured import CapturedStep
from crsam.train.distributed import World
from crsam.train.loop import Plan, Training, averaged
from crsam.train.step import EagerStep

BFLOAT16_FLOOR = 1e-5
"""Differences of losses computed in bfloat16 are not to be trusted below this share of the loss."""


@dataclass(frozen=True)
class Splits:
    """The data of a run."""

    train: Images
    validation: Images | None
    """Held out of the training set, to choose by; its labels are as wrong as those."""
    test: Images
    """To be looked at once, at the end."""
    feed: Feed
    classes: tuple[str, ...]
    """The name of each label."""
    broken: tuple[Broken, ...] = ()
    """Images that could not be read, as they are found."""


@dataclass(frozen=True)
class Parts:
    """All that a run needs."""

    splits: Splits
    training: Training
    batches: Batches
    take_step: EagerStep | CapturedStep
    plan: Plan
    started: Started | None = None
    """From which file, where the recipe names one and the run begins."""


def build(
    recipe: Recipe,
    world: World,
    label: str = "training",
    lines: bool = True,
    *,
    begins: bool = True,
) -> Parts:
    """What the recipe says, on this process's device.

    Args:
        recipe: What to build.
        world: The processes that take part.
        label: Of the progress bar.
        lines: Say a line an epoch where there is no terminal.
        begins: Whether the run starts at its first step: if not, nothing is read that only first
            weights are made of.
    """
    init = read_init(recipe.init) if begins and recipe.init is not None else None
    splits = build_data(recipe, world.device)
    model = build_model(recipe, splits, world.device, begins=begins)
    started = None if init is None else init.into(model)
    optimizer = build_optimizer(recipe, model)
    train = recipe.train
    return Parts(
        splits=splits,
        training=Training(
            model, optimizer, None if train.ema is None else averaged(model, train.ema)
        ),
        batches=Batches(
            splits.train, splits.feed, train.batch_size, recipe.seed, world.rank, world.size
        ),
        take_step=build_step(recipe, world, model, optimizer),
        plan=Plan(
            train.epochs, recipe.schedule, recipe.seed, recipe.log.every, label=label, lines=lines
        ),
        started=started,
    )


def build_step(
    recipe: Recipe, world: World, model: nn.Module, optimizer: Optimizer
) -> EagerStep | CapturedStep:
    """What is done with a batch: captured where the device and all parts allow it."""
    train, by_sample = recipe.train, looks_at_samples(optimizer)
    if by_sample and train.accumulate > 1:
        raise UserError(
            f"{recipe.method} looks at single samples of a whole batch: train.accumulate must be "
            f"1, got {train.accumulate}"
        )
    if train.batch_size % (world.size * train.accumulate):
        raise UserError(
            f"train.batch_size = {train.batch_size} cannot be cut into train.accumulate = "
            f"{train.accumulate} equal parts on each of {world.size} processes"
        )
    norm, params = train.clip_norm, list(model.parameters())
    clips = norm is not None and not isinstance(optimizer, crsam.SharpnessAware)
    wrapped = world.wrap(model)
    if isinstance(optimizer, crsam.SharpnessAware):
        optimizer.model = wrapped  # its scope may ask that gradients stay where they are
    eager = EagerStep(
        wrapped,
        optimizer,
        autocast=autocast_of(recipe),
        accumulate=train.accumulate,
        after_backward=(lambda: clip_grad_norm_(params, norm)) if clips and norm else None,
        by_sample=by_sample,
    )
    if not (train.capture and world.device.type == "cuda"):
        return eager
    reason = why_not(optimizer) or why_eager(recipe, world, clips)
    if reason is not None:
        if world.is_main:
            say(f"steps are not captured in a CUDA graph: {reason}")
        return eager
    return CapturedStep(
        model,
        optimizer,
        autocast=autocast_of(recipe),
        channels_last=train.channels_last,
        compile=train.compile,
        # Runs of a comparison differ in method, seed and weights, not in what is compiled.
        share=repr((recipe.model, model, train.precision, train.channels_last)),
        tell=True,
        otherwise=eager,
    )


def why_eager(recipe: Recipe, world: World, clips: bool) -> str | None:
    """Why steps of this recipe cannot be captured, whatever the optimizer; None: they can."""
    if world.size > 1:
        return "there are several processes"
    if recipe.train.accumulate > 1:
        return "train.accumulate is above 1"
    if clips:
        return "train.clip_norm with a plain optimizer"
    return None


def looks_at_samples(optimizer: Optimizer) -> bool:
    """Whether its step wants a `PerSample` closure."""
    if not isinstance(optimizer, crsam.SharpnessAware):
        return False
    parts = (optimizer.ascent, optimizer.objective, optimizer.schedule)
    return any(part.needs_samples for part in parts)


def build_data(recipe: Recipe, device: torch.device) -> Splits:
    """The splits, held on the device where they fit."""
    chosen = recipe.data
    windows = windows_of(recipe)
    root = str(Path(chosen.root).expanduser().absolute())
    # What is loaded does not depend on the rest, and is kept for runs that differ in it.
    everything = loaded(replace(chosen, root=root, validation=0.0, label_noise=0.0), windows)
    train, validation = everything.train, None
    if chosen.validation:
        train, validation = data.split(train, chosen.validation)
        if not (len(train) and len(validation)):
            raise UserError(
                f"data.validation = {chosen.validation} leaves {len(train)} images to train on and "
                f"{len(validation)} to choose by"
            )

    def noisy(images: Images, purpose: str) -> Images:
        if chosen.label_noise:
            seed, num = derive(recipe.seed, purpose), len(everything.classes)
            images = data.with_wrong_labels(images, chosen.label_noise, num, seed)
        return images.to(device)

    feed = Feed(
        everything.mean,
        everything.std,
        len(everything.classes),
        # Windows are cut out of the photographs: what is left to do is to flip.
        Flip(windows.flip_share) if windows else build_augment(recipe, everything),
        recipe.loss.mixup,
        recipe.loss.label_smoothing,
        input_dtype(recipe),
    )
    return Splits(
        noisy(train, "labels"),
        None if validation is None else noisy(validation, "labels of validation"),
        everything.test.to(device),
        feed,
        classes=everything.classes,
        broken=everything.broken,
    )


def windows_of(recipe: Recipe) -> Inception | None:
    """The random windows of photographs to train on; None: images are augmented on the device."""
    if recipe.data.name != "folder" or recipe.data.hold or recipe.augment.name != "inception":
        return None
    if recipe.data.image_size is None:
        raise UserError("data.image_size must be given: the side that photographs are scaled to")
    with naming("augment"):
        return Inception(**recipe.augment.options)


def build_augment(recipe: Recipe, dataset: data.Dataset) -> Augmentation:
    """What is done to images on the device."""
    given = dict(recipe.augment.options)
    if "fill" in augment_options(recipe.augment.name):  # what is cut out gets the mean colour
        given.setdefault("fill", tuple(round(255 * mean) for mean in dataset.mean))
    with naming("augment"):
        return make_augment(recipe.augment.name, **given)


@functools.lru_cache(maxsize=1)
def loaded(chosen: Data, windows: Inception | None) -> data.Dataset:
    """The set; kept for the next run of this process, of which a study has many."""
    return data.load(
        chosen.name,
        chosen.root,
        image_size=chosen.image_size,
        download=chosen.download,
        hold=chosen.hold,
        windows=windows,
        middle=chosen.middle,
        draft=chosen.draft,
        workers=chosen.workers,
    )


def build_model(
    recipe: Recipe, splits: Splits, device: torch.device, *, begins: bool = True
) -> nn.Module:
    """The model with the first weights of this seed, made for the size of the images.

    Args:
        recipe: What to build.
        splits: The images.
        device: Where to put it.
        begins: False: its weights will come from a checkpoint, and no others are fetched.
    """
    torch.manual_seed(derive(recipe.seed, "weights"))
    channels, height, width = splits.train.shape
    given = dict(recipe.model.options)
    if "image_size" in model_options(recipe.model.name) and height == width:
        given.setdefault("image_size", height)
    if not begins:
        given.pop("pretrained", None)
    with naming("model"):
        model = make_model(
            recipe.model.name,
            splits.feed.num_classes,
            in_channels=channels,
            **given,
        )
    model = model.to(device, splits.feed.dtype)
    if recipe.train.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:  # in evaluation mode: no statistics move, one image is enough
        nothing = torch.zeros(1, *splits.train.shape, dtype=splits.feed.dtype, device=device)
        with torch.no_grad():
            model.eval()(nothing)
    except (RuntimeError, AssertionError) as error:  # timm asserts
        raise UserError(
            f"model {recipe.model.name!r} does not take images of {channels}×{height}×{width}: "
            f"{next(iter(str(error).splitlines()), 'no reason given')}"
        ) from error
    return model.train()


def build_optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    """The base optimizer, or the method around it."""
    with naming("optimizer"):
        base = optimizers()[recipe.optimizer.name](
            groups(recipe, model), **recipe.optimizer.options
        )
    if recipe.method == recipe.optimizer.name:
        return base
    given = dict(recipe.method_options)
    if recipe.train.precision == "bfloat16" and "floor" in method_options(recipe.method):
        given.setdefault("floor", BFLOAT16_FLOOR)
    with naming(f"methods.{recipe.method}"):
        return crsam.make(
            recipe.method,
            base,
            model=model,
            max_norm=recipe.train.clip_norm,
            seed=recipe.seed,
            **given,
        )


def groups(recipe: Recipe, model: nn.Module) -> Iterable[nn.Parameter] | list[dict[str, Any]]:
    """All parameters; the head's apart, and first, where the others learn at another rate."""
    share, lr = recipe.train.backbone_lr, recipe.optimizer.options["lr"]
    if share == 1:
        return model.parameters()
    first = head_of(model)
    head = [p for name, p in model.named_parameters() if name.startswith(first)]
    others = [p for name, p in model.named_parameters() if not name.startswith(first)]
    return [{"params": head, "lr": lr}, {"params": others, "lr": share * lr}]


def input_dtype(recipe: Recipe) -> torch.dtype:
    return torch.float64 if recipe.train.precision == "float64" else torch.float32


def autocast_of(recipe: Recipe) -> torch.dtype | None:
    return torch.bfloat16 if recipe.train.precision == "bfloat16" else None


@contextmanager
def naming(table: str) -> Iterator[None]:
    """Says in which table of the recipe a value is that a constructor refuses."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError) as error:
        raise UserError(f"{table}: {error}") from error
