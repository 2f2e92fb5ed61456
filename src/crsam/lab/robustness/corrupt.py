"""One image, corrupted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from crsam.errors import UserError, unknown
from crsam.lab.robustness import blur, digital, noise, weather
from crsam.lab.robustness.constants import NAMES, SETS, SEVERITIES
from crsam.lab.robustness.frost import Panes, grown
from crsam.lab.robustness.sampling import Bytes

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: vars(room)[name] for room in (noise, blur, weather, digital) for name in NAMES
    if name in vars(room)
}  # fmt: skip

ON_BYTES = ("pixelate", "jpeg_compression")
"""Those that Pillow does; the others are given, and return, values between 0 and 1."""
LEAST_SIDE = 2
"""Of an image, in pixels: there is nothing to blur or to stretch in less."""


def corruptions() -> list[str]:
    """The fifteen, in the order in which tables have them.

    Example:
        >>> corruptions()[:4]
        ['gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur']
    """
    return list(NAMES)


def corrupt(
    image: Bytes,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    key: str = "",
    constants: Literal["imagenet", "cifar"] = "imagenet",
    panes: Panes | None = None,
) -> Bytes:
    """An image as ImageNet-C or CIFAR-10-C has it, with random numbers of its own.

    Args:
        image: Bytes of shape (H, W, 3), of any size from 2 × 2 pixels on.
        name: One of `corruptions`.
        severity: 1 to 5.
        seed: Of all that is random.
        key: What tells this image from others; the same key, seed, name and severity give the
            same bytes, whatever was corrupted before.
        constants: Those of ImageNet-C, or of CIFAR-10-C, which are for images of 32 pixels.
        panes: Of frost; None: our own, see `crsam.lab.robustness.frost`.

    Returns:
        Bytes of the same shape.

    Raises:
        UserError: If there is no such corruption or severity, or this is no such image.

    Example:
        >>> image = np.full((32, 32, 3), 128, np.uint8)
        >>> corrupt(image, "brightness", severity=1).max()
        np.uint8(153)
    """
    check_asked([name], [severity])
    is_image = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    if not is_image or min(image.shape[:2]) < LEAST_SIDE:
        raise UserError(
            f"an image must be bytes of shape (H, W, 3), of {LEAST_SIDE} × {LEAST_SIDE} pixels or "
            f"more, got {image.dtype} of {image.shape}"
        )
    digest = hashlib.blake2b(repr((seed, name, severity, key)).encode(), digest_size=16).digest()
    draws = np.random.default_rng(int.from_bytes(digest, "big"))
    function = FUNCTIONS[name]
    if name == "frost":
        function = partial(function, panes=grown() if panes is None else panes)
    row = SETS[constants][name][severity - 1]
    if name in ON_BYTES:
        return function(image, draws, *row)
    floats = image.astype(np.float32) / np.float32(255)
    found = 255 * function(floats, draws, *row)
    # The published sets cut off what is behind the point. The thousandth is for values that are
    # whole but for float32.
    return np.clip(found + np.float32(1e-3), 0, 255).astype(np.uint8)


def check_asked(names: list[str], severities: list[int]) -> None:
    """Raises UserError for a corruption or severity that there is not."""
    for name in names:
        if name not in NAMES:
            raise unknown("corruption", name, NAMES)
    for severity in severities:
        if severity not in SEVERITIES:
            raise UserError(f"severity must be a whole number from 1 to 5, got {severity!r}")
