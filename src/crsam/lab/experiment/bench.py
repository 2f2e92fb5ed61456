"""What a training step costs, method by method, beside the naive way to write it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from crsam.errors import UserError
from crsam.lab.data.batches import Batch
from crsam.lab.experiment.build import Parts, autocast_of, build
from crsam.lab.experiment.live_memory import peak_memory
from crsam.lab.experiment.naive import NaiveStep
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.train.captured import CapturedStep
from crsam.lab.train.distributed import World
from crsam.progress import bar

EPOCH = 50_000
"""Images of the epoch that seconds are given for: CIFAR's."""
NUM_WARM = 6
"""Steps before anything is timed: all plans of a schedule are captured by then."""
ROUND_SECONDS = 0.3
NAIVE = ", naive"
Step = Callable[[Batch], object]


@dataclass(frozen=True)
class Cost:
    """Of one method."""

    name: str
    milliseconds: float
    """Of a step: the median over the rounds."""
    quartiles: tuple[float, float]
    epoch_seconds: float
    """Of 50,000 images, fetched and augmented."""
    images_per_second: float
    """Fetched and augmented."""
    teraflops: float
    """A second; of convolutions and matrix products."""
    share: float
    """Of what plain matrix products reach here."""
    peak_mib: float
    """Of memory in a step: weights, state, activations; without the dataset."""
    captured: bool
    """Whether the steps were replays of a CUDA graph."""


@dataclass
class _Contestant:
    name: str
    parts: Parts
    step: Step
    flops: float
    peak: int
    times: list[float]
    through_data: list[float]


def bench(
    source: str,
    overrides: Sequence[str] = (),
    methods: Sequence[str] = ("sgd", "sam", "crsam"),
    world: World | None = None,
    *,
    rounds: int = 7,
    naive: bool = True,
) -> list[Cost]:
    """Times whole training steps as ``crsam train`` takes them.

    All methods live in one process. Every round times each of them, in shuffled order: a few steps
    on one batch, and a few through the data.

    Args:
        source: A recipe.
        overrides: Of the recipe.
        methods: By name; with options of its own as in ``crsam:form="linear"``.
        world: Where to compute.
        rounds: How many.
        naive: Time the naive SAM and CR-SAM too, where theirs are.

    Raises:
        UserError: For a name or a value that is not known.
    """
    if len(set(methods)) < len(methods):
        raise UserError(f"a method is named twice: {', '.join(methods)}")
    world = world or World()
    recipes = {name: _recipe(source, overrides, name) for name in methods}
    precision = next(iter(recipes.values())).train.precision
    names = list(methods)
    names += [name + NAIVE for name in methods if naive and name in ("sam", "crsam")]
    contestants = []
    with bar("getting ready", len(names)) as advance:
        for name in names:
            contestants.append(_ready(name, recipes[name.removesuffix(NAIVE)], world))
            advance(note=name)
    with bar("timing", rounds * len(names)) as advance:
        order = random.Random(0)
        for _ in range(rounds):
            for contestant in order.sample(contestants, len(contestants)):
                _time(contestant, world)
                advance(note=contestant.name)
    ceiling = matrix_products(world.device, precision)
    return [_cost(contestant, ceiling) for contestant in contestants]


def _recipe(source: str, overrides: Sequence[str], method: str) -> Recipe:
    """The recipe of a method, ``name`` or ``name:key=value:key=value``."""
    name, *options = method.split(":")
    own = [f"methods.{name}.{option}" for option in options]
    return load_recipe(source, [*overrides, *own]).with_method(name)


def _ready(name: str, recipe: Recipe, world: World) -> _Contestant:
    """Built, warm, and weighed."""
    flops = _flops(recipe, world)
    if name.endswith(NAIVE):
        method, recipe = recipe.method, _eager(replace(recipe, method=recipe.optimizer.name))
        parts = build(recipe, world, lines=False)
        training = parts.training
        step: Step = NaiveStep(method, training.model, training.optimizer, autocast_of(recipe))
    else:
        parts = build(recipe, world, lines=False)
        step = parts.take_step
    parts.training.model.train()
    batch = next(parts.batches.epoch(0))
    with peak_memory(world.device) as peak:
        for _ in range(NUM_WARM if world.device.type == "cuda" else 2):
            step(batch)
        bytes_alive = peak()
    model = parts.training.model
    weights = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    return _Contestant(name, parts, step, flops, bytes_alive + weights, [], [])


def _eager(recipe: Recipe) -> Recipe:
    return replace(recipe, train=replace(recipe.train, capture=False))


def _flops(recipe: Recipe, world: World) -> float:
    """Floating-point operations of a step: the mean of five, for not all need be alike."""
    from torch.utils.flop_counter import FlopCounterMode  # slow, and of use here alone

    parts = build(_eager(recipe), world, lines=False)
    parts.training.model.train()
    with FlopCounterMode(display=False) as counter:
        for batch in islice(parts.batches.epoch(0), 5):
            parts.take_step(batch)
    return counter.get_total_flops() / 5


def _time(contestant: _Contestant, world: World) -> None:
    batches = contestant.parts.batches
    batch = next(batches.epoch(0))
    once = _seconds(lambda: contestant.step(batch), world)
    number = max(1, min(100, round(ROUND_SECONDS / once)))

    def repeat() -> None:
        for _ in range(number):
            contestant.step(batch)

    def through_data() -> None:
        for some in islice(batches.epoch(0), number):
            contestant.step(some)

    contestant.times.append(_seconds(repeat, world) / number)
    contestant.through_data.append(_seconds(through_data, world) / min(number, len(batches)))


def _seconds(work: Callable[[], Any], world: World) -> float:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    start = time.perf_counter()
    work()
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return time.perf_counter() - start


def matrix_products(device: torch.device, precision: str) -> float:
    """Floating-point operations a second of large square products: a ceiling for all else.

    The best of several tries: on a GPU medians of single ones have differed by 1.6.
    """
    size, number = (8192, 20) if device.type == "cuda" else (1024, 1)
    a = torch.randn(size, size, device=device, dtype=getattr(torch, precision))

    def multiply() -> None:
        for _ in range(number):
            a @ a

    return number * 2 * size**3 / min(_seconds(multiply, World(device)) for _ in range(12))


def _cost(contestant: _Contestant, ceiling: float) -> Cost:
    step, through_data = map(statistics.median, (contestant.times, contestant.through_data))
    quartiles = (
        statistics.quantiles(contestant.times, n=4, method="inclusive")
        if len(contestant.times) > 1
        else [step] * 3
    )
    size = contestant.parts.batches.batch_size
    return Cost(
        contestant.name,
        milliseconds=1e3 * step,
        quartiles=(1e3 * quartiles[0], 1e3 * quartiles[2]),
        epoch_seconds=through_data * (EPOCH // size),
        images_per_second=size / through_data,
        teraflops=contestant.flops / step / 1e12,
        share=contestant.flops / step / ceiling,
        peak_mib=contestant.peak / 2**20,
        captured=isinstance(contestant.step, CapturedStep) and contestant.step.is_captured,
    )
