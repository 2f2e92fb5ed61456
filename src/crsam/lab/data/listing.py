"""Which images there are, of which class, and where: in folders, or in archives of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data.broken import Broken
from crsam.lab.data.decoder import Source
from crsam.lab.data.remembered import remembered
from crsam.lab.data.shards import FOLDER, LINK, PACKED, SUFFIXES, Member
from crsam.progress import say

IMAGES = (
    ".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff",
)  # fmt: skip
"""How the names of images end, in any case."""


class Names(Sequence[str]):
    """Many names in little memory: ImageNet's are 38 MB instead of 130.

    Example:
        >>> Names(["ant/0.jpg", "bee/0.jpg"])[1]
        'bee/0.jpg'
    """

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._ends = torch.tensor([0, *accumulate(map(len, encoded))])
        self._text = b"".join(encoded)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> str:  # type: ignore[override]
        i = range(len(self))[i]
        start, end = self._ends[i : i + 2].tolist()
        return os.fsdecode(self._text[start:end])

    def __iter__(self) -> Iterator[str]:
        for start, end in pairwise(self._ends.tolist()):
            yield os.fsdecode(self._text[start:end])


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of a split, by class, and of a class by name."""

    holders: tuple[str, ...]
    """The folder, or the archives."""
    names: Names
    """Of each image, in its holder."""
    places: Tensor
    """Of shape (n, 3): the number of its holder, offset and size there; see `Source`."""
    classes: dict[str, int]
    """How many images each has."""
    broken: Broken = field(default_factory=Broken)
    """Those that could not be read, as they are found."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def labels(self) -> Tensor:
        return torch.repeat_interleave(torch.tensor(list(self.classes.values())))

    def sources(self, images: Tensor) -> list[Source]:
        """Where the bytes of some images are."""
        zipped = [holder.lower().endswith(".zip") for holder in self.holders]
        return [
            Source(f"{self.holders[number]}/{self.names[i]}")
            if offset < 0
            else Source(self.holders[number], offset, size, zipped[number])
            for i, (number, offset, size) in zip(images.tolist(), self.places[images].tolist())
        ]

    def name(self, i: int) -> str:
        """Of an image, for messages."""
        number, offset, _ = self.places[i].tolist()
        return f"{self.holders[number]}{'/' if offset < 0 else ':'}{self.names[i]}"


def find_split(root: Path, *names: str) -> Listing:
    """The images of ``root/NAME``, ``root/NAME*.tar`` or ``root/NAME*.zip``.

    Args:
        root: Holds the folder or the archives.
        names: Of the split; the first that is there counts.

    Raises:
        UserError: If there are none, or they are laid out otherwise.
    """
    for name in names:
        folder = root / name
        if folder.is_dir():
            inside = [] if any(e.is_dir() for e in visible(folder)) else _archives(folder, "")
            return list_archives(inside, named=True) if inside else list_folder(folder)
        if found := _archives(root, name) if root.is_dir() else []:
            return list_archives(found)
    first = names[0]
    if not root.is_dir():
        raise UserError(f"there is no folder {root}")
    packed = [p for p in root.glob(f"{first}*") if p.name.lower().endswith(PACKED)]
    if packed:
        raise UserError(f"{packed[0]} cannot be read in parts: make it a .tar or .zip file")
    ways = f"images are read from {root}/{first}/CLASS, {root}/{first}*.tar or {root}/{first}*.zip"
    if first == "train":
        ways += f", or from {root}/CLASS, two classes or more"
    others = f" (or {', '.join(names[1:])} in place of {first})" if names[1:] else ""
    raise UserError(f"there is no folder {root / first}: {ways}{others}")


def holds_classes(folder: Path) -> bool:
    """Whether it holds folders of classes, two or more, and no splits.

    Splits are folders or archives called train, val or test. Of these, train alone may be a class:
    there are pictures of trains.
    """
    if not folder.is_dir():
        return False
    entries = list(visible(folder))
    packed = [e.name for e in entries if e.name.lower().endswith((*SUFFIXES, *PACKED))]
    if any(re.match(r"(train|val|test)(?![a-z])", name, re.IGNORECASE) for name in packed):
        return False
    inside = {entry.name: entry for entry in entries if entry.is_dir()}
    if "val" in inside or "test" in inside:
        return False
    if "train" in inside and not _is_class(inside["train"]):
        return False
    return sum(map(_is_class, inside.values())) >= 2


def _is_class(folder: os.DirEntry[str]) -> bool:
    """Whether there are images right in it, and no further folders."""
    entries = list(visible(folder))
    return any(is_image(e.name) for e in entries) and not any(e.is_dir() for e in entries)


def list_folder(folder: Path) -> Listing:
    """The images of ``folder/CLASS``.

    Hidden files and files that are no images by their suffix are ignored; a folder in a class's
    folder, or an image outside of one, is refused, for it means another layout.
    """
    classes: dict[str, int] = {}
    names: list[str] = []
    others: list[str] = []
    for entry in visible(folder):
        if entry.is_dir():
            found, left_out = _files_of_class(entry)
            classes[entry.name] = len(found)
            names += found
            others += left_out
        elif is_image(entry.name):
            raise UserError(f"{entry.path} must lie in the folder of its class, {folder}/CLASS")
    if not classes:
        raise UserError(f"{folder} has no folders of classes: there are no images")
    tell_left_out(folder, others)
    nowhere = torch.tensor([0, -1, 0]).expand(len(names), 3)
    return Listing((str(folder),), Names(names), nowhere, classes)


def list_archives(archives: Sequence[Path], named: bool = False) -> Listing:
    """The images of ``CLASS/NAME`` in archives, or of ``ANY/CLASS/NAME``.

    Args:
        archives: Tar and zip files.
        named: Whether images that lie in no folder are of the class that their archive is named
            for, as in ``train/n01440764.tar``.
    """
    found: list[tuple[str, str, int, Member]] = []
    depth = 0
    folders: set[tuple[str, ...]] = set()
    others: list[str] = []
    for number, archive in enumerate(archives):
        for member in remembered(archive):
            parts = tuple(part for part in member.name.split("/") if part not in (".", ""))
            if any(part.startswith((".", "__MACOSX")) for part in parts):
                continue
            if member.size == FOLDER:
                folders.add(parts)
            elif is_image(member.name):
                if member.size == LINK:
                    raise UserError(
                        f"{archive}: {member.name} is a link: pack the images themselves"
                    )
                inside = (archive.stem, *parts) if named and len(parts) == 1 else parts
                if len(inside) not in (2, 3):
                    raise UserError(
                        f"{archive}: {member.name} must be CLASS/NAME, with at most one folder "
                        "before it"
                    )
                found.append((sys.intern(inside[-2]), inside[-1], number, member))
                depth = len(parts) - 1
            else:
                others.append(member.name)
    where = archives[0].parent if len(archives) > 1 else archives[0]
    if not found:
        raise UserError(f"{where} holds no images ({_suffixes()})")
    tell_left_out(where, others)
    found.sort(key=lambda image: image[:2])
    _check_unique(archives, found)
    classes: dict[str, int] = {}
    for name, *_ in found:
        classes[name] = classes.get(name, 0) + 1
    if empty := sorted({parts[-1] for parts in folders if len(parts) == depth} - set(classes)):
        raise UserError(f"{where}: {empty[0]} holds no images ({_suffixes()})")
    return Listing(
        tuple(str(archive) for archive in archives),
        Names([member.name for *_, member in found]),
        torch.tensor([(number, member.offset, member.size) for _, _, number, member in found]),
        classes,
    )


def is_image(name: str) -> bool:
    """By its suffix."""
    return name.lower().endswith(IMAGES)


def tell_left_out(where: Path, names: Sequence[str]) -> None:
    """Says that there are files which are no images by their names, if there are."""
    if names and os.environ.get("RANK", "0") == "0":
        files = "1 file is" if len(names) == 1 else f"{len(names)} files are"
        say(f"{where}: {files} left out, such as {names[0]}: images end in {_suffixes()}")


def _archives(folder: Path, start: str) -> list[Path]:
    """``start.tar``, ``start-0001.tar``, ``start_a.zip`` and so on, but not ``started.tar``."""
    found = []
    for entry in visible(folder):
        rest = entry.name.removeprefix(start)
        mine = entry.name.startswith(start) and not (start and rest[:1].isalpha())
        if mine and entry.name.lower().endswith(SUFFIXES) and entry.is_file():
            found.append(Path(entry.path))
    return found


def _check_unique(archives: Sequence[Path], found: list[tuple[str, str, int, Member]]) -> None:
    for a, b in pairwise(found):
        if a[:2] == b[:2]:
            places = " and ".join(str(archives[image[2]]) for image in (a, b))
            raise UserError(f"the image {PurePosixPath(*a[:2])} is there twice: in {places}")


def _files_of_class(folder: os.DirEntry[str]) -> tuple[list[str], list[str]]:
    """The images, and the files that are none by their names."""
    names, others = [], []
    for entry in visible(folder):
        if entry.is_dir():
            raise UserError(
                f"{entry.path} is a folder in the folder of a class: images must lie right in "
                f"{folder.path}"
            )
        if is_image(entry.name):
            names.append(f"{folder.name}/{entry.name}")
        else:
            others.append(f"{folder.name}/{entry.name}")
    if not names:
        raise UserError(f"{folder.path} holds no images ({_suffixes()})")
    return names, others


def visible(folder: Path | os.DirEntry[str]) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, by name: the order of a file system is its own."""
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(f"cannot read {os.fspath(folder)}: {error.strerror}") from error
    yield from sorted(shown, key=lambda entry: entry.name)


def _suffixes() -> str:
    return " ".join(suffix[1:] for suffix in IMAGES)
