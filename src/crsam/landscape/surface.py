"""The loss over a line or a plane, saved as it is found and shared by processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from crsam._batches import SizeOf
from crsam.errors import UserError
from crsam.landscape.directions import Direction, random_directions
from crsam.landscape.file import Keeper, fingerprint
from crsam.landscape.grid import Array, Grid, Surface
from crsam.landscape.points import BatchNorm, Points
from crsam.progress import bar

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

LossFn = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]
Group = Optional["ProcessGroup"]
"""The processes that share the points. None: this process evaluates all of them."""


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

    Each point costs one forward pass over the data, or two if batch norm is recomputed. The memory
    holds three copies of the tensors that move: the weights and both directions.

    Args:
        model: The model. It is evaluated in ``eval`` mode and left as it was.
        loss_fn: ``loss_fn(model, batch)``: the mean loss of the batch or that of each sample, or a
            pair of the loss and, for each sample, whether it is right.
        batches: A list of batches, a loader, or one batch. It is read once and kept in memory.
        directions: One or two directions (see `crsam.landscape`), or the number of
            `random_directions`.
        x: The coordinates along the first direction. Defaults to 51 points from −1 to 1.
        y: The coordinates along the second direction. Defaults to `x`.
        seed: The seed of random directions.
        batch_norm: ``"running"`` uses the statistics that the model came with. Away from the center
            they do not fit the activations, which is part of the rise of the loss.
            ``"recomputed"`` computes them from the batches at every point. This costs a second
            pass and shows the effect of the weights alone.
        at_once: The number of points that are evaluated together, by `torch.func.vmap`. `loss_fn`
            must then do nothing with the model but call it, and autocast has no effect. It is
            slower on a CPU. It is meant for small nets on a GPU, where most of the time is spent
            on starting kernels.
        file: An ``.npz`` file for the points that are done. If it exists, they are not evaluated
            again.
        about: Further entries for the file.
        stop: A function that is called between points. If it returns true, the rest stays NaN.
        group: A process group whose ranks share the points. All ranks must have the same weights
            and data. They must have the same `file`, or files that no other process writes.
        size_of: The number of samples of a batch. By default this is the number of losses that
            `loss_fn` returns, or else the length of the first tensor.
        progress: Whether to show a progress bar on a terminal.

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
    with Points(model, loss_fn, batches, axes, size_of, batch_norm) as points:
        mark = fingerprint(points, grid, at_once)
        ranks = PointSharing(group, points.loss.device, mark)
        keeper = Keeper(file, {**(about or {}), "fingerprint": mark}, grid, ranks.is_main)
        ranks.wait()  # the main rank writes the file only after all ranks have read it
        keeper.check(lambda k: evaluated(points, grid.points([k]))[0, 0].item())
        todo = [part for part in grid.parts(at_once) if keeper.lacks(part)]
        done = grid.size - sum(map(len, todo))
        shown = None if progress and ranks.is_main else False
        with keeper, bar("landscape", grid.size, done=done, shown=shown) as advance:
            for i in range(0, len(todo), ranks.size):
                parts = todo[i : i + ranks.size]
                mine = None
                if ranks.rank < len(parts):
                    mine = evaluated(points, grid.points(parts[ranks.rank]))
                stopping, found = ranks.exchange(mine, at_once, stop())
                for part, (losses, right) in zip(parts, found):
                    keeper.take(part, losses, right)
                    advance(len(part), note=f"loss {losses[0]:.4g}")
                if stopping:
                    break
        return keeper.surface()


def evaluated(points: Points, coordinates: list[tuple[float, ...]]) -> Tensor:
    """A row of losses and a row of accuracies. Unknown accuracies are NaN."""
    if len(coordinates) == 1:
        found = [value.view(1) for value in points.at(coordinates[0])]
    else:
        found = points.at_many(coordinates)
    values = torch.stack(found).cpu()
    # A loss of NaN becomes infinite: in a surface, NaN marks a point that was not evaluated.
    values[0] = torch.where(values[0].isnan(), math.inf, values[0])
    return values if len(values) == 2 else torch.cat([values, torch.full_like(values, math.nan)])


class PointSharing:
    """Splits the points over the ranks of a group.

    Raises:
        UserError: On every rank, if the ranks' fingerprints differ.
    """

    def __init__(self, group: Group, device: torch.device, fingerprint: str) -> None:
        self.group, self.rank, self.size = group, 0, 1
        if group is None:
            return
        dist = torch.distributed
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.device = device if dist.get_backend(group) == "nccl" else torch.device("cpu")
        mine = float(int(fingerprint[:12], 16))  # exact in float64
        bounds = torch.tensor([mine, -mine], dtype=torch.float64, device=self.device)
        dist.all_reduce(bounds, dist.ReduceOp.MAX, group=group)
        if bounds[0] != -bounds[1]:
            raise UserError(
                "the ranks do not have the same weights, directions and batches: each must have "
                "all of them (the points are split, not the data)"
            )

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        if self.group is not None:
            torch.distributed.barrier(self.group)

    def exchange(
        self, mine: Tensor | None, width: int, stop: bool
    ) -> tuple[bool, list[tuple[Array, Array]]]:
        """Whether any rank wants to stop, and the losses and accuracies of each rank."""
        if self.group is None:
            assert mine is not None
            return stop, [(mine[0].numpy(), mine[1].numpy())]
        table = torch.zeros(self.size, 2 * width + 1, dtype=torch.float64)
        table[self.rank, -1] = float(stop)
        if mine is not None:
            table[self.rank, :-1].view(2, width)[:, : mine.shape[1]] = mine
        table = table.to(self.device)
        torch.distributed.all_reduce(table, group=self.group)
        table = table.cpu()
        found = table[:, :-1].view(self.size, 2, width).numpy()
        return bool(table[:, -1].any()), [(losses, right) for losses, right in found]
