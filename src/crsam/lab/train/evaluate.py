"""How good a model is on a set of images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from crsam.lab.data.batches import Feed, in_order
from crsam.lab.data.images import Images
from crsam.lab.train.distributed import World
from crsam.lab.train.step import count_right
from crsam.progress import bar


class Score(NamedTuple):
    """Over a whole set."""

    loss: float
    """The mean cross-entropy."""
    accuracy: float
    """In per cent."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    images: Images,
    feed: Feed,
    *,
    batch_size: int = 512,
    autocast: torch.dtype | None = None,
    world: World | None = None,
    label: str = "evaluating",
) -> Score:
    """Loss and accuracy in evaluation mode; the model's mode is left as it was.

    Args:
        model: Not the wrapped one: processes need not take the same number of batches.
        images: The set; every process looks at its share of the batches.
        feed: How bytes become inputs; augmentation is left out.
        batch_size: Of one process.
        autocast: The dtype to compute in.
        world: The processes that take part.
        label: Of the progress bar.
    """
    world = world or World(images.device)
    sums = torch.zeros(3, dtype=torch.float64, device=images.device)
    shown = None if world.is_main else False
    with evaluating(model), bar(label, len(images), shown=shown) as advance:
        for batch in in_order(images, feed, batch_size, world.rank, world.size):
            with torch.autocast(images.device.type, autocast, enabled=autocast is not None):
                logits = model(batch.inputs)
            loss = F.cross_entropy(logits.to(batch.inputs.dtype), batch.targets, reduction="sum")
            number = torch.tensor(float(len(batch.targets)), device=images.device)
            sums += torch.stack([loss, count_right(logits, batch.targets), number])
            advance(len(batch.targets) * world.size)
    loss, right, number = world.total(sums).tolist()
    return Score(loss / number, 100 * right / number)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, the model is in evaluation mode; each of its modules gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
