"""How many steps ρ takes to rise: a training knows its length, an optimizer does not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn
from torch.optim import SGD, Optimizer

import crsam
from crsam.lab.data.batches import steps_an_epoch
from crsam.lab.experiment.options import naming
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.splits import num_train

LARGEST_SHARE = 5
"""A warm-up that no one has fixed is at most the steps of the training over this. With a tenth of
the steps noisy digits collapsed in more runs (docs/crsam.md)."""


def cap_warmup(optimizer: Optimizer, recipe: Recipe, steps: int) -> int | None:
    """Gives a method the warm-up of ρ for a training of `steps` steps.

    The warm-up is ``methods.NAME.warmup`` where the recipe has it. Otherwise it is
    ``train.rho_warmup``, or else the method's own default, but at most a fifth of the steps.

    Returns:
        The warm-up in steps, or None for a plain optimizer.
    """
    if not isinstance(optimizer, crsam.SharpnessAware):
        return None
    if "warmup" not in recipe.method_options:
        asked = recipe.train.rho_warmup
        asked = optimizer.warmup if asked is None else asked
        optimizer.warmup = min(asked, steps // LARGEST_SHARE)
    return optimizer.warmup


def too_long(recipe: Recipe, steps: int) -> str | None:
    """One line about a fixed warm-up that takes more than half of the training, or None."""
    warmup = recipe.method_options.get("warmup", 0)
    if 2 * warmup <= steps:
        return None
    key = f"methods.{recipe.method}.warmup = {warmup}"
    cure = f"without it the warm-up is at most {steps // LARGEST_SHARE} steps"
    if warmup > steps:
        return f"{key}, but the training has {steps} steps: ρ never reaches its value; {cure}"
    return f"{key} is more than half of the training's {steps} steps; {cure}"


def planned(recipe: Recipe, methods: Iterable[str]) -> list[str]:
    """Lines about steps and warm-up for ``--dry-run``; no image is read.

    Args:
        recipe: What would be trained.
        methods: With which methods.
    """
    num, train = num_train(recipe), recipe.train
    each = 0 if num is None or num < train.batch_size else steps_an_epoch(num, train.batch_size)
    steps = train.epochs * each
    epochs = f"{train.epochs} epoch{'s' * (train.epochs != 1)}"
    found = [f"{epochs} of {each} steps: {steps} steps"] if steps else []
    for name in methods:
        one = replace(recipe, method=name)
        if one.method == one.optimizer.name:
            continue
        with naming(f"methods.{one.method}"):
            nothing = SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
            optimizer = crsam.make(one.method, nothing, **one.method_options)
        asked = cap_warmup(optimizer, one, steps or 10**12)
        fixed = steps > 0 or "warmup" in one.method_options or not asked
        limit = "" if fixed else ", or a fifth of the training if that is less"
        found.append(f"{one.method}: warm-up of ρ over {asked} steps{limit}")
        if steps and (line := too_long(one, steps)):
            found.append(line)
    return found
