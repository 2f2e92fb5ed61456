"""Settings of torch under which second derivatives exist and are exact."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Settings = list[tuple[Any, str, Any]]
"""Objects, the names of their attributes, and the values of these."""


@contextmanager
def exact_autograd(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Makes second derivatives exact inside the ``with`` block.

    - Gradients are computed even if the caller has switched them off.
    - float32 products are computed in float32: a second difference magnifies the errors of TF32.
    - Attention uses the math kernel, because the fused kernels have no second derivative.
    - `nn.MultiheadAttention` computes the same with and without gradients.
    - Nothing runs compiled.
    - Weight norm is computed by its formula: torch's own second derivative lacks a term (2.13).
    - Gradients of embeddings are dense, because sparse ones have no second derivative.

    Args:
        parts: The modules that are evaluated.
    """
    modules = {module for part in parts for module in part.modules()}
    sparse = [module for module in modules if isinstance(module, nn.Embedding) and module.sparse]
    old_weight_norm = importlib.import_module("torch.nn.utils.weight_norm")
    settings: Settings = [(module, "sparse", False) for module in sparse]
    settings += [(owner, "_weight_norm", _weight_norm) for owner in (torch, old_weight_norm)]
    mha, backends = torch.backends.mha, torch.backends
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        mha.set_fastpath_enabled(False)
        if hasattr(backends.cudnn, "conv"):  # torch 2.9 and later, where the older way is an error
            settings += _full_precision(backends)
        else:
            settings.append((backends.cudnn, "allow_tf32", False))
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        stack.callback(_apply, [(owner, name, getattr(owner, name)) for owner, name, _ in settings])
        _apply(settings)
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled; the import is slow
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _apply(settings: Settings) -> None:
    for owner, name, value in settings:
        setattr(owner, name, value)


def _full_precision(backends: Any) -> Settings:
    owners = [backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul]
    owners += [backends.mkldnn.conv, backends.mkldnn.rnn, backends.mkldnn.matmul]
    return [(owner, "fp32_precision", "ieee") for owner in owners]


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    return v * (g / torch.norm_except_dim(v, 2, dim))
