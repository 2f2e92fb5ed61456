"""The benchmark of losses in few bits: its emulation, and its errors where they are known."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lab.data.cifar_files import write_cifar


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("rounding")


def test_tf32_has_ten_bits(rounding: Any) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    mantissa, exponent = torch.frexp(x.double())
    expected = torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)
    assert torch.equal(rounding.cut(x).double(), expected)
    half = x.clamp(-10, 10).half().float()  # as many bits
    assert torch.equal(rounding.cut(half), half)


def test_layers_are_given_cut_inputs_and_no_more_afterwards(rounding: Any) -> None:
    layer, x = nn.Linear(3, 2, bias=False), torch.full((1, 3), 1 + 2**-12)
    model = nn.Sequential(layer)
    with rounding.computing_in("tf32", model):
        assert torch.equal(model(x), layer(torch.ones(1, 3)))
    assert torch.equal(model(x), x @ layer.weight.T)
    with rounding.computing_in("bfloat16", model):
        assert model(x).dtype == torch.bfloat16


def test_errors_grow_as_bits_get_fewer(rounding: Any, tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-py", each=20)
    case = rounding.Case("resnet18", {"width": 4}, 32, None, 2)
    row = rounding.judged(case, str(tmp_path), 16, 2)
    errors = row["errors"]
    losses = [errors[name]["loss"] for name in ("float32", "tf32", "bfloat16")]
    assert 0 < losses[0] < 1e-6 < losses[1] < losses[2] < 0.1
    assert errors["float32"]["cosine_of_D_2"] > 0.99 > errors["bfloat16"]["cosine_of_D_2"]
    assert errors["tf32"]["cosine_of_D_2"] is None
    assert rounding.table({"a net": row}).count("a net") == len(rounding.PRECISIONS)


def test_against_itself_there_is_no_error(rounding: Any, monkeypatch: Any, tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-py", each=20)
    monkeypatch.setattr(rounding, "PRECISIONS", ("float64",))
    row = rounding.judged(rounding.Case("resnet18", {"width": 2}, 32, 50, 1), str(tmp_path), 8, 1)
    assert row["errors"]["float64"] == {"loss": 0, "d_2": 0, "cosine_of_D_2": pytest.approx(1)}
