"""What decides the bytes of a corrupted copy, and that a folder holds one copy only."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from crsam.errors import UserError
from crsam.robust.corrupt import corrupt
from crsam.robust.frost import Panes, grown, photographs
from crsam.robust.sampling import Bytes
from crsam.train.checkpoint import write

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

    def corrupted(self, image: Bytes, name: str, severity: int, key: str) -> Bytes:
        """See `crsam.robust.corrupt`."""
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


def begin(dest: Path, settings: Settings) -> None:
    """Makes the folder one of these settings', or goes on with one that is.

    Raises:
        UserError: If it holds a copy of other settings, or something else.
    """
    file, mine = dest / SETTINGS_FILE, asdict(settings)
    if file.is_file():
        there = json.loads(file.read_text())
        other = [
            f"{key} {there.get(key)!r} there, {value!r} here"
            for key, value in mine.items()
            if there.get(key) != value
        ]
        if other:
            raise UserError(
                f"{dest} holds a copy of other settings ({'; '.join(other)}): give another folder"
            )
        return
    if dest.is_dir() and any(dest.iterdir()):
        raise UserError(f"{dest} is not empty, and was not made by crsam corrupt")
    dest.mkdir(parents=True, exist_ok=True)
    write(file, (json.dumps(mine, indent=1) + "\n").encode())


@functools.lru_cache(maxsize=1)
def _panes(folder: str | None) -> Panes:
    return grown() if folder is None else photographs(Path(folder))
