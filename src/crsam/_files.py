"""Files that are whole or not there, and what cannot be read said in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no such file.

    Raises:
        UserError: If it cannot be read, or holds something else.

    Example:
        >>> read_json(Path("nowhere.json")) is None
        True
    """
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is not what was written there: it holds no object")
    return found
