"""Checkpoints: written in one go, checked when they are read, and nothing in them is run."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from crsam import _files
from crsam.errors import UserError
from crsam.lab import _torch_files


def save(path: Path, state: dict[str, Any], *, keep: Path | None = None) -> None:
    """Writes a checkpoint of tensors and plain values.

    Args:
        path: The file.
        state: Its content.
        keep: Where the checkpoint goes that was at `path`. It replaces the file there.
    """
    buffer = io.BytesIO()  # so that a full disk is an error of ours to tell, not one of the zip
    with _checksums():
        torch.save(state, buffer)
    _files.write(path, buffer.getvalue(), keep=keep)


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Reads a checkpoint and checks its checksums. Nothing in it is run.

    Raises:
        Damaged: If its bytes are not those that were written.
        UserError: If it cannot be read, or is not a checkpoint of ours.
    """
    try:
        state = _torch_files.read(path, device)
    except UserError:
        raise
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a checkpoint of ours: {reason}") from error
    if not isinstance(state, dict):
        raise UserError(f"{path} is not a checkpoint of ours: it holds a {type(state).__name__}")
    return state


@contextmanager
def _checksums() -> Iterator[None]:
    """Within, `torch.save` writes checksums, even if a user has turned them off."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)
