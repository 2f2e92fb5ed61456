"""What decides the bytes of a corrupted copy, and that a folder holds one copy only."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from crsam._files import read_json, write
from crsam.errors import UserError
from crsam.lab.robustness.corrupt import corrupt
from crsam.lab.robustness.frost import Panes, grown, photographs
from crsam.lab.robustness.sampling import Bytes

SETTINGS_FILE = "corrupt.json"


@dataclass(frozen=True)
class Settings:
    """All that decides the bytes of a copy; they are kept in it, as ``corrupt.json``."""

    seed: int = 0
    constants: Literal["imagenet", "cifar"] | None = None
    """None: those of CIFAR-10-C for CIFAR, else those of ImageNet-C."""
    format: Literal["jpeg", "png"] = "jpeg"
    quality: int = 85
    """Of JPEG files; ImageNet-C has 85."""
    crop: int | None = None
    """Side of the middle that is cut out, after the shorter side is scaled to 8/7 of it."""
    frost: str | None = None
    """A folder of photographs of frost; None: panes of our own."""

    def __post_init__(self) -> None:
        if self.format not in ("jpeg", "png"):
            raise UserError(f"format must be jpeg or png, got {self.format!r}")
        if not 1 <= self.quality <= 100:
            raise UserError(f"quality must be between 1 and 100, got {self.quality}")
        if self.crop is not None and self.crop < 1:
            raise UserError(f"crop must be at least 1, got {self.crop}")

    def check_frost(self, names: Sequence[str]) -> None:
        """Raises UserError if frost is asked for and there are no photographs of it."""
        if "frost" in names:
            _panes(self.frost)

    def corrupted(self, image: Bytes, name: str, severity: int, key: str) -> Bytes:
        """See `crsam.lab.robustness.corrupt`."""
        return corrupt(
            image,
            name,
            severity,
            seed=self.seed,
            key=key,
            constants=self.constants or "imagenet",
            panes=_panes(self.frost) if name == "frost" else None,
        )


@dataclass(frozen=True)
class Copied:
    """What came of a copy."""

    written: int
    """Images, each corruption and severity counted."""
    there: int
    """Images that were there already."""
    unreadable: tuple[str, ...] = field(default=())
    """Files that are no images, which were left out."""


def begin(dest: Path, settings: Settings, source: Path | None = None, images: int = 0) -> None:
    """Makes the folder a copy with these settings, or goes on with one that is.

    Args:
        dest: The folder.
        settings: Of the copy.
        source: Of what it is a copy; None: its labels tell.
        images: How many it will have of each corruption and severity, where these are files.

    Raises:
        UserError: If it holds a copy of other settings, or something else.
    """
    file, mine = dest / SETTINGS_FILE, asdict(settings)
    if source is not None:
        mine["source"] = str(source.resolve())
    there = read_json(file)
    if there is not None:
        other = [
            f"{key} {there.get(key)!r} there, {value!r} here"
            for key, value in mine.items()
            if there.get(key) != value
        ]
        if other:
            raise UserError(
                f"{dest} holds a copy of other settings ({'; '.join(other)}): give another folder"
            )
        expect(dest, images)
        return
    if dest.is_dir() and any(dest.iterdir()):
        raise UserError(f"{dest} is not empty, and was not made by crsam corrupt")
    dest.mkdir(parents=True, exist_ok=True)
    write(file, (json.dumps({**mine, "images": images}, indent=1) + "\n").encode())


def expect(dest: Path, images: int) -> None:
    """Writes down how many images the copy has of each corruption and severity, once it is whole.

    With less than these, it has been broken off.
    """
    file = dest / SETTINGS_FILE
    known = read_json(file) or {}
    if known.get("images") != images:
        write(file, (json.dumps({**known, "images": images}, indent=1) + "\n").encode())


def expected(folder: Path) -> int:
    """That number; 0 for sets that are not our copies."""
    images: int = (read_json(folder / SETTINGS_FILE) or {}).get("images", 0)
    return images


def is_whole(folder: Path) -> bool:
    """Whether this is a copy, made by us, of images of which nothing was cut off."""
    known = read_json(folder / SETTINGS_FILE)
    return known is not None and known.get("crop") is None


@functools.lru_cache(maxsize=1)
def _panes(folder: str | None) -> Panes:
    return grown() if folder is None else photographs(Path(folder))
