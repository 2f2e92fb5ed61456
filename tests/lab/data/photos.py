"""Small sets of photographs, in folders and in archives, that the tests of this room share."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("Bee", "ant", "cat")


def photo(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """Smooth colours, as JPEG keeps them, each image with its own."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin((seed + 1) * (i + 1) + x / (5 + i) + y / 9) for i in range(3)]
    return Image.fromarray((127 + 120 * np.stack(waves, -1)).astype(np.uint8))


def write_photos(root: Path, train: int = 4, val: int = 2, suffix: str = "jpg") -> Path:
    """So many photographs of each of three classes, of several sizes."""
    seed = 0
    for half, count in (("train", train), ("val", val)):
        for name in CLASSES:
            (root / half / name).mkdir(parents=True)
            for i in range(count):
                seed += 1
                image = photo(seed, 40 + 7 * (seed % 3), 30 + 5 * (seed % 4))
                image.save(root / half / name / f"{i}.{suffix}")
    return root


def tarred(
    folder: Path,
    target: Path,
    above: str = "",
    style: int = tarfile.PAX_FORMAT,
    folders: bool = False,
) -> Path:
    """The files of a folder, the last ones first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w", format=style) as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            if file.is_file() or folders:
                archive.add(file, above + file.relative_to(folder).as_posix(), recursive=False)
    return target


def zipped(folder: Path, target: Path, above: str = "", method: int = zipfile.ZIP_STORED) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", method) as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            if file.is_file():
                archive.write(file, above + file.relative_to(folder).as_posix())
    return target


def tar_of_tars(folder: Path, target: Path) -> Path:
    """As the official archive of ImageNet's training images: a tar file for each class in it."""
    with tarfile.open(target, "w") as outer:
        for place in sorted(folder.iterdir()):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as inner:
                for file in sorted(place.iterdir()):
                    inner.add(file, file.name)
            info = tarfile.TarInfo(f"{place.name}.tar")
            info.size = buffer.tell()
            buffer.seek(0)
            outer.addfile(info, buffer)
    return target
