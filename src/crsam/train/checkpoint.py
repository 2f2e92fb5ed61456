"""Files that are whole or not there: checkpoints, and whatever else a run writes."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from crsam.errors import UserError


def write(path: Path, content: bytes) -> None:
    """Replaces the file in one go: a reader, or a crash, finds the old one or the new one.

    For one writer at a time: who shares a file holds a lock.

    Raises:
        UserError: If it cannot be written; what was there before is untouched.
    """
    beside = path.with_name(path.name + ".tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        kept = "; the one written before is whole" if path.exists() else ""
        raise UserError(f"cannot write {path}: {error.strerror}{kept}") from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint of tensors and plain values."""
    buffer = io.BytesIO()  # so that a full disk is an error of ours to tell, not one of the zip
    torch.save(state, buffer)
    write(path, buffer.getvalue())


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Reads a checkpoint; nothing in it is run.

    Raises:
        UserError: If it is not a whole checkpoint.
    """
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a whole checkpoint ({reason})") from error
    if not isinstance(state, dict):
        raise UserError(f"{path} is not a checkpoint of ours: it holds a {type(state).__name__}")
    return state
