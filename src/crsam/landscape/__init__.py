"""Loss landscapes: the mean loss over a line or a plane through the weights, as arrays.

A *direction* is a dict of tensors by the names of a model's parameters (or buffers); what it does
not name stays where it is. `random_directions` draws filter-normalised ones, `toward` leads to
another model, `plane` through three of them, and `crsam.curvature.top_eigenpairs` gives the
eigenvectors of the Hessian. `surface` evaluates the loss along them:

- ``loss_fn(model, batch)`` returns the mean loss of the batch or the loss of each sample; or a
  pair, the loss and for each sample whether it is right: then there is an accuracy too.
- `batches` is a list of batches, a loader, or one batch. It is gone over once and kept in memory.
- The model is in ``eval`` mode: dropout does nothing. Batch norm has its running statistics, those
  of the weights in the middle, or has them recomputed at every point.
- The model is left as found, bit for bit: weights, buffers, gradients, mode; and so are the random
  states, also after an exception.
- Everything is computed in the parameters' own precision, without autocast (unless `loss_fn`
  itself switches it on).
"""

from crsam.landscape.directions import Direction, Plane, plane, random_directions, toward
from crsam.landscape.file import load
from crsam.landscape.grid import Surface
from crsam.landscape.surface import surface

__all__ = [
    "Direction",
    "Plane",
    "Surface",
    "load",
    "plane",
    "random_directions",
    "surface",
    "toward",
]
