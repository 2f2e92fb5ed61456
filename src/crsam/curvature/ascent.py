"""Where the loss is highest near the weights: projected gradient ascent in a ball or a box."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.curvature.mean_loss import Evaluation, MeanLoss


class Region(ABC):
    """A convex set of offsets around 0: ``scale · u`` for all ``u`` of a simple shape."""

    scale: Tensors | None
    """One factor for each weight; None: all 1."""

    @abstractmethod
    def farthest(self, slope: Tensors) -> Tensors:
        """The ``u`` that rises most where the slope in ``u`` is this everywhere."""

    @abstractmethod
    def project(self, u: Tensors) -> Tensors:
        """The nearest of the region's ``u``, in place."""

    def offset(self, u: Sequence[Tensor]) -> Tensors:
        """What to add to the weights."""
        return self._scaled(u)

    def slope(self, grads: Sequence[Tensor]) -> Tensors:
        """The gradient in ``u``, of a gradient in the weights."""
        return self._scaled(grads)

    def _scaled(self, tensors: Sequence[Tensor]) -> Tensors:
        copy = tn.clone(tensors)
        return copy if self.scale is None else tn.multiply_(copy, self.scale)


@dataclass(frozen=True)
class Ball(Region):
    r"""$\lVert u\rVert_2 \le \rho$."""

    rho: float
    scale: Tensors | None = None

    def farthest(self, slope: Tensors) -> Tensors:
        return tn.scale_(tn.clone(slope), self.rho * tn.safe_reciprocal(tn.norm(slope)))

    def project(self, u: Tensors) -> Tensors:
        return tn.scale_(u, (self.rho * tn.safe_reciprocal(tn.norm(u))).clamp(max=1.0))


@dataclass(frozen=True)
class Box(Region):
    r"""$\lvert u_i\rvert \le 1$."""

    scale: Tensors | None = None

    def farthest(self, slope: Tensors) -> Tensors:
        return [s.sign() for s in slope]

    def project(self, u: Tensors) -> Tensors:
        return [x.clamp_(-1, 1) for x in u]


@torch.no_grad()
def ascend(loss: MeanLoss, region: Region, steps: int, start: Evaluation | None = None) -> Tensors:
    """The offset after plain projected gradient ascent from the weights.

    Each step follows the normalized gradient as far as the region reaches, and is then projected
    onto the region. The first step of a ball of radius ρ is therefore SAM's own. No step is taken
    back: the last point is returned, even where another point had a higher loss.

    Args:
        loss: The loss.
        region: The set of allowed offsets.
        steps: The number of steps. Each one but the first costs a forward and a backward pass over
            the data. The first one uses the gradient at the weights.
        start: Loss and gradient at the weights, if they are known already.
    """
    at = start or loss.gradient()
    u: Tensors = [torch.zeros_like(g) for g in at.grads]
    slope = region.slope(at.grads)
    for step in range(steps):
        if step > 0:
            with loss.moved(region.offset(u)):
                slope = region.slope(loss.gradient().grads)
        u = region.project(tn.add_(region.farthest(slope), u))
    return region.offset(u)


class Peak(NamedTuple):
    """The highest point that an ascent found."""

    offset: Tensors
    loss: float
    rise: float
    """By how much the loss there is above that at the weights."""


@torch.no_grad()
def climb(loss: MeanLoss, region: Region, steps: int, start: Evaluation | None = None) -> Peak:
    """The best point of a projected ascent with backtracking.

    The first step goes as far as the region does. With ``steps=1`` that point is the answer, even
    if the loss is lower there: it is SAM's. With more steps the loss at the answer is never lower
    than there, nor than at the weights, which are in the region too. After a step that led up, the
    next one is longer. A step that led down is taken back and halved.

    Args:
        loss: The loss.
        region: Where to look.
        steps: How many points to look at; each costs a forward and a backward pass over the data
            (the last one a forward pass), beside those at the weights.
        start: Loss and gradient at the weights, if they are known already.
    """
    at = start or loss.gradient()
    u: Tensors = [torch.zeros_like(g) for g in at.grads]
    best, slope, length = at.loss, region.slope(at.grads), 1.0
    for step in range(1, steps + 1):
        ahead = tn.scale_(region.farthest(slope), length)
        candidate = region.project(tn.add_(ahead, u))
        with loss.moved(region.offset(candidate)):
            found = loss.gradient() if step < steps else Evaluation(loss.value(), [])
        if found.loss > best or steps == 1:
            u, best = candidate, found.loss
            slope = region.slope(found.grads) if found.grads else slope
            length *= 1.5
        else:
            length /= 2
    return Peak(region.offset(u), best, best - at.loss)
