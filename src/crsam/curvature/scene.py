"""What a measurement needs of torch, and what it must leave as it was."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from crsam._states import RandomStates, Snapshot


@contextmanager
def measuring(parts: Sequence[nn.Module], devices: Sequence[torch.device]) -> Iterator[Snapshot]:
    """Exact second derivatives inside; outside, `parts` and the random states as they were.

    No autocast and no TF32, whose rounding a second difference would magnify. Attention through
    the math kernel: the fused ones have no second derivative. Nothing compiled, for the same
    reason. Weight norm written out, gradients of embeddings dense. Gradients, even if the caller
    has switched them off.
    """
    snapshot, states = Snapshot(parts), RandomStates(devices)
    with ExitStack() as stack:
        stack.callback(snapshot.put_back)
        stack.callback(states.put_back)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in sorted({"cpu", *(device.type for device in devices)}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(_full_precision())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_no_fast_path())
        stack.enter_context(_plain_weight_norm())
        stack.enter_context(_dense_embeddings(parts))
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and its import takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield snapshot


@contextmanager
def _plain_weight_norm() -> Iterator[None]:
    """Written out: the second derivative of torch's own leaves out a term (seen with 2.13)."""
    owners: list[Any] = [torch, importlib.import_module("torch.nn.utils.weight_norm")]
    before = [owner._weight_norm for owner in owners]

    def plain(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
        return v * (g / torch.norm_except_dim(v, 2, dim))

    try:
        for owner in owners:
            owner._weight_norm = plain
        yield
    finally:
        for owner, function in zip(owners, before):
            owner._weight_norm = function


@contextmanager
def _dense_embeddings(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Of sparse gradients there is no second derivative."""
    modules = {module for part in parts for module in part.modules()}
    sparse = [module for module in modules if isinstance(module, nn.Embedding) and module.sparse]
    try:
        for module in sparse:
            module.sparse = False
        yield
    finally:
        for module in sparse:
            module.sparse = True


@contextmanager
def _full_precision() -> Iterator[None]:
    """Has float32 products computed in float32."""
    backends: Any = torch.backends
    if not hasattr(backends.cudnn, "conv"):  # before torch 2.9
        settings: list[tuple[Any, str, Any]] = [(backends.cudnn, "allow_tf32", False)]
        matmul = torch.get_float32_matmul_precision()
    else:  # which forbids to mix these with the older ones
        owners = [backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul]
        owners += [backends.mkldnn.conv, backends.mkldnn.rnn, backends.mkldnn.matmul]
        settings = [(owner, "fp32_precision", "ieee") for owner in owners]
        matmul = None
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in settings]
    try:
        _set(settings)
        if matmul is not None:
            torch.set_float32_matmul_precision("highest")
        yield
    finally:
        _set(before)
        if matmul is not None:
            torch.set_float32_matmul_precision(matmul)


def _set(settings: list[tuple[Any, str, Any]]) -> None:
    for owner, name, value in settings:
        setattr(owner, name, value)


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Has `nn.MultiheadAttention` compute alike with and without gradients."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
