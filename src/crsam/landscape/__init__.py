"""Loss landscapes: the mean loss along a line or over a plane through the weights, as arrays.

A *direction* is a dict of tensors by the names of a model's parameters or buffers. Tensors that it
does not name do not move. `random_directions` draws filter-normalised directions, `toward` leads to
another model, `plane` goes through three models, and `crsam.curvature.top_eigenpairs` gives the
eigenvectors of the Hessian. `surface` evaluates the loss along directions:

- ``loss_fn(model, batch)`` returns the mean loss of the batch or the loss of each sample. It may
  also return a pair: the loss and, for each sample, whether it is right. Then there is an accuracy.
- `batches` is a list of batches, a loader, or one batch. It is read once and kept in memory.
- The model is in ``eval`` mode: dropout does nothing. Batch norm uses the running statistics of the
  weights in the center, or recomputes them at every point.
- Weights, buffers, gradients, mode and random states are left as they were, bit for bit, also after
  an exception.
- Everything is computed in the precision of the parameters, without autocast (unless `loss_fn`
  switches it on).
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
