"""How sets of images lie on the disk: classes in folders, corruptions of them, CIFAR's arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crsam.errors import UserError
from crsam.lab.data.listing import is_image, tell_left_out, visible
from crsam.lab.robustness.constants import NAMES, SEVERITIES
from crsam.lab.robustness.settings import expected

Cell = tuple[str, int]
"""A corruption and its severity."""
Files = dict[str, list[str]]
"""The files of each class, by its name; both in order."""


def files_by_class(folder: Path) -> Files:
    """The images of ``folder/CLASS/*``; classes without any are left out.

    Raises:
        UserError: If there are none at all.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    found = _files(folder)
    if not found:
        raise UserError(
            f"{folder} holds no images: they are looked for in {folder}/CLASS, not in archives"
        )
    return found


def _files(folder: Path) -> Files:
    found, others = {}, []
    for each in [entry for entry in visible(folder) if entry.is_dir()]:
        inside = [entry for entry in visible(each) if not entry.is_dir()]
        found[each.name] = [entry.path for entry in inside if _is_image(entry)]
        others += [f"{each.name}/{entry.name}" for entry in inside if not _is_image(entry)]
    found = {name: files for name, files in found.items() if files}
    if found:
        tell_left_out(folder, others)
    return found


def _is_image(entry: os.DirEntry[str]) -> bool:
    return is_image(entry.name) and entry.is_file()


@dataclass(frozen=True)
class CorruptedFolder:
    """``root/CORRUPTION/SEVERITY/CLASS/*``, as ImageNet-C is unpacked."""

    root: Path
    cells: dict[Cell, Files]
    """Those that are whole."""
    missing: tuple[str, ...]
    """What is not: ``"fog"``, ``"fog/3"`` or ``"fog/3 (7 of 10 images)"``."""
    num_images: int
    """Of a cell."""


def find_corrupted(root: Path) -> CorruptedFolder:
    """The cells of ImageNet-C, or of a set like it, and the names of those that are missing.

    Corruptions may lie in folders of their kind, such as ``root/noise/gaussian_noise``, as the
    archives of ImageNet-C are sometimes unpacked. A cell with fewer images than others counts as
    missing: a copy that was broken off has such.

    Raises:
        UserError: If no corruption is there.
    """
    if not root.is_dir():
        raise UserError(f"there is no folder {root}")
    cells: dict[Cell, Files] = {}
    missing: list[str] = []
    for name in NAMES:
        folder = next(
            (f for f in (root / name, *sorted(root.glob(f"*/{name}"))) if f.is_dir()), None
        )
        if folder is None:
            missing.append(name)
            continue
        for severity in SEVERITIES:
            place = folder / str(severity)
            if place.is_dir() and (files := _files(place)):
                cells[name, severity] = files
            else:
                missing.append(f"{name}/{severity}")
    counts = {cell: sum(map(len, files.values())) for cell, files in cells.items()}
    if not counts:
        raise UserError(
            f"{root} holds no corrupted images: they are looked for in "
            f"{root}/CORRUPTION/SEVERITY/CLASS, such as {root}/{NAMES[0]}/1/CLASS"
        )
    most = max(*counts.values(), expected(root))
    for (name, severity), count in counts.items():
        if count < most:
            del cells[name, severity]
            missing.append(f"{name}/{severity} ({count:,} of {most:,} images)")
    if not cells:
        raise UserError(
            f"{root} was broken off at {max(counts.values()):,} of {most:,} images: corrupt goes "
            "on with it, given the same options"
        )
    return CorruptedFolder(root, cells, tuple(missing), most)


@dataclass(frozen=True)
class CorruptedArrays:
    """``root/CORRUPTION.npy`` and ``root/labels.npy``, as CIFAR-10-C is unpacked."""

    root: Path
    cells: dict[Cell, npt.NDArray[np.uint8]]
    """Bytes of shape (N, H, W, 3), read when they are looked at."""
    labels: npt.NDArray[np.int64]
    """Of one severity."""
    missing: tuple[str, ...]


def find_arrays(root: Path) -> CorruptedArrays:
    """The corruptions of CIFAR-10-C, or of a set like it, and the names of those missing.

    Raises:
        UserError: If there are none, or a file is not what it should be.
    """
    if not (root / "labels.npy").is_file():
        raise UserError(f"{root} holds no labels.npy: it is not in the layout of CIFAR-10-C")
    labels = array_in(root / "labels.npy").astype(np.int64)
    if labels.ndim != 1 or not len(labels) or len(labels) % len(SEVERITIES):
        raise UserError(
            f"{root / 'labels.npy'} must hold the labels of five severities, one after the other, "
            f"got an array of shape {labels.shape}"
        )
    each = len(labels) // len(SEVERITIES)
    if not (labels.reshape(len(SEVERITIES), each) == labels[:each]).all():
        raise UserError(f"{root / 'labels.npy'} has other labels for one severity than for another")
    cells: dict[Cell, npt.NDArray[np.uint8]] = {}
    missing = [name for name in NAMES if not (root / f"{name}.npy").is_file()]
    for name in NAMES:
        if name not in missing:
            images = array_in(root / f"{name}.npy")
            fits = images.ndim == 4 and len(images) == len(labels) and images.shape[3] == 3
            if images.dtype != np.uint8 or not fits:
                raise UserError(
                    f"{root / name}.npy must hold bytes of shape ({len(labels)}, H, W, 3), got "
                    f"{images.dtype} of {images.shape}"
                )
            for severity in SEVERITIES:
                cells[name, severity] = images[(severity - 1) * each : severity * each]
    if not cells:
        raise UserError(f"{root} holds no corruption, such as {NAMES[0]}.npy")
    return CorruptedArrays(root, cells, labels[:each], tuple(missing))


def array_in(file: Path) -> npt.NDArray[Any]:
    """The array in an ``.npy`` file, read when it is looked at.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        found: npt.NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        return found
    except Exception as error:  # of a header that lies, numpy may raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{file} cannot be read: {reason}") from error
