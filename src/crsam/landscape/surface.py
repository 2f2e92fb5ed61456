"""The loss over a line or a plane."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from crsam._batches import SizeOf
from crsam.errors import UserError
from crsam.landscape.directions import Direction, random_directions
from crsam.landscape.file import Keeper, fingerprint
from crsam.landscape.grid import Grid, Surface
from crsam.landscape.mean import BatchNorm, LossFn, Mean
from crsam.landscape.place import Place
from crsam.landscape.ranks import Group, Ranks
from crsam.progress import bar


def surface(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Any,
    *,
    directions: int | Sequence[Direction] = 2,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    seed: int = 0,
    batch_norm: BatchNorm = "running",
    at_once: int = 1,
    file: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    stop: Callable[[], bool] = lambda: False,
    group: Group = None,
    size_of: SizeOf | None = None,
    progress: bool = False,
) -> Surface:
    r"""$L(w + x\,d_1 + y\,d_2)$ over a grid, or $L(w + x\,d_1)$ along a line.

    A forward pass over the data for each point (two, where batch norm is recomputed), and three
    copies of what moves: the weights and both directions.

    Args:
        model: The model; evaluated in ``eval`` mode, and left as found.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch, or that of each sample; or
            a pair of it and, for each sample, whether it is right.
        batches: A list of batches, a loader, or one batch; gone over once and kept in memory.
        directions: One or two of them (see `crsam.landscape`), or how many `random_directions`.
        x: Where to evaluate along the first. None: 51 points from −1 to 1.
        y: Likewise along the second. None: as `x`.
        seed: Of random directions.
        batch_norm: ``"running"``: with the statistics that the model came with. Away from the
            middle they do not fit the activations any more, and part of the rise of the loss is
            that. ``"recomputed"``: taken anew from the batches at every point, which costs a
            second pass and shows the weights alone.
        at_once: Points that are evaluated in one go (`torch.func.vmap`); `loss_fn` must then do
            nothing with the model but call it, and autocast has no effect there. Slower on a CPU;
            meant for small nets on a GPU, where the time goes into starting kernels.
        file: An ``.npz`` to keep what is done in. If it is there, goes on from it.
        about: What else to write there.
        stop: Asked between points; if it says so, the rest stays NaN.
        group: A process group whose ranks share the points. All must have the same weights and
            data, and the same `file`, or one that nobody else writes.
        size_of: The number of samples of a batch. None: how many losses there are, or else the
            length of the first tensor.
        progress: Whether to show a progress bar, if on a terminal.

    Returns:
        The surface.

    Raises:
        UserError: If there are no batches, a direction does not fit the model, `file` holds
            another landscape, or an argument is not allowed.

    Example:
        >>> import torch
        >>> from crsam import landscape
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> found = landscape.surface(
        ...     model, lambda model, x: model(x).square().mean(), torch.ones(4, 1),
        ...     directions=[{"weight": torch.ones(1, 1)}], x=[-1, 0, 2],
        ... )
        >>> found.loss
        array([1., 0., 4.])
    """
    if batch_norm not in ("running", "recomputed"):
        raise UserError(f"batch_norm must be 'running' or 'recomputed', got {batch_norm!r}")
    if at_once < 1 or (at_once > 1 and batch_norm == "recomputed"):
        raise UserError(f"at_once must be 1 (or more with 'running' batch norm), got {at_once}")
    axes = random_directions(model, directions, seed) if isinstance(directions, int) else directions
    if not 1 <= len(axes) <= 2:
        raise UserError(f"a surface has one or two directions, got {len(axes)}")
    grid = Grid.of(x, y, len(axes))
    mean = Mean(loss_fn, batches, size_of, batch_norm)
    with Place(model, [loss_fn], axes) as place:
        mark = fingerprint(place, grid, mean.batches, batch_norm, at_once)
        ranks = Ranks(group, place.device, mark)
        keeper = Keeper(file, {**(about or {}), "fingerprint": mark}, grid, ranks.is_main)
        ranks.wait()  # until all have read what is there, or the main one might write it anew
        keeper.check(lambda k: evaluated(mean, place, grid.points([k]))[0, 0].item())
        todo = [part for part in grid.parts(at_once) if keeper.lacks(part)]
        done = grid.size - sum(map(len, todo))
        shown = None if progress and ranks.is_main else False
        with keeper, bar("landscape", grid.size, done=done, shown=shown) as advance:
            for i in range(0, len(todo), ranks.size):
                parts = todo[i : i + ranks.size]
                mine = None
                if ranks.rank < len(parts):
                    mine = evaluated(mean, place, grid.points(parts[ranks.rank]))
                stopping, found = ranks.shared(mine, at_once, stop())
                for part, (losses, right) in zip(parts, found):
                    keeper.take(part, losses, right)
                    advance(len(part), note=f"loss {losses[0]:.4g}")
                if stopping:
                    break
        return keeper.surface()


def evaluated(mean: Mean, place: Place, points: list[tuple[float, ...]]) -> Tensor:
    """Losses and accuracies at these points, a row each; NaN for accuracies that are not there."""
    if len(points) == 1:
        found = [value.view(1) for value in mean.at(place, points[0])]
    else:
        found = mean.at_many(place, points)
    values = torch.stack(found).cpu()
    values[0] = torch.where(values[0].isnan(), math.inf, values[0])  # NaN is: not yet evaluated
    return values if len(values) == 2 else torch.cat([values, torch.full_like(values, math.nan)])
