"""Reads files of `torch.save`, and finds every flipped bit that would change a value.

Such a file is a zip archive with a CRC-32 of each member. `torch.load` does not check it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from crsam.errors import UserError

_ZIP = b"PK\3\4"
_LONG = 0xFFFFFFFF
"""Stands for a number of more than 32 bits, which is written elsewhere."""
_HEADER = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_SMALL = 1 << 16
"""Members of at most so many bytes are checked before torch reads anything."""
_BLOCK = 1 << 20


class Damaged(UserError):
    """The bytes of a file are not those that were written to it."""


class _Member(NamedTuple):
    name: str
    begin: int
    size: int
    crc: int


def read(path: Path, device: torch.device | str = "cpu", *, legacy: bool = False) -> Any:
    """Reads a file of `torch.save` and checks all of its checksums. Nothing in it is run.

    The checksums of large tensors are computed by two threads, one of which also lets torch read
    the file. Everything else, such as the pickle that names the tensors, is checked before.

    On the CPU, the tensors of a file with a large one lie in a private mapping of the file: nothing
    is copied before the caller copies. Whoever keeps such a tensor should copy it. Our own files
    are replaced by renaming, which leaves a mapping whole. A program that cuts the file off in
    place would end every process that still reads the mapping.

    Args:
        path: The file.
        device: Where the tensors go.
        legacy: Also read the format of torch before 1.6, which has no checksums.

    Raises:
        UserError: If the file cannot be opened.
        Damaged: If it was cut off, or a checksum does not match.
        Exception: What `torch.load` raises for a whole file that it refuses.
    """
    try:
        if path.is_fifo():  # opening it would wait for a writer
            raise UserError(f"cannot read {path}: it is a pipe")
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    with file:  # torch reads from it too, for a training may put another file at this path
        number = file.fileno()
        begin = os.pread(number, len(_ZIP), 0)
        if begin != _ZIP:
            if legacy and begin:
                return torch.load(file, map_location=device, weights_only=True)
            what = "it does not begin like a file of torch.save" if begin else "it is empty"
            raise Damaged(f"{path} is damaged: {what}")
        members = _members(path, number)
        _check(path, number, [each for each in members if each.size <= _SMALL])
        large = sorted((m for m in members if m.size > _SMALL), key=lambda m: m.size)
        maps = bool(large) and torch.device(device).type == "cpu"
        with ThreadPoolExecutor(1) as second:
            checked = second.submit(_check_all, path, number, large)
            try:
                return _mapped(file) if maps else _loaded(file, device)
            finally:
                _check_all(path, number, large)
                checked.result()  # damage explains whatever torch has raised


def _loaded(file: BinaryIO, device: torch.device | str) -> Any:
    return torch.load(file, map_location=device, weights_only=True)


def _mapped(file: BinaryIO) -> Any:
    """Reads the open file by its number, because its path may be another file's by now."""
    name = f"/dev/fd/{file.fileno()}"
    try:
        return torch.load(name, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError):  # not every file system has mappings
        file.seek(0)
        return _loaded(file, "cpu")


def _members(path: Path, file: int) -> list[_Member]:
    """Returns where the bytes of each member lie; none for a file without checksums.

    torch trusts the directory of the archive. One flipped bit there can make a tensor a folder,
    and torch then returns memory that nobody has written to. So every field must be what
    `torch.save` writes there, or must agree with another one.

    Raises:
        Damaged: If one of them does not.
    """
    try:
        members = list(_listed(file))
    except (ValueError, OverflowError, struct.error) as error:
        raise Damaged(
            f"{path} is damaged (it was cut off, or its zip directory is broken), or torch.save "
            "did not write it"
        ) from error
    # torch.serialization.set_crc32_options(False) makes torch.save write 0 for each.
    return members if any(each.crc for each in members) else []


def _listed(file: int) -> Iterator[_Member]:
    end = os.fstat(file).st_size - (_END64.size + _LOCATOR.size + _END.size)
    tail = os.pread(file, os.fstat(file).st_size, max(end, 0))
    _, _, made, needed, _, _, count, _, length, begin = _END64.unpack_from(tail)
    short = min(count, 0xFFFF), min(count, 0xFFFF), min(length, _LONG), min(begin, _LONG)
    _agree(begin + length, end)
    _agree(
        tail,
        _END64.pack(b"PK\6\6", 44, made, needed, 0, 0, count, count, length, begin)
        + _LOCATOR.pack(b"PK\6\7", 0, end, 1)
        + _END.pack(b"PK\5\6", 0, 0, *short, 0),
    )
    directory = BytesIO(os.pread(file, length, begin))
    for _ in range(count):
        yield _member(file, directory)
    _agree(directory.read(), b"")


def _member(file: int, directory: BytesIO) -> _Member:
    """Reads the next entry of the directory, and the header in front of the member's bytes."""
    magic, _, *kind, crc, packed, size, num, extra, comment, disk, internal, external, place = (
        _ENTRY.unpack(directory.read(_ENTRY.size))
    )
    name, wide = directory.read(num), directory.read(extra)
    numbers = [size, packed, place]
    num_long = numbers.count(_LONG)
    _agree((extra, len(wide)), (4 + 8 * num_long if num_long else 0, extra))
    if num_long:
        long = iter(struct.unpack_from(f"<{num_long}Q", wide, 4))
        size, packed, place = (next(long) if each == _LONG else each for each in numbers)
    header = os.pread(file, _HEADER.size + num, place)
    magic_there, *kind_there, _, _, _, num_there, gap = _HEADER.unpack_from(header)
    _agree((magic, magic_there), (b"PK\1\2", b"PK\3\4"))
    _agree((kind, num, name), (kind_there, num_there, header[_HEADER.size :]))
    stored = kind[2] == 0  # not compressed
    _agree((stored, packed, comment, disk, internal, external), (True, size, 0, 0, 0, 0))
    return _Member(name.decode(), place + len(header) + gap, size, crc)


def _agree(one: object, other: object) -> None:
    if one != other:
        raise ValueError(one, other)


def _check_all(path: Path, file: int, members: list[_Member]) -> None:
    """Checks and removes the last member until there is none. Several threads share the list."""
    with suppress(IndexError):
        while True:
            _check(path, file, [members.pop()])


def _check(path: Path, file: int, members: list[_Member]) -> None:
    for name, begin, size, crc in members:
        found, at = 0, begin
        try:
            while block := os.pread(file, min(_BLOCK, begin + size - at), at):
                found = zlib.crc32(block, found)
                at += len(block)
        except OSError as error:
            raise Damaged(f"{path} is damaged: {error.strerror}") from error
        if at < begin + size or found != crc:
            part = name.partition("/")[2]
            raise Damaged(f"{path} is damaged: the checksum of {part} in it does not match")
