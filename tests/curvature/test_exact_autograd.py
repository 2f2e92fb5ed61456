"""Second derivatives are exact, whatever kernels and precision the caller has chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crsam import curvature
from curvature.cases import (
    Case,
    attention,
    mlp,
    sequences,
    vectors,
)


def test_attention_needs_no_kernel_to_be_chosen_by_the_caller() -> None:
    case = Case(attention().eval(), sequences((3, 2)))
    grads = torch.autograd.grad(case.loss(), case.params, create_graph=True)
    # What the fused kernel says without us; once it has learnt, the math kernel can go.
    with pytest.raises(RuntimeError, match="derivative"):
        torch.autograd.grad(sum(g.sum() for g in grads), case.params)
    assert curvature.hessian_trace(*case.given, num_probes=2).stderr > 0


def test_products_are_computed_in_full_precision() -> None:
    case = Case(mlp().float(), [(x.float(), y) for x, y in vectors((5, 3))])
    seen = []

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        new = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
        seen.append(torch.get_float32_matmul_precision() if new is None else new)
        return case.loss_fn(model, batch)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        curvature.gradient_norm(case.model, loss_fn, case.batches)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) <= {"ieee", "highest"}


def test_a_compiled_model_is_measured_as_it_was_written() -> None:
    case = Case(mlp(), vectors((4, 3)))
    compiled = torch.compile(case.model, backend="aot_eager")
    compiled(case.batches[0][0])
    trace = curvature.hessian_trace(compiled, case.loss_fn, case.batches, num_probes=3)
    assert trace == curvature.hessian_trace(*case.given, num_probes=3)
    torch.compiler.reset()
