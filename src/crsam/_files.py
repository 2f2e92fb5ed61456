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


def write(path: Path, content: bytes) -> None:
    """Replaces a file in one go: a reader, or a crash, finds the old one or the new one.

    There may be one writer at a time. Who shares a file holds a lock.

    Raises:
        UserError: If the path is anything but a regular file, or cannot be written. What was there
            before is untouched.
    """
    beside = path.with_name(path.name + ".tmp")
    for each in (path, beside):
        check_replaceable(each)
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
