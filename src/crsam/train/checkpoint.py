"""Checkpoints: whole or not there, and nothing in them is run."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from crsam import _files
from crsam.errors import UserError


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint of tensors and plain values."""
    buffer = io.BytesIO()  # so that a full disk is an error of ours to tell, not one of the zip
    torch.save(state, buffer)
    _files.write(path, buffer.getvalue())


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
