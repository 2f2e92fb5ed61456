"""Curvature and flatness of a loss: numbers that can be trusted.

All functions take ``(model, loss_fn, batches)`` and measure the mean loss over all samples of
`batches`, as a function of the parameters that require a gradient:

- ``loss_fn(model, batch)`` returns the mean loss of the batch, or the loss of each sample.
- `batches` is a list of batches or a loader (or one batch). Batches of unequal size are weighted
  by their size. All passes over a loader start from the same random numbers, so a shuffling one
  gives the same order; what is augmented at random should still not be: the result would be that
  of one draw, and a loader that draws afresh in every pass makes it meaningless (there is a
  warning).
- The model is measured in the mode it is in. In ``eval`` mode batch norm uses its running
  statistics and dropout does nothing. In ``train`` mode the loss is that of the batches' own
  statistics, and of dropout masks that are drawn once for each batch: always the same ones, in all
  passes and all functions.
- The model is left as found, bit for bit: weights, buffers, gradients, mode; and so are the random
  states, also after an exception.
- Everything is computed in the parameters' own precision, float32 or float64: no autocast (unless
  `loss_fn` itself switches it on), no TF32, nothing compiled; attention through the math kernel,
  which has a second derivative.

Memory: a Hessian takes three times a training step's on one of the batches, whatever the number of
probes and batches; Lanczos (eigenvalues, density) a copy of the weights a step beside it. What does
not fit does with smaller batches: the mean over all of them is the same, except for batch norm in
training.
"""

from crsam.curvature.bound import Bound, generalization_bound
from crsam.curvature.density import Density, effective_dimensionality, spectral_density
from crsam.curvature.eigenvalues import Eigenpair, top_eigenpairs, top_eigenvalues
from crsam.curvature.estimate import Estimate
from crsam.curvature.fisher_rao import fisher_rao
from crsam.curvature.gradient import (
    finite_difference_curvature,
    gradient_norm,
    hessian_vector_product,
)
from crsam.curvature.pac_bayes import PacBayesSharpness, pac_bayes_sharpness
from crsam.curvature.ratio import Ratio, approximation_ratio
from crsam.curvature.sharpness import (
    adaptive_sharpness,
    average_sharpness,
    epsilon_sharpness,
    sharpness,
)
from crsam.curvature.trace import (
    NormalizedTrace,
    hessian_frobenius_norm,
    hessian_trace,
    normalized_trace,
)

__all__ = [
    "Bound",
    "Density",
    "Eigenpair",
    "Estimate",
    "NormalizedTrace",
    "PacBayesSharpness",
    "Ratio",
    "adaptive_sharpness",
    "approximation_ratio",
    "average_sharpness",
    "effective_dimensionality",
    "epsilon_sharpness",
    "finite_difference_curvature",
    "fisher_rao",
    "generalization_bound",
    "gradient_norm",
    "hessian_frobenius_norm",
    "hessian_trace",
    "hessian_vector_product",
    "normalized_trace",
    "pac_bayes_sharpness",
    "sharpness",
    "spectral_density",
    "top_eigenpairs",
    "top_eigenvalues",
]
