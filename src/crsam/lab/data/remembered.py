"""What is in an archive, remembered where it took long to find out."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from crsam.lab.data.shards import Member, members

SLOW = 2.0
"""Seconds of listing an archive beyond which that is not done again."""


def remembered(archive: Path) -> Iterable[Member]:
    """The members of an archive; see `members`.

    What took longer than two seconds is kept in ``$XDG_CACHE_HOME/crsam`` (``~/.cache/crsam``), by
    the archive's place, size and time of change. Files there may be deleted at any time.

    Args:
        archive: A tar or zip file.
    """
    file = cache_file(archive)
    try:
        return map(Member, *json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):  # there is none, or it is damaged
        pass
    began = time.perf_counter()
    found = list(members(archive))
    if found and time.perf_counter() - began > SLOW:
        _write(file, json.dumps([*zip(*found)]).encode())
    return found


def cache_file(archive: Path) -> Path:
    """Where the members of an archive, as it is now, are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    state = archive.stat() if archive.exists() else None
    known = (str(archive.absolute()), state and state.st_size, state and state.st_mtime_ns)
    digest = hashlib.blake2b(repr(known).encode(errors="surrogateescape"), digest_size=16)
    return Path(home) / "crsam" / "archives" / f"{digest.hexdigest()}.json"


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all: several processes may list an archive at once."""
    beside = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(file)
    except OSError:  # no room, no right to: then it takes as long the next time
        beside.unlink(missing_ok=True)
