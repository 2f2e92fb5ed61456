"""Reads ``.npz`` files that others may have made: nothing in them is trusted."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

LARGEST = 256 << 20
"""Most bytes of a file and of all its arrays together, unpacked."""
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def content_of(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If there are more than `LARGEST`.
    """
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST >> 20} MiB")
    return path.read_bytes()


def arrays_in(raw: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file, by name.

    `numpy.load` allocates what a header asks for before it reads the array. Here an array is made
    of bytes that were unpacked, and only if its header asks for just as many.

    Args:
        raw: The content of the file.

    Raises:
        ValueError: If it is not such a file, holds objects, or has more than `LARGEST` bytes.

    Example:
        >>> file = io.BytesIO()
        >>> np.savez_compressed(file, x=np.arange(3))
        >>> arrays_in(file.getvalue())
        {'x': array([0, 1, 2])}
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            found, left = {}, LARGEST
            for member in archive.infolist():
                with archive.open(member) as file:
                    content = file.read(left + 1)
                if len(content) > left:
                    raise ValueError(f"its arrays have more than {LARGEST >> 20} MiB")
                left -= len(content)
                name = member.filename.removesuffix(".npy")
                found[name] = _array(name, content)
            return found
    except ValueError:
        raise
    except Exception as error:  # of a damaged archive, zipfile may raise anything
        raise ValueError("not a file of arrays") from error


def _array(name: str, content: bytes) -> NDArray[Any]:
    file = io.BytesIO(content)
    try:
        shape, by_columns, dtype = HEADERS[npy.read_magic(file)](file)
    except Exception as error:  # the header is a Python literal, which may be wrong in many ways
        raise ValueError(f"{name} is not an array") from error
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, for which a pickle would have to be run")
    if min(shape, default=0) < 0:
        raise ValueError(f"{name} is of shape {shape}")
    size = math.prod(shape)
    wanted, there = size * dtype.itemsize, len(content) - file.tell()
    if wanted != there:
        raise ValueError(
            f"{name} is of shape {shape} and type {dtype}, {wanted} bytes, but {there} are there"
        )
    if size and not wanted:
        raise ValueError(f"{name} is of type {dtype}, which has no values")
    flat = np.frombuffer(content, dtype, offset=file.tell()) if size else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if by_columns else "C").copy()
