"""Official archives over HTTP: resumed where they broke off, checked, unpacked all or nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from crsam.errors import UserError
from crsam.progress import bar

BLOCK = 1 << 18
"""Bytes read at a time."""
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

FINAL = set(range(400, 500)) - {408, 429}
"""Answers that another try does not change; the two left out mean: later."""


@dataclass(frozen=True)
class Archive:
    """A ``.tar.gz`` that holds the files of a set in one folder."""

    address: str
    md5: str
    """Of the archive, in hexadecimal. Guards against broken transfers; HTTPS against the rest."""
    folder: str
    files: tuple[str, ...]
    """What to take from the folder; anything else in the archive is left there."""

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]


def obtain(archive: Archive, root: Path, *, waits: Sequence[float] = (1.0, 2.0, 4.0)) -> Path:
    """Fetches an archive and unpacks it into a folder of `root`.

    What has come before the connection broke stays in `root`, as a file that ends in ``.part``,
    and is not fetched again. An archive that lies in `root` already is used, and left there. Of
    several processes that ask at once, one fetches and the others wait for it.

    Args:
        archive: What to fetch.
        root: Where to; made if it is not there.
        waits: Seconds before each new try. After so many tries in a row without a new byte, it
            gives up.

    Returns:
        The folder. It appears with all its files in it, or not at all.

    Raises:
        UserError: If the archive cannot be had, or is not the right one; says how to go on by hand.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone_in(root):
            if not (root / archive.folder).is_dir():  # or another process was faster
                _fetch_and_unpack(archive, root, waits)
    except OSError as error:
        raise UserError(f"{root} cannot take the files of {archive.name}: {error}") from None
    return root / archive.folder


def _fetch_and_unpack(archive: Archive, root: Path, waits: Sequence[float]) -> None:
    by_hand, part = root / archive.name, root / f"{archive.name}.part"
    if by_hand.is_file():
        if (got := _md5(by_hand)) != archive.md5:
            raise UserError(
                f"{by_hand} is not the archive from {archive.address}: its md5 is {got}, not "
                f"{archive.md5}; delete it"
            )
        _unpack(archive, by_hand, root)
    else:
        _fetch_checked(archive, part, waits)
        _unpack(archive, part, root)
        part.unlink()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lets one process at a time in; the lock goes with its process, however that ends."""
    try:
        import fcntl
    except ImportError:  # Windows, where training on several processes of a machine is rare
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _fetch_checked(archive: Archive, part: Path, waits: Sequence[float]) -> None:
    """Completes `part`; what was there of it may be of another file, then all is fetched anew."""
    while True:
        fresh = not part.exists()
        if not fresh and _md5(part) == archive.md5:
            return
        _fetch(archive, part, waits)
        if (got := _md5(part)) == archive.md5:
            return
        part.unlink()
        if fresh:
            raise UserError(
                f"{archive.address} gave a file with the md5 {got}, not {archive.md5}: something "
                f"on the way changes it; {_by_hand(archive, part)}"
            )


def _fetch(archive: Archive, part: Path, waits: Sequence[float]) -> None:
    longest, failures = _size(part), 0
    while True:
        try:
            _fetch_rest(archive, part)
            return
        except (OSError, HTTPException) as error:  # urllib's own errors are OSErrors
            final = isinstance(error, HTTPError) and error.code in FINAL
            # A server that starts over each time and breaks off each time makes no progress.
            failures = 0 if _size(part) > longest else failures + 1
            longest = max(longest, _size(part))
            if final or failures > len(waits):
                reason = " ".join(str(error).split()) or type(error).__name__
                raise UserError(
                    f"{archive.address} could not be fetched ({reason}): {_by_hand(archive, part)}"
                ) from None
        time.sleep(waits[max(failures - 1, 0)] if waits else 0)


def _fetch_rest(archive: Archive, part: Path) -> None:
    """One try to append to `part` what it lacks."""
    have = _size(part)
    request = Request(archive.address, headers={"User-Agent": "crsam"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response: HTTPResponse = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        with error:  # it holds the connection
            if error.code == 416 and have:  # no bytes there: nothing is lacking
                return
            raise
    with response:
        if response.status != 206:  # the server knows no ranges: this is all of it
            have = 0
        length = response.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        with (
            part.open("ab" if have else "wb") as file,
            bar(f"fetching {archive.name}", total or 0, done=have) as advance,
        ):
            while block := response.read1(BLOCK):  # what there is, so that a stall loses nothing
                file.write(block)
                advance(len(block))
    # A response that is read in blocks ends early without an error.
    if total is not None and _size(part) != total:
        raise ConnectionError(f"the connection broke off after {_size(part)} of {total} bytes")


def _unpack(archive: Archive, packed: Path, root: Path) -> None:
    """Takes the expected files, by names of our own, and moves their folder into place at last."""
    wanted = {f"{archive.folder}/{name}": name for name in archive.files}
    with (
        TemporaryDirectory(dir=root, prefix=".unpacking-") as beside,
        tarfile.open(packed, "r:gz") as tar,
        bar(f"unpacking {archive.name}", len(wanted)) as advance,
    ):
        folder = Path(beside) / archive.folder
        folder.mkdir()
        for member in tar:
            source = tar.extractfile(member) if member.isreg() and member.name in wanted else None
            if source is not None:
                with source, (folder / wanted.pop(member.name)).open("wb") as file:
                    shutil.copyfileobj(source, file)
                advance()
        if wanted:
            raise UserError(f"{packed} lacks {', '.join(wanted)}: delete it and fetch it again")
        folder.rename(root / archive.folder)


def _by_hand(archive: Archive, part: Path) -> str:
    return f"fetch it by hand, put it into {part.parent} as {archive.name} and run this again"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
