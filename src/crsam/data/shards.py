"""Images inside tar and zip files, read where they lie: their members are listed once."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from crsam.errors import UserError
from crsam.progress import bar

SUFFIXES = (".tar", ".zip")
PACKED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Archives of which no part can be read without all before it."""
FOLDER, LINK = -1, -2
BLOCK = 512
LINKS = (b"1", b"2")
STEP = 1000
"""Members between two moves of the bar."""


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    """With its folders."""
    offset: int
    """Of its first byte in a tar file; of its header in a zip file."""
    size: int
    """Of its bytes as they lie there; `FOLDER` or `LINK` if it is one."""


def members(archive: Path) -> Iterator[Member]:
    """The files and folders of an archive, and those of tar files within a tar file.

    A tar file within one lends its name to its members, as if it were a folder: the official
    ImageNet archive holds ``n01440764.tar`` and so on.

    Raises:
        UserError: If it cannot be read, or has been cut off.
    """
    try:
        if archive.suffix.lower() == ".zip":
            yield from _zip_members(archive)
            return
        with archive.open("rb") as file, bar(f"listing {archive.name}", _size(file)) as advance:
            done = 0
            for i, member in enumerate(_tar_members(archive, file, 0, _size(file))):
                if i % STEP == 0:
                    advance(member.offset - done)
                    done = member.offset
                yield member
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{archive} cannot be read, or is cut off: {error}") from error


def _zip_members(archive: Path) -> Iterator[Member]:
    length = archive.stat().st_size
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            name, size = info.filename, info.compress_size
            if info.is_dir():
                yield Member(name, 0, FOLDER)
                continue
            if info.flag_bits & 1:
                raise UserError(f"{archive}: {name} needs a password")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(f"{archive}: {name} must be stored or deflated")
            if info.header_offset + size > length:
                raise _cut(archive, name)
            yield Member(name, info.header_offset, size)


def _tar_members(archive: Path, file: BinaryIO, start: int, end: int) -> Iterator[Member]:
    """Reads headers alone: a hundred gigabytes take as long as their number of files."""
    number, at = file.fileno(), start
    long_name: str | None = None
    long_size: int | None = None
    while True:
        header = os.pread(number, BLOCK, at)
        if header.count(0) == len(header) == BLOCK:
            return
        if len(header) < BLOCK or at + BLOCK > end:
            raise UserError(f"{archive} is cut off: it has no end mark")
        if not _is_header(header):
            raise UserError(f"{archive} is no tar file, or damaged at byte {at}")
        kind, name = header[156:157], long_name or _name(header)
        size = 0 if kind in LINKS else long_size or _number(header[124:136])
        at += BLOCK
        if at + size > end:
            raise _cut(archive, name)
        if kind in b"Lx":
            note = os.pread(number, size, at)
            told = _pax(note) if kind == b"x" else {"path": _text(note)}
            long_name = told.get("path", long_name)
            long_size = int(told["size"]) if "size" in told else long_size
        else:
            long_name = long_size = None
            if kind == b"5":
                yield Member(name, at, FOLDER)
            elif kind in LINKS:
                yield Member(name, at, LINK)
            elif kind in b"0\0" and name.endswith(".tar"):
                for inner in _tar_members(archive, file, at, at + size):
                    yield inner._replace(name=f"{PurePosixPath(name).stem}/{inner.name}")
            elif kind in b"0\0":
                yield Member(name, at, size)
        at += -(-size // BLOCK) * BLOCK


def _is_header(header: bytes) -> bool:
    """Whether its sum is the one that is noted in it, which counts as blanks itself."""
    noted = header[148:156].strip(b" \0")
    return noted.isdigit() and sum(header) - sum(header[148:156]) + 8 * 32 == int(noted, 8)


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # not in octal digits, for which it is too large
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b" \0") or b"0", 8)


def _name(header: bytes) -> str:
    name = header[:100].rstrip(b"\0")
    if header[257:263] == b"ustar\0" and (folder := header[345:500].rstrip(b"\0")):
        name = folder + b"/" + name
    return _text(name)


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode(errors="surrogateescape")


def _pax(note: bytes) -> dict[str, str]:
    """Lines such as ``25 path=a/long/name.jpg``, the number that of their bytes."""
    found = {}
    while note:
        length = int(note.split(b" ", 1)[0])
        key, _, value = note[:length].split(b" ", 1)[1].partition(b"=")
        found[key.decode()] = _text(value.rstrip(b"\n"))
        note = note[length:]
    return found


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _cut(archive: Path, name: str) -> UserError:
    return UserError(f"{archive} is cut off: it ends within {name}")
