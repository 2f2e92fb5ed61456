"""Safetensors files are read as the package of that name reads them, and broken ones are told."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.models.safetensors import read_safetensors

TENSORS = {
    "weight": torch.randn(3, 5),
    "bias": torch.randn(5, dtype=torch.float64),
    "half": torch.randn(2, 2).half(),
    "brain": torch.randn(7).bfloat16(),
    "count": torch.tensor(12),
    "mask": torch.tensor([True, False, True]),
    "none": torch.empty(0, 4),
}
NAMES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.bool: "BOOL",
}


def write(path: Path, tensors: dict[str, Tensor], **changes: Any) -> Path:
    """The format, written by hand; `changes` are entries that are not as they should be."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for name, tensor in tensors.items():
        raw = (
            bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
            if tensor.numel()
            else b""
        )
        offsets = [len(content), len(content) + len(raw)]
        shape = list(tensor.shape)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": offsets}
        header[name] |= changes.get(name, {})
        content += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    return path


def test_all_tensors_come_back_whatever_their_alignment(tmp_path: Path) -> None:
    order = ["mask", "weight", "brain", "bias", "none", "half", "count"]
    found = read_safetensors(write(tmp_path / "a.safetensors", {n: TENSORS[n] for n in order}))
    assert list(found) == order
    for name, tensor in found.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])


def test_a_file_of_the_package_itself(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.torch")
    package.save_file(TENSORS, tmp_path / "a.safetensors", metadata={"format": "pt"})
    found = read_safetensors(tmp_path / "a.safetensors")
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in found.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "F4"}, "weight is of type F4, known are F64, F32"),
        ({"shape": [3, 6]}, "weight should be 72 bytes, from 0 to 60"),
        ({"shape": [-3, -5]}, "invalid shape"),
        ({"data_offsets": [40, 100]}, "weight should be 60 bytes, from 40 to 100"),
        ({"data_offsets": [-60, 0]}, "from -60 to 0"),
        ({"data_offsets": 3}, ""),
        ({"shape": None}, ""),
    ],
)
def test_entries_that_lie_are_told(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.safetensors", {"weight": TENSORS["weight"]}, weight=change)
    with pytest.raises(
        UserError, match=f"a.safetensors is not a whole safetensors file: .*{message}"
    ):
        read_safetensors(file)


@pytest.mark.parametrize("length", [0, 5, 8, 40, -1])
def test_a_file_that_was_cut_is_told(length: int, tmp_path: Path) -> None:
    file = write(tmp_path / "a.safetensors", {"weight": TENSORS["weight"]})
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(UserError, match="is not a whole safetensors file"):
        read_safetensors(file)


@pytest.mark.parametrize("content", [b"no such thing", b"\x02" + bytes(7) + b"[]", b"\xff" * 100])
def test_another_kind_of_file_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="is not a whole safetensors file"):
        read_safetensors(tmp_path / "a.safetensors")
