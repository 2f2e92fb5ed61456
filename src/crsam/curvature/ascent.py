"""Projected gradient ascent of the loss in a ball or a box around the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.curvature.derivatives import Gradient
from crsam.curvature.mean_loss import MeanLoss


class Region(ABC):
    """A convex set of offsets around 0: ``scale · u`` for all ``u`` in a ball or a box."""

    scale: Tensors | None
    """One factor for each weight. None: all factors are 1."""

    @abstractmethod
    def highest_point(self, slope: Tensors) -> Tensors:
        """The ``u`` in the region with the highest value of the linear function of this slope."""

    @abstractmethod
    def project(self, u: Tensors) -> Tensors:
        """Replaces ``u``, in place, by the nearest point of the region."""

    def offset(self, u: Sequence[Tensor]) -> Tensors:
        """The change of the weights that ``u`` stands for."""
        return self._scaled(u)

    def slope(self, grads: Sequence[Tensor]) -> Tensors:
        """The gradient by ``u``, from a gradient by the weights."""
        return self._scaled(grads)

    def _scaled(self, tensors: Sequence[Tensor]) -> Tensors:
        copy = tn.clone(tensors)
        return copy if self.scale is None else tn.multiply_(copy, self.scale)


@dataclass(frozen=True)
class Ball(Region):
    r"""$\lVert u\rVert_2 \le \rho$."""

    rho: float
    scale: Tensors | None = None

    def highest_point(self, slope: Tensors) -> Tensors:
        return tn.scale_(tn.clone(slope), self.rho * tn.safe_reciprocal(tn.norm(slope)))

    def project(self, u: Tensors) -> Tensors:
        return tn.scale_(u, (self.rho * tn.safe_reciprocal(tn.norm(u))).clamp(max=1.0))


@dataclass(frozen=True)
class Box(Region):
    r"""$\lvert u_i\rvert \le 1$."""

    scale: Tensors | None = None

    def highest_point(self, slope: Tensors) -> Tensors:
        return [s.sign() for s in slope]

    def project(self, u: Tensors) -> Tensors:
        return [x.clamp_(-1, 1) for x in u]


@torch.no_grad()
def projected_ascent(
    loss: MeanLoss, region: Region, steps: int, start: Gradient | None = None
) -> Tensors:
    """The offset after plain projected gradient ascent from the weights.

    Each step follows the normalized gradient as far as the region reaches, and is then projected
    onto the region. The first step of a ball of radius ρ is therefore SAM's own. No step is taken
    back: the last point is returned, even where another point had a higher loss.

    Args:
        loss: The loss.
        region: The set of allowed offsets.
        steps: The number of steps. Each one but the first costs a forward and a backward pass over
            the data. The first one uses the gradient at the weights.
        start: Loss and gradient at the weights, if they are known.
    """
    at = start or loss.gradient()
    u: Tensors = [torch.zeros_like(g) for g in at.grads]
    slope = region.slope(at.grads)
    for step in range(steps):
        if step > 0:
            with loss.perturbed_weights(region.offset(u)):
                slope = region.slope(loss.gradient().grads)
        u = region.project(tn.add_(region.highest_point(slope), u))
    return region.offset(u)


class Highest(NamedTuple):
    """The highest point that an ascent found."""

    offset: Tensors
    loss: float
    rise: float
    """The difference between that loss and the loss at the weights."""


@torch.no_grad()
def backtracking_ascent(
    loss: MeanLoss, region: Region, steps: int, start: Gradient | None = None
) -> Highest:
    """The best point of a projected ascent with backtracking.

    The first step goes to the boundary of the region. With ``steps=1`` that point is the result,
    even if the loss is lower there, because it is SAM's. With more steps the loss at the result is
    never lower than at that point or at the weights. After a step up, the next step is longer. A
    step down is taken back, and the next step is half as long.

    Args:
        loss: The loss.
        region: The set of allowed offsets.
        steps: The number of points to evaluate. Each costs a forward and a backward pass over the
            data. The last one costs only a forward pass. The weights cost a pass of both more.
        start: Loss and gradient at the weights, if they are known.
    """
    at = start or loss.gradient()
    u: Tensors = [torch.zeros_like(g) for g in at.grads]
    best, slope, length = at.loss, region.slope(at.grads), 1.0
    for step in range(1, steps + 1):
        ahead = tn.scale_(region.highest_point(slope), length)
        candidate = region.project(tn.add_(ahead, u))
        with loss.perturbed_weights(region.offset(candidate)):
            found = loss.gradient() if step < steps else Gradient(loss.value(), [])
        if found.loss > best or steps == 1:
            u, best = candidate, found.loss
            slope = region.slope(found.grads) if found.grads else slope
            length *= 1.5
        else:
            length /= 2
    return Highest(region.offset(u), best, best - at.loss)
