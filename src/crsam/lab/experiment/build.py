"""From a recipe to all that it names: the one module that knows everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Optimizer

import crsam
from crsam.errors import UserError
from crsam.graph.captured import capture_blocker
from crsam.lab.data.batches import Batches, derive
from crsam.lab.experiment.init import Started, read_init
from crsam.lab.experiment.options import naming, optimizers
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.splits import Splits, build_data
from crsam.lab.experiment.warmup import cap_warmup
from crsam.lab.models import make_model
from crsam.lab.models import options as model_options
from crsam.lab.models.weights import head_of
from crsam.lab.train.captured import CapturedStep
from crsam.lab.train.distributed import World
from crsam.lab.train.loop import Plan, Training, averaged
from crsam.lab.train.step import EagerStep
from crsam.optim import Curvature, Random
from crsam.optim.pass_strategies import tf32_is_allowed
from crsam.optim.registry import options as method_options
from crsam.progress import say

BFLOAT16_FLOOR, TF32_FLOOR = 1e-3, 1e-4
"""Differences of losses are not to be trusted below this share of the loss (docs/precision.md)."""


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
    batches = Batches(
        splits.train, splits.feed, train.batch_size, recipe.seed, world.rank, world.size
    )
    cap_warmup(optimizer, recipe, train.epochs * len(batches))
    set_length(optimizer, train.epochs * len(batches))
    return Parts(
        splits=splits,
        training=Training(
            model, optimizer, None if train.ema is None else averaged(model, train.ema)
        ),
        batches=batches,
        take_step=build_step(recipe, world, model, optimizer),
        plan=Plan(
            train.epochs, recipe.schedule, recipe.seed, recipe.log.every, label=label, lines=lines
        ),
        started=started,
    )


def check_alone(recipe: Recipe, begun_from: str | None) -> None:
    """Raises UserError for what is wrong with a recipe by itself, as far as no data tells.

    Args:
        recipe: What would be built.
        begun_from: The file of weights that is not needed any more.
    """
    if recipe.method != recipe.optimizer.name:
        with naming(f"methods.{recipe.method}"):
            crsam.make(recipe.method, SGD([nn.Parameter(torch.zeros(1))]), **recipe.method_options)
    if recipe.data.name == "folder" and not Path(recipe.data.root).is_dir():
        raise UserError(f"there is no folder {recipe.data.root}")
    if recipe.init not in (None, begun_from):
        read_init(recipe.init)


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
    reason = capture_blocker(optimizer) or why_eager(recipe, clips)
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


def why_eager(recipe: Recipe, clips: bool) -> str | None:
    """Why steps of this recipe cannot be captured, whatever the optimizer; None: they can."""
    if recipe.train.accumulate > 1:
        return "train.accumulate is above 1"
    if clips:
        return "train.clip_norm with a plain optimizer"
    return None


def looks_at_samples(optimizer: Optimizer) -> bool:
    """Whether its step wants a `PerSample` closure."""
    return any(part.needs_samples for part in getattr(optimizer, "parts", ()))


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
    given, takes = dict(recipe.model.options), model_options(recipe.model.name)
    if "in_channels" in takes:
        given["in_channels"] = channels
    if "image_size" in takes and height == width:
        given.setdefault("image_size", height)
    if not begins:
        given.pop("pretrained", None)
    name, num_classes = recipe.model.name, splits.feed.num_classes
    with naming("model"):
        model = make_model(name, num_classes, **given)
    if not isinstance(model, nn.Module):
        raise UserError(f"model {name!r} is a {type(model).__name__}: it must be a torch.nn.Module")
    model = model.to(device, splits.feed.dtype)
    if recipe.train.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:  # in evaluation mode: no statistics move, one image is enough
        nothing = torch.zeros(1, *splits.train.shape, dtype=splits.feed.dtype, device=device)
        with torch.no_grad():
            found = model.eval()(nothing)
    except (RuntimeError, ValueError, AssertionError) as error:  # timm asserts
        raise UserError(
            f"model {name!r} does not take images of {channels}×{height}×{width}: "
            f"{next(iter(str(error).splitlines()), 'no reason given')}"
        ) from error
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if shape != (1, num_classes):
        raise UserError(
            f"model {name!r} must return a number for each of {num_classes} classes: of one image "
            f"a tensor of shape {(1, num_classes)}, not {shape}"
        )
    return model.train()


def build_optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    """The base optimizer, or the method around it."""
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"model {recipe.model.name!r} has nothing to train: all of it is frozen")
    with naming("optimizer"):
        base = optimizers()[recipe.optimizer.name](
            groups(recipe, model), **recipe.optimizer.options
        )
    if recipe.method == recipe.optimizer.name:
        return base
    common = {"model": model, "max_norm": recipe.train.clip_norm, "seed": recipe.seed}
    given, table = dict(recipe.method_options), f"methods.{recipe.method}"
    device = next(model.parameters()).device
    convolves = any(isinstance(layer, _ConvNd) for layer in model.modules())
    floor = floor_of(recipe.train.precision, device, convolves)
    takes_one = "floor" in method_options(recipe.method)
    if takes_one:
        given.setdefault("floor", floor)
    with naming(table):
        optimizer = crsam.make(recipe.method, base, **common, **given)
    for name, value in common.items():
        if getattr(optimizer, name) != value:
            raise UserError(
                f"{table}: {type(optimizer).__name__} does not hand {name} on to "
                "crsam.SharpnessAware.__init__, which **common is for"
            )
    objective = optimizer.objective
    if isinstance(objective, Curvature) and objective.floor is None and not takes_one:
        optimizer.objective = replace(objective, floor=floor)
    return optimizer


def set_length(optimizer: Optimizer, steps: int) -> None:
    """Tells R-SAM's random start over how many steps it rises, unless the recipe does."""
    ascent = getattr(optimizer, "ascent", None)
    if isinstance(ascent, Random) and ascent.total_steps is None:
        assert isinstance(optimizer, crsam.SharpnessAware)
        optimizer.ascent = replace(ascent, total_steps=steps)


def floor_of(precision: str, device: torch.device, convolves: bool) -> float | None:
    """Below which share of the loss its differences are rounding; None: that of its dtype."""
    if precision == "bfloat16":
        return BFLOAT16_FLOOR
    if precision == "float32" and device.type == "cuda" and convolves and tf32_is_allowed():
        return TF32_FLOOR
    return None


def groups(recipe: Recipe, model: nn.Module) -> Iterable[nn.Parameter] | list[dict[str, Any]]:
    """All parameters; the head's apart, and first, where the others learn at another rate."""
    share, lr = recipe.train.backbone_lr, recipe.optimizer.options["lr"]
    if share == 1:
        return model.parameters()
    first = head_of(model)
    head = [p for name, p in model.named_parameters() if name.startswith(first)]
    others = [p for name, p in model.named_parameters() if not name.startswith(first)]
    return [{"params": head, "lr": lr}, {"params": others, "lr": share * lr}]


def autocast_of(recipe: Recipe) -> torch.dtype | None:
    return torch.bfloat16 if recipe.train.precision == "bfloat16" else None
