"""Every function of `crsam.curvature`, with small settings: the batteries run over all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from crsam import curvature
from curvature.cases import each_cross_entropy


def product_with_ones(model: nn.Module, loss_fn: Any, batches: Any, **options: Any) -> Any:
    ones = [torch.ones_like(p) for p in model.parameters() if p.requires_grad]
    return curvature.hessian_vector_product(model, loss_fn, batches, ones, **options)


def pac_bayes(model: nn.Module, loss_fn: Any, batches: Any, **options: Any) -> Any:
    def calmness(model: nn.Module, batch: Any) -> Tensor:
        """A share that falls with the noise, whatever the net has learnt."""
        loss_fn(model, batch)
        return torch.exp(-model(batch[0]).square().mean(1))

    return curvature.pac_bayes_sharpness(model, calmness, batches, num_draws=2, tol=0.5, **options)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "adaptive_sharpness": partial(curvature.adaptive_sharpness, steps=3),
    "approximation_ratio": partial(curvature.approximation_ratio, steps=3),
    "approximation_ratio, backtracking": partial(
        curvature.approximation_ratio, steps=3, ascent="backtracking"
    ),
    "approximation_ratio, per batch": partial(
        curvature.approximation_ratio, steps=3, per_batch=True
    ),
    "average_sharpness, not adaptive": partial(
        curvature.average_sharpness, num_draws=2, adaptive=False
    ),
    "sharpness, one step": curvature.sharpness,
    "average_sharpness": partial(curvature.average_sharpness, num_draws=2),
    "effective_dimensionality": partial(curvature.effective_dimensionality, num_vectors=2, steps=3),
    "epsilon_sharpness": partial(curvature.epsilon_sharpness, steps=3),
    "finite_difference_curvature": curvature.finite_difference_curvature,
    "fisher_rao": curvature.fisher_rao,
    "generalization_bound": partial(curvature.generalization_bound, num_probes=3),
    "gradient_norm": curvature.gradient_norm,
    "gradient_norm, per batch": partial(curvature.gradient_norm, of="batches"),
    "hessian_frobenius_norm": partial(curvature.hessian_frobenius_norm, num_probes=3),
    "hessian_trace": partial(curvature.hessian_trace, num_probes=3),
    "hessian_vector_product": product_with_ones,
    "normalized_trace": lambda *given, **options: curvature.normalized_trace(
        *given, num_probes=3, **options
    )._replace(batch_grad_norm=0.0),
    "normalized_trace, per batch": partial(curvature.normalized_trace, num_probes=3, of="batches"),
    "pac_bayes_sharpness": pac_bayes,
    "sharpness": partial(curvature.sharpness, steps=3),
    "spectral_density": partial(curvature.spectral_density, num_vectors=2, steps=3),
    "top_eigenpairs": partial(curvature.top_eigenpairs, tol=0.1, max_steps=50),
    "top_eigenvalues": partial(curvature.top_eigenvalues, tol=0.1, max_steps=50),
}
LOSS = each_cross_entropy
"""A loss that all of them take."""


def numbers(found: Any) -> list[float]:
    """What a function returned, as a flat list."""
    if isinstance(found, Tensor):
        return found.flatten().tolist()
    if isinstance(found, dict):
        return numbers(list(found.values()))
    if isinstance(found, list | tuple):
        return [number for part in found for number in numbers(part)]
    return [float(found)]
