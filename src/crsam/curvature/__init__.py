"""Curvature and flatness of a loss, with the errors of what is estimated.

All functions take ``(model, loss_fn, batches)``. They measure the mean loss over all samples of
`batches`, as a function of the parameters that require a gradient:

- ``loss_fn(model, batch)`` returns the mean loss of the batch, or the loss of each sample.
- `batches` is a list of batches, a loader, or one batch. Batches are weighted by their size.
- All passes over a loader start from the same random numbers, so a shuffling loader gives the same
  order in every pass. Do not augment the data at random: the result would be that of one draw. If
  a loader draws new numbers in every pass, the result means nothing, and there is a warning.
- The model is measured in the mode it is in. In ``eval`` mode batch norm uses its running
  statistics and dropout does nothing. In ``train`` mode batch norm uses the statistics of each
  batch, and dropout uses one mask for each batch: the same in all passes and all functions.
- Weights, buffers, gradients, mode and random states are left as they were, bit for bit, also after
  an exception.
- Everything is computed in the precision of the parameters, float32 or float64. There is no
  autocast (unless `loss_fn` switches it on), no TF32, and nothing runs compiled. Attention uses the
  math kernel, which has a second derivative.

Memory: a Hessian takes three times the memory of a training step on one of the batches, for any
number of probes and batches. Lanczos (eigenvalues, density) also keeps a copy of the weights for
each step. If the memory is too small, use smaller batches: the mean over all of them is the same,
except for batch norm in training.
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
