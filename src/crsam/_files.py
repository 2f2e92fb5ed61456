"""Files that are whole or not there, and what cannot be read said in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from crsam.errors import UserError


def write(path: Path, content: bytes, *, keep: Path | None = None) -> None:
    """Replaces a file in one go. A reader finds the old file or the new one, also after a crash.

    Only one process may write at a time. Where several share a file, the writer holds a lock.

    Args:
        path: The file.
        content: What it is to hold.
        keep: Gives the old file this name. A file of that name is replaced. After a crash, the old
            file is at `path` or at `keep`, whole.

    Raises:
        UserError: If the file cannot be written. The old one stays as it was.
    """
    beside = path.with_name(path.name + ".tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            _name_also(path, keep)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        kept = "; the one written before is whole" if path.exists() else ""
        raise UserError(f"cannot write {path}: {error.strerror}{kept}") from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _name_also(path: Path, other: Path) -> None:
    """Gives a file a second name, in place of the file of that name."""
    beside = other.with_name(other.name + ".tmp")
    beside.unlink(missing_ok=True)  # of a process that was killed here
    try:
        beside.hardlink_to(path)
    except OSError:  # a file system without hard links
        path.replace(other)
        return
    beside.replace(other)
    beside.unlink(missing_ok=True)  # it stays if both names were already of the same file


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
