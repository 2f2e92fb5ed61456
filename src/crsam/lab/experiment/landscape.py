"""Landscapes of runs: from run folders to ``landscape.npz`` beside their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from crsam import curvature, landscape
from crsam.errors import UserError
from crsam.lab._torch_files import Damaged
from crsam.lab.data.batches import Batch, in_order
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.measure import losses, sample_of
from crsam.lab.experiment.restore import Restored, Split, restored
from crsam.lab.train import checkpoint
from crsam.lab.train.distributed import World
from crsam.lab.train.evaluate import evaluating
from crsam.lab.train.interrupt import Stopped, stoppable
from crsam.landscape import Direction, Surface
from crsam.landscape.file import digest_of
from crsam.landscape.grid import Array, symmetric
from crsam.landscape.points import BatchNorm
from crsam.progress import bar

Kind = Literal["filter", "eigenvector", "line", "plane"]
NUM_RUNS = {"line": 2, "plane": 3}
"""How many runs make one landscape; all others have one each."""
STEMS = {"filter": "landscape", **{k: f"landscape-{k}" for k in get_args(Kind) if k != "filter"}}
MARGIN = 0.25
"""How much further than its models a line or plane goes, as a share of their distance."""
BATCH_SIZE = 500


@dataclass(frozen=True)
class View:
    """From where, along what, and how far to look."""

    kind: Kind = "filter"
    """Along filter-normalised random directions, the Hessian's first eigenvectors, the line from
    one run to another, or in the plane through three."""
    dimensions: int = 2
    """1 or 2; of random directions and eigenvectors."""
    points: int = 51
    """In each dimension."""
    span: float = 1.0
    """How far to go either way: in lengths of the filters, or of the eigenvectors, which is 1."""
    split: Split = "train"
    samples: int = 1000
    seed: int = 0
    """Of random directions, and of the start of the search for eigenvectors."""
    batch_norm: BatchNorm | None = None
    """None: recomputed between models, running around one."""
    at_once: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.dimensions not in (1, 2):
            raise UserError(f"dimensions must be 1 or 2, got {self.dimensions}")
        if not self.span > 0:
            raise UserError(f"span must be above 0, got {self.span}")
        for name in ("points", "samples"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")


def landscape_runs(
    folders: Sequence[str | Path],
    view: View | None = None,
    *,
    stem: str | None = None,
    fresh: bool = False,
    world: World | None = None,
) -> dict[Path, Surface]:
    """Landscapes of runs, each written to ``STEM.npz`` in the folder of the (first) run.

    Random directions are the same draws for all runs of one architecture, each at the scale of
    its own filters: their landscapes can be compared. What is done already is not done again.

    Args:
        folders: Of the runs; two for a line, three for a plane.
        view: See `View`.
        stem: Of the file. None: ``landscape``, or ``landscape-KIND`` if not of kind ``filter``.
        fresh: Start over where there is a landscape already.
        world: The processes that share the points.

    Returns:
        The landscapes, by their files.

    Raises:
        UserError: If a folder is not that of a run with a checkpoint, or the models do not fit.
        Stopped: If the user asked to; what was done is kept.
    """
    view, world = view or View(), world or World()
    stem = stem or STEMS[view.kind]
    if Path(stem).name != stem:
        raise UserError(f"the name of a landscape is that of a file in the run's folder: {stem!r}")
    wanted = NUM_RUNS.get(view.kind)
    if wanted is not None and len(folders) != wanted:
        raise UserError(f"a {view.kind} goes through {wanted} runs, got {len(folders)}")
    for folder in folders:
        check_trained(RunFolder(folder))
    groups = [list(folders)] if wanted else [[folder] for folder in folders]
    found: dict[Path, Surface] = {}
    with bar("runs", len(groups), shown=None if world.is_main else False) as advance:
        for group in groups:
            file = Path(group[0]) / f"{stem.removesuffix('.npz')}.npz"
            if fresh and world.is_main:
                file.unlink(missing_ok=True)
                _directions_file(file).unlink(missing_ok=True)
            world.wait()
            found[file] = landscape_of(group, view, file, world)
            advance(note=str(group[0]))
    return found


def check_trained(place: RunFolder) -> None:
    """Raises UserError unless there is a run with a checkpoint."""
    place.recipe()
    if not place.checkpoint_file.exists():
        raise UserError(f"{place.path} has no checkpoint yet: train first")


def landscape_of(folders: Sequence[str | Path], view: View, file: Path, world: World) -> Surface:
    """One landscape: around one run, or between several."""
    runs = [restored(folder, world) for folder in folders]
    for folder, run in zip(folders, runs):
        if not all(p.isfinite().all() for p in run.model.parameters()):
            raise UserError(f"{folder}: the weights are not finite, the run has diverged")
    first = runs[0]
    images = sample_of(first.images(view.split), view.samples)
    batches = list(in_order(images, first.splits.feed, BATCH_SIZE))
    batch_norm: BatchNorm = view.batch_norm or (
        "recomputed" if view.kind in NUM_RUNS and has_batch_norm(first.model) else "running"
    )
    about: dict[str, Any] = {
        "kind": view.kind,
        "seed": view.seed,
        "split": view.split,
        "samples": len(images),
        "of": ["/".join(Path(folder).resolve().parts[-2:]) for folder in folders],
        "batch_norm": batch_norm,
        "step": first.step,
    }
    axes = axes_of(runs, view, batches, file, world)
    with stoppable() as stop:
        found = landscape.surface(
            first.model,
            losses_and_right,
            batches,
            directions=axes.directions,
            x=axes.x,
            y=axes.y,
            batch_norm=batch_norm,
            at_once=view.at_once,
            file=file,
            about={**about, **axes.about},
            stop=lambda: stop.asked,
            group=world.group,
            progress=True,
        )
    if not found.complete:
        raise Stopped
    return found


def losses_and_right(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of each sample the cross-entropy, and whether it is classified as its label says."""
    logits = model(batch.inputs)
    each = F.cross_entropy(logits, batch.targets, reduction="none")
    return each, logits.argmax(1) == batch.targets


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())


@dataclass(frozen=True)
class Axes:
    """Directions, and the points along them."""

    directions: Sequence[Direction]
    x: Array
    y: Array | None
    about: dict[str, Any]


def axes_of(
    runs: Sequence[Restored], view: View, batches: list[Batch], file: Path, world: World
) -> Axes:
    """What the view says for these runs."""
    models = [run.model for run in runs]
    around = symmetric(view.span, view.points)
    second = around if view.dimensions == 2 else None
    if view.kind == "filter":
        drawn = landscape.random_directions(models[0], view.dimensions, view.seed)
        return Axes(drawn, around, second, {})
    if view.kind == "eigenvector":
        values, vectors = eigenvectors(runs[0], view, batches, file, world)
        return Axes(vectors, around, second, {"eigenvalues": values})
    if view.kind == "line":
        line = np.linspace(-MARGIN, 1 + MARGIN, view.points).round(12)
        places = [[0.0], [1.0]]
        ends = np.union1d(line, np.ravel(places))  # the models themselves are on it
        return Axes([landscape.toward(*models)], ends, None, {"places": places})
    through = landscape.plane(*models)
    x, y = (_beyond(values, view.points) for values in zip(*through.places))
    return Axes(through.directions, x, y, {"places": [list(place) for place in through.places]})


def _beyond(values: Sequence[float], num: int) -> Array:
    """From a bit before the first to a bit after the last."""
    low, high = min(values), max(values)
    margin = MARGIN * (high - low)
    return np.linspace(low - margin, high + margin, num)


def eigenvectors(
    run: Restored, view: View, batches: list[Batch], file: Path, world: World
) -> tuple[list[float], list[dict[str, Tensor]]]:
    """The Hessian's first, the same in all processes and whenever the command is given again.

    On a GPU a second search would not give the same bits: they are kept in a file.
    """
    path = _directions_file(file)
    asked = {"weights": digest_of(run.model.state_dict()), "seed": view.seed, "split": view.split,
             "samples": view.samples, "dimensions": view.dimensions}  # fmt: skip
    if world.is_main and not (path.exists() and _kept(path)["asked"] == asked):
        with evaluating(run.model):
            pairs = curvature.top_eigenpairs(
                run.model, losses, batches, k=view.dimensions, seed=view.seed, progress=True
            )
        found = {"values": [p.value for p in pairs], "vectors": [p.vector for p in pairs]}
        checkpoint.save(path, {"asked": asked, **found})
    world.wait()
    kept = _kept(path, world.device)
    return kept["values"], kept["vectors"]


def _kept(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    try:
        return checkpoint.load(path, device)
    except Damaged as error:
        raise UserError(f"{error}: --fresh starts the landscape over") from error


def _directions_file(file: Path) -> Path:
    return file.with_suffix(".directions.pt")
