"""Safetensors files: a length, a JSON header, and the bytes of all tensors behind it.

Read here in a few lines rather than with the package of that name: the format has no more to it,
and whoever fine-tunes needs nothing else installed. Nothing in such a file can be run.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crsam.errors import UserError

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LONGEST_HEADER = 100 << 20
"""Bytes; that of the format itself."""


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name, on the CPU.

    Raises:
        UserError: If it is not a whole file of this format.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= _LONGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
            content = torch.frombuffer(bytearray(file.read()) or bytearray(1), dtype=torch.uint8)
        header.pop("__metadata__", None)
        return {name: _tensor(name, entry, content) for name, entry in header.items()}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{path} is not a whole safetensors file: {error}") from error


def _tensor(name: str, entry: dict[str, Any], content: Tensor) -> Tensor:
    dtype, (begin, end) = _DTYPES.get(entry["dtype"]), entry["data_offsets"]
    if dtype is None:
        known = ", ".join(_DTYPES)
        raise ValueError(f"{name} is of type {entry['dtype']}, known are {known}")
    wanted = math.prod(entry["shape"]) * dtype.itemsize
    if not 0 <= begin <= end <= len(content) or end - begin != wanted:
        raise ValueError(f"{name} should be {wanted} bytes, from {begin} to {end}")
    # A copy: bytes need not begin where numbers of this type may.
    return content[begin:end].clone().view(dtype).reshape(entry["shape"])
