"""How flat the place is that a model has come to: figures of `crsam.curvature`, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crsam import curvature
from crsam.errors import UserError, unknown
from crsam.lab.data.batches import Batch, Feed, in_order
from crsam.lab.data.images import Images
from crsam.lab.experiment.environment import environment
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.restore import restored
from crsam.lab.train.distributed import World
from crsam.lab.train.evaluate import evaluating
from crsam.progress import bar, say

DEFAULT = ("loss", "gradient_norm", "hessian_trace", "normalized_trace", "top_eigenvalue",
           "sharpness", "approximation_ratio")  # fmt: skip
"""What is measured if nothing is said: the figures of the paper."""


@dataclass(frozen=True)
class Setting:
    """How the figures are taken."""

    rho: float = 0.05
    """The radius of sharpness, finite differences and the approximation ratio. In the bound it is
    the standard deviation of the noise."""
    num_probes: int = 100
    """Random vectors of the trace."""
    seed: int = 0
    batch_size: int = 512
    """Images in a batch. Only the figures ``…_of_batches`` depend on it."""


@dataclass(frozen=True)
class Figure:
    """A number with its error, where it is an estimate."""

    value: float
    stderr: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    """Numbers that belong to the value: its terms, or what it was measured with."""

    def as_json(self) -> dict[str, Any]:
        """Plain values; without `parts` if there are none."""
        found = {"value": self.value, "stderr": self.stderr}
        return {**found, "parts": dict(self.parts)} if self.parts else found


Figures = dict[str, Figure]
Measure = Callable[[nn.Module, Sequence[Batch], Setting, World], Figure | Figures]
"""Finds one figure, or several by name that cost no more than one."""


def losses(model: nn.Module, batch: Batch) -> Tensor:
    """The cross-entropy of each sample."""
    return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


def _loss(model: nn.Module, batches: Sequence[Batch], how: Setting, world: World) -> Figure:
    with torch.no_grad():
        each = torch.cat([losses(model, batch) for batch in batches]).double()
    return Figure(each.mean().item())


def _accuracy(model: nn.Module, batches: Sequence[Batch], how: Setting, world: World) -> Figure:
    with torch.no_grad():
        right = torch.cat([model(b.inputs).argmax(1) == b.targets for b in batches])
    return Figure(100 * right.double().mean().item())


def _number(function: Callable[..., float], *settings: str, **options: Any) -> Measure:
    """A figure by a function that takes these settings."""

    def measure(model: nn.Module, batches: Sequence[Batch], how: Setting, world: World) -> Figure:
        asked = {name: getattr(how, name) for name in settings}
        return Figure(function(model, losses, batches, **asked, **options))

    return measure


def _estimate(function: Callable[..., Any], *settings: str) -> Measure:
    """Likewise, with its error; its draws are split over the processes."""

    def measure(model: nn.Module, batches: Sequence[Batch], how: Setting, world: World) -> Figure:
        asked = {name: getattr(how, name) for name in settings}
        asked |= {"group": world.group, "progress": world.is_main}
        found = function(model, losses, batches, **asked)
        return Figure(found.value, found.stderr)

    return measure


def _traces(model: nn.Module, batches: Sequence[Batch], how: Setting, world: World) -> Figures:
    found = curvature.normalized_trace(
        model, losses, batches, num_probes=how.num_probes, seed=how.seed, group=world.group,
        progress=world.is_main,
    )  # fmt: skip
    return {
        "normalized_trace": Figure(found.value, found.stderr),
        "normalized_trace_of_batches": Figure(*found.by(found.batch_grad_norm), _batch_size(how)),
        "hessian_trace": Figure(*found.trace),
    }


def _norm_of_batches(
    model: nn.Module, batches: Sequence[Batch], how: Setting, world: World
) -> Figure:
    norm = curvature.gradient_norm(model, losses, batches, of="batches")
    return Figure(norm, parts=_batch_size(how))


def _batch_size(how: Setting) -> dict[str, float]:
    """The norms of the batches' gradients depend on it."""
    return {"batch_size": how.batch_size}


def _top(model: nn.Module, batches: Sequence[Batch], how: Setting, world: World) -> Figure:
    (value,) = curvature.top_eigenvalues(
        model, losses, batches, seed=how.seed, progress=world.is_main
    )
    return Figure(value)


def _ratio(
    model: nn.Module, batches: Sequence[Batch], how: Setting, world: World, **options: Any
) -> Figure:
    found = curvature.approximation_ratio(model, losses, batches, rho=how.rho, **options)
    parts = {"of_means": found.of_means, "left_out": found.left_out, "rho": found.rho}
    return Figure(found.mean, found.stderr, parts)


def _bound(model: nn.Module, batches: Sequence[Batch], how: Setting, world: World) -> Figure:
    found = curvature.generalization_bound(
        model, losses, batches, rho=how.rho, num_probes=how.num_probes, seed=how.seed,
        group=world.group, progress=world.is_main,
    )  # fmt: skip
    terms = {name: getattr(found, name) for name in ("loss", "curvature", "slope", "complexity")}
    return Figure(found.total, found.stderr, {**terms, "rho": how.rho})


def _pac_bayes(model: nn.Module, batches: Sequence[Batch], how: Setting, world: World) -> Figure:
    def right(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs).argmax(1) == batch.targets).double()

    found = curvature.pac_bayes_sharpness(
        model, right, batches, seed=how.seed, progress=world.is_main
    )
    return Figure(found.value)


METRICS: dict[str, Measure] = {
    "loss": _loss,
    "accuracy": _accuracy,
    "gradient_norm": _number(curvature.gradient_norm),
    "gradient_norm_of_batches": _norm_of_batches,
    "hessian_trace": _estimate(curvature.hessian_trace, "num_probes", "seed"),
    "normalized_trace": _traces,
    "normalized_trace_of_batches": _traces,
    "top_eigenvalue": _top,
    "frobenius_norm": _estimate(curvature.hessian_frobenius_norm, "num_probes", "seed"),
    "effective_dimensionality": _estimate(curvature.effective_dimensionality, "seed"),
    "sharpness": _number(curvature.sharpness, "rho"),
    "n_step_sharpness": _number(curvature.sharpness, "rho", steps=20),
    "adaptive_sharpness": _number(curvature.adaptive_sharpness),
    "epsilon_sharpness": _number(curvature.epsilon_sharpness),
    "finite_difference_curvature": _number(curvature.finite_difference_curvature, "rho"),
    "approximation_ratio": _ratio,
    "approximation_ratio_backtracking": partial(_ratio, ascent="backtracking"),
    "fisher_rao": _number(curvature.fisher_rao),
    "pac_bayes_sharpness": _pac_bayes,
    "generalization_bound": _bound,
}
"""By name. All are taken in evaluation mode and without augmentation. But for the accuracy, they
are figures of the mean cross-entropy."""


def measure(
    model: nn.Module,
    images: Images,
    feed: Feed,
    metrics: Collection[str] = DEFAULT,
    *,
    samples: int = 5000,
    how: Setting | None = None,
    world: World | None = None,
) -> dict[str, Figure]:
    """Figures of a model on a set of images, or on `samples` of them.

    Args:
        model: Measured in evaluation mode, and left as it was.
        images: The set.
        feed: How bytes become inputs.
        metrics: Names of `METRICS`.
        samples: At most so many images, always the same ones.
        how: See there.
        world: The processes that share the work, each with the same model and all the images.

    Raises:
        UserError: For a name that is not known.
    """
    how, world = how or Setting(), world or World()
    check_metrics(metrics)
    batches = list(in_order(sample_of(images, samples), feed, how.batch_size))
    found: Figures = {}
    shown = None if world.is_main else False
    with evaluating(model), bar("measuring", len(metrics), shown=shown) as advance:
        for name in sorted(metrics, key=lambda name: METRICS[name] is not _traces):
            if name not in found:
                new = METRICS[name](model, batches, how, world)
                found |= {name: new} if isinstance(new, Figure) else new
            advance(note=name)
    return {name: found[name] for name in metrics}


def sample_of(images: Images, count: int) -> Images:
    """At most so many of the images, always the same ones."""
    # Not the first ones: a folder's images are sorted by class.
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images.part(order[:count].sort().values.to(images.device))


def measure_run(
    folder: str | Path,
    metrics: Sequence[str] = DEFAULT,
    *,
    split: Literal["train", "validation", "test"] = "train",
    samples: int = 5000,
    how: Setting | None = None,
    world: World | None = None,
) -> dict[str, Figure]:
    """Figures of a run's model; they are written to ``measures-SPLIT.json`` in its folder too.

    Figures that are there already stay if they were taken in the same way.

    Args:
        folder: Of the run.
        metrics: Names of `METRICS`.
        split: Which images.
        samples: At most so many of them.
        how: See `Setting`.
        world: Where to compute.
    """
    world, how = world or World(), how or Setting()
    run = restored(folder, world)
    found = measure(
        run.model,
        run.images(split),
        run.splits.feed,
        metrics,
        samples=samples,
        how=how,
        world=world,
    )
    if not world.is_main:
        return found
    taken = {"step": run.step, "split": split, "samples": min(samples, len(run.images(split)))}
    taken |= vars(how)
    place = RunFolder(folder)
    earlier = place.measures(split) or {}
    alike = all(earlier.get(key) == value for key, value in taken.items())
    kept = earlier["metrics"] if alike else {}
    if earlier and not alike:
        gone = ", ".join(earlier["metrics"])
        say(f"measures-{split}.json: {gone} were taken in another way, and are dropped")
    figures = {**kept, **{n: f.as_json() for n, f in found.items()}}
    content = {**environment(world.device), **taken, "metrics": figures}
    place.write_json(f"measures-{split}.json", content)
    return found


def check_metrics(names: Collection[str]) -> None:
    """Raises UserError for a name that is not known."""
    for name in names:
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
    if len(set(names)) < len(names):
        raise UserError(f"a metric is named twice: {', '.join(names)}")
