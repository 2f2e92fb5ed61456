"""Against curvlinops (Dangel et al. 2025), where it is installed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crsam import curvature
from curvature.cases import Case, exact, flat, images, mlp, vectors

curvlinops = pytest.importorskip("curvlinops")
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


def smooth_conv_net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)]
    return nn.Sequential(*layers).double()


CASES = {
    "mlp": lambda: Case(mlp(), vectors((7, 2, 4))),
    "relu": lambda: Case(mlp(nn.ReLU), vectors((7, 2, 4))),
    "conv": lambda: Case(smooth_conv_net(), images((4, 3))),
    "trained": lambda: exact("mlp, trained")[0],
}


@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_curvlinops(name: str) -> None:
    case = CASES[name]()
    H = curvlinops.HessianLinearOperator(
        case.model, nn.CrossEntropyLoss(), case.params, case.batches
    )
    v = [torch.randn_like(p) for p in case.params]
    ours = curvature.hessian_vector_product(*case.given, v)
    torch.testing.assert_close(flat(ours), H @ flat(v), rtol=1e-9, atol=1e-12)
