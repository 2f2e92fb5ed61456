"""Images inside tar and zip files, read where they lie: their members are listed once."""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from crsam.errors import UserError
from crsam.progress import bar

SUFFIXES = (".tar", ".zip")
DAMAGED = (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OverflowError)
"""What `zipfile` raises for a directory that makes no sense."""
PACKED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Archives of which no part can be read without all before it."""
FOLDER, LINK = -1, -2
BLOCK = 512
LINKS = (b"1", b"2")
STEP = 1000
"""Members between two moves of the bar."""
LONGEST_NOTE = 1 << 20
"""Most bytes of a long name or a pax header, which is read as a whole."""
DEEPEST = 8
"""Most tar files that lie within one another."""


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
        UserError: If the archive cannot be read, is damaged, or has been cut off.
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
    except UserError:
        raise
    except (OSError, *DAMAGED) as error:
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
            if info.header_offset < 0:
                raise UserError(f"{archive} is damaged: {name} begins before the file does")
            if info.header_offset + size > length:
                raise _cut(archive, name)
            yield Member(name, info.header_offset, size)


def _tar_members(
    archive: Path, file: BinaryIO, start: int, end: int, depth: int = 0
) -> Iterator[Member]:
    """The members between two bytes of a file.

    It reads headers alone: a hundred gigabytes take as long as their number of files. Every header
    moves on by at least its own block, so a header that lies about its size cannot make a loop.
    """
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
        size = 0 if kind in LINKS else None if kind in b"Lx" else long_size
        if size is None:
            size = _number(header[124:136])
        if size is None or size < 0:
            raise UserError(
                f"{archive} is damaged at byte {at}: the size of {name} is not a number of bytes"
            )
        at += BLOCK
        if at + size > end:
            raise _cut(archive, name)
        if kind in b"Lx":
            told = _note(archive, kind, number, at, size)
            long_name = told.get("path", long_name)
            # -1 is refused at the member itself, whose name is known by then.
            long_size = _whole(told["size"]) if "size" in told else long_size
        else:
            long_name = long_size = None
            if kind == b"5":
                yield Member(name, at, FOLDER)
            elif kind in LINKS:
                yield Member(name, at, LINK)
            elif kind in b"0\0" and name.endswith(".tar"):
                if depth == DEEPEST:
                    raise UserError(
                        f"{archive}: {name} lies in more than {DEEPEST} tar files within one "
                        "another: unpack them"
                    )
                for inner in _tar_members(archive, file, at, at + size, depth + 1):
                    yield inner._replace(name=f"{PurePosixPath(name).stem}/{inner.name}")
            elif kind in b"0\0":
                yield Member(name, at, size)
        at += -(-size // BLOCK) * BLOCK


def _note(archive: Path, kind: bytes, number: int, at: int, size: int) -> dict[str, str]:
    """What a long name or a pax header says about the next member."""
    if size > LONGEST_NOTE:
        raise UserError(f"{archive} is damaged at byte {at}: it has a name of {size:,} bytes")
    note = os.pread(number, size, at)
    try:
        return _pax(note) if kind == b"x" else {"path": _text(note)}
    except ValueError as error:
        raise UserError(f"{archive} is damaged at byte {at}: {error}") from error


def _is_header(header: bytes) -> bool:
    """Whether its sum is the one that is noted in it, which counts as blanks itself."""
    noted = header[148:156].strip(b" \0")
    if not re.fullmatch(rb"[0-7]+", noted):
        return False
    return sum(header) - sum(header[148:156]) + 8 * 32 == int(noted, 8)


def _number(field: bytes) -> int | None:
    """The number in a field of a header; None if there is none in it."""
    if field[0] & 0x80:  # not in octal digits, for which it is too large
        if field[0] not in (0x80, 0xFF):
            return None
        return int.from_bytes(field[1:], "big", signed=field[0] == 0xFF)
    digits = field.strip(b" \0")
    return int(digits or b"0", 8) if re.fullmatch(rb"[0-7]*", digits) else None


def _whole(text: str) -> int:
    """A number of bytes in a pax header; -1 if the text is none."""
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else -1


def _name(header: bytes) -> str:
    name = header[:100].rstrip(b"\0")
    if header[257:263] == b"ustar\0" and (folder := header[345:500].rstrip(b"\0")):
        name = folder + b"/" + name
    return _text(name)


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode(errors="surrogateescape")


def _pax(note: bytes) -> dict[str, str]:
    """The entries of a pax header: lines such as ``25 path=a/long/name.jpg``.

    Each line begins with the number of its bytes.

    Raises:
        ValueError: If a line is of another form, or its number is wrong.
    """
    found = {}
    while note:
        digits = note.partition(b" ")[0]
        length = int(digits) if re.fullmatch(rb"[0-9]{1,9}", digits) else 0
        if not len(digits) + 1 < length <= len(note):
            raise ValueError("its pax header is not a list of lines with their lengths")
        key, _, value = note[len(digits) + 1 : length].partition(b"=")
        found[key.decode(errors="replace")] = _text(value.rstrip(b"\n"))
        note = note[length:]
    return found


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _cut(archive: Path, name: str) -> UserError:
    return UserError(f"{archive} is cut off: it ends within {name}")
