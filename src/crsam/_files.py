"""Reads and writes files. What is written is whole or not there."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from crsam.errors import UserError

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def write(path: Path, content: bytes, *, keep: Path | None = None) -> None:
    """Replaces a file in one go. A reader finds the old file or the new one, also after a crash.

    Only one process may write at a time. Where several share a file, the writer holds a lock.

    Args:
        path: The file.
        content: What it is to hold.
        keep: Gives the old file this name. A file of that name is replaced. After a crash, the old
            file is at `path` or at `keep`, whole.

    Raises:
        UserError: If the path is no regular file, or cannot be written. The old file stays whole.
    """
    beside = path.with_name(path.name + ".tmp")
    for each in (path, beside):
        check_replaceable(each)
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


def check_replaceable(path: Path) -> None:
    """Raises UserError if there is something at the path that is not a regular file.

    A file is replaced by renaming another one over it. That would remove a device, a pipe or a
    symbolic link itself, and leave its target as it was.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing is there, or writing will say what is wrong
        return
    if stat.S_ISLNK(mode):
        raise UserError(
            f"cannot write {path}: it is a symbolic link to {os.readlink(path)}, which would be "
            "replaced by a file: give the name of a regular file"
        )
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise UserError(f"cannot write {path}: it is {kind}: give the name of a regular file")


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
