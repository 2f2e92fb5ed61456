"""Directions to look along: random and filter-normalised, or from model to model.

Li et al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from crsam._stateless import unwrapped
from crsam._states import seed_of
from crsam._tensors import safe_reciprocal
from crsam.errors import UserError

Direction = Mapping[str, Tensor]
"""By the name of a parameter or buffer, where it goes; what is not named does not move."""

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


def random_directions(model: nn.Module, num: int = 2, seed: int = 0) -> list[dict[str, Tensor]]:
    r"""Orthogonal Gaussian directions, filter by filter as long as the model's weights.

    $d_f \leftarrow d_f\,\lVert w_f\rVert / \lVert d_f\rVert$ for every filter $f$ (an output
    channel of a convolution, a row of a matrix: a slice along the first dimension): without it, a
    net with larger weights looks flatter than the same net with smaller ones. Biases and the
    parameters of norm layers do not move. A filter that is 0 does not either.

    Directions are orthogonal within every filter, and so as a whole; a filter of fewer weights
    than there are directions moves in the first ones only. The Gaussian draws depend on seed,
    names and shapes alone: models of one architecture are looked at along the same draws, each at
    the scale of its own filters.

    Args:
        model: The model; only parameters that require a gradient move.
        num: How many directions.
        seed: Of the draws.

    Returns:
        The directions.

    Raises:
        UserError: If no parameter has filters.

    Example:
        >>> import torch
        >>> from crsam import landscape
        >>> model = torch.nn.Linear(3, 2)
        >>> d, e = landscape.random_directions(model)
        >>> list(d)
        ['weight']
        >>> torch.allclose(d["weight"].norm(dim=1), model.weight.norm(dim=1))
        True
        >>> bool((d["weight"] * e["weight"]).sum().abs() < 1e-6)
        True
    """
    found: list[dict[str, Tensor]] = [{} for _ in range(num)]
    for name, weights in _filters(unwrapped(model)):
        rows = weights.detach().double().flatten(1)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        units: list[Tensor] = []
        for i, direction in enumerate(found):
            own = name.replace("_orig_mod.", "")  # a compiled model is looked at along the same
            generator = torch.Generator().manual_seed(seed_of("direction", seed, i, own))
            drawn = torch.randn(rows.shape, dtype=torch.float64, generator=generator)
            unit = _across(drawn.to(rows.device), units)
            units.append(unit)
            direction[name] = (unit * lengths).view(weights.shape).to(weights.dtype)
    if not all(found):
        raise UserError(
            "the model has no weights of two or more dimensions that require a gradient: give "
            "directions of your own"
        )
    return found


def _filters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that have filters, by name."""
    norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters(False)}
    for name, p in model.named_parameters():
        if p.ndim > 1 and p.requires_grad and p.is_floating_point() and id(p) not in norms:
            yield name, p


def _across(rows: Tensor, units: list[Tensor]) -> Tensor:
    """Each row less its parts along those of `units`, of norm 1; 0 where nothing is left."""
    sizes = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    for unit in units * 2:  # twice: once leaves a rounding error
        rows = rows - (rows * unit).sum(1, keepdim=True) * unit
    left = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(left > 1e-9 * sizes, rows * safe_reciprocal(left), 0.0)


def toward(model: nn.Module, other: nn.Module) -> dict[str, Tensor]:
    """The direction from a model, at 0, to another one, at 1: all parameters, and all buffers.

    Buffers that are not floating-point stay. Between the two, batch norm's running statistics are
    then those on the straight line as well, which fit neither model's activations: the loss is
    fairer with ``batch_norm="recomputed"``. Beyond them a variance may turn negative, and the loss
    is none.

    Args:
        model: Where the line starts.
        other: Where it leads; of the same architecture.

    Raises:
        UserError: If the models do not have the same names and shapes.

    Example:
        >>> import torch
        >>> from crsam import landscape
        >>> a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        >>> direction = landscape.toward(a, b)
        >>> torch.allclose(a.bias + direction["bias"], b.bias)
        True
    """
    here, there = _tensors(model), _tensors(other)
    for name in {**here, **there}:
        shapes = [tuple(side[name].shape) if name in side else "nothing" for side in (here, there)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"the models are not of one architecture: {name} is {shapes[0]} in one and "
                f"{shapes[1]} in the other"
            )
    return {name: there[name].detach().to(t) - t.detach() for name, t in here.items()}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    model = unwrapped(model)
    both = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: t for name, t in both.items() if t.is_floating_point()}


class Plane(NamedTuple):
    """The plane through three models."""

    directions: tuple[dict[str, Tensor], dict[str, Tensor]]
    """Orthogonal, and of the same length: the distance from the first model to the second."""
    places: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
    """Where the models are in it: (0, 0), (1, 0) and wherever the third is."""


def plane(model: nn.Module, second: nn.Module, third: nn.Module) -> Plane:
    """The plane through three models, with the first in the origin and the second at (1, 0).

    Lengths and angles are those of the parameters; buffers come along, as in `toward`.

    Args:
        model: In the origin.
        second: At (1, 0).
        third: Somewhere above the line through both.

    Raises:
        UserError: If the models are not of one architecture, or lie on one line.

    Example:
        >>> import torch
        >>> from crsam import landscape
        >>> models = [torch.nn.Linear(1, 1) for _ in range(3)]
        >>> for model, (weight, bias) in zip(models, [(0, 0), (2, 0), (1, 3)]):
        ...     state = {"weight": torch.tensor([[weight]]), "bias": torch.tensor([bias])}
        ...     _ = model.load_state_dict(state)
        >>> landscape.plane(*models).places
        ((0.0, 0.0), (1.0, 0.0), (0.5, 1.5))
    """
    first, other = toward(model, second), toward(model, third)
    names = [name for name, p in unwrapped(model).named_parameters() if p.is_floating_point()]

    def dot(a: Direction, b: Direction) -> float:
        return sum((a[name].double() * b[name].double()).sum().item() for name in names)

    length = dot(first, first)
    along = dot(first, other) / length if length else 0.0
    across = {name: value - along * first[name] for name, value in other.items()}
    height = dot(across, across)
    if not height > 1e-12 * dot(other, other) or not length:
        raise UserError("the three models lie on one line: there is no plane through them")
    up = (height / length) ** 0.5
    second_axis = {name: value / up for name, value in across.items()}
    return Plane((first, second_axis), ((0.0, 0.0), (1.0, 0.0), (along, up)))
