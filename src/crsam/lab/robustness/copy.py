"""A corrupted copy of whatever lies in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from crsam.errors import UserError
from crsam.lab.data.cifar import CIFAR10, CIFAR100, Layout, read_cifar
from crsam.lab.robustness.constants import NAMES, SEVERITIES
from crsam.lab.robustness.copy_arrays import corrupt_arrays
from crsam.lab.robustness.copy_folder import corrupt_folder
from crsam.lab.robustness.settings import Copied, Settings


def corrupt_set(
    source: Path,
    dest: Path,
    settings: Settings | None = None,
    *,
    names: Sequence[str] = NAMES,
    severities: Sequence[int] = SEVERITIES,
    images_per_class: int | None = None,
    workers: int | None = None,
) -> Copied:
    """Corrupts the test set of CIFAR-10 or CIFAR-100, or a folder of images.

    Args:
        source: Holds the official files of one of the two, or folders: see `corrupt_folder`.
        dest: The folder to write to, in the layout of CIFAR-10-C or of ImageNet-C.
        settings: See `Settings`.
        names: The corruptions.
        severities: Of each; CIFAR's files always have all five.
        images_per_class: The first so many; None: all.
        workers: Processes; None: one for each core, or none for less than 1,000 images.

    Raises:
        UserError: If there are no images, or what is there does not fit.
    """
    layout = _cifar_in(source)
    if layout is None:
        return corrupt_folder(
            source,
            dest,
            settings,
            names=names,
            severities=severities,
            images_per_class=images_per_class,
            workers=workers,
        )
    if tuple(severities) != SEVERITIES:
        raise UserError(
            f"the files of {layout.title}-C hold all five severities: they cannot be just "
            f"{', '.join(map(str, severities))}"
        )
    settings = settings or Settings()
    if settings.crop is not None:
        raise UserError(
            f"crop = {settings.crop} makes no sense for {layout.title}, only for folders"
        )
    test = read_cifar(layout, source).test
    labels = test.labels.numpy()
    if images_per_class is not None:
        chosen = [np.flatnonzero(labels == label)[:images_per_class] for label in np.unique(labels)]
        kept = np.sort(np.concatenate(chosen))
    else:
        kept = np.arange(len(labels))
    pixels = test.fetch(torch.from_numpy(kept))
    images = np.ascontiguousarray(pixels.numpy().transpose(0, 2, 3, 1))
    mine = replace(settings, constants=settings.constants or "cifar")
    return corrupt_arrays(images, labels[kept], dest, mine, names=names, workers=workers)


def _cifar_in(source: Path) -> Layout | None:
    for layout in (CIFAR10, CIFAR100):
        places = (source, source / layout.archive.folder)
        if any((folder / layout.test).is_file() for folder in places):
            return layout
    return None
