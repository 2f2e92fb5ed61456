"""What all augmentations share: their type, their checks, and constants that stay on the device."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

Draws = tuple[Any, ...]
"""Tensors of shape (..., N), or tuples of such."""


class Augmentation(ABC):
    """A random change to a batch of byte images: a frozen dataclass, a pure function of a draw.

    Every image has its own draw. Nothing waits for the host, so a call can be part of a CUDA graph
    (after one call outside it, and with the generator registered with the graph). `torch.compile`
    takes no generator into its graph, but takes what follows the draws whole (`flip`,
    `padded_crop`, `cut`, `apply_op`, `normalize`).
    """

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The changed images; those given are left as they are.

        Args:
            images: Bytes of shape (N, C, H, W).
            generator: The source of all draws, on the images' device.
        """
        return self.apply(images, *self.draw(check_images(images), generator))

    def check_size(self, height: int, width: int) -> None:  # noqa: B027
        """Raises ValueError if of images of this size it would leave nothing."""

    @abstractmethod
    def draw(self, images: Tensor, generator: torch.Generator) -> Draws:
        """All that is random: tensors whose last dimension is that of the images.

        Args:
            images: Only their shape and device are looked at.
            generator: The source of all draws, on the images' device.
        """

    @abstractmethod
    def apply(self, images: Tensor, *draws: Any) -> Tensor:
        """The images changed as these draws say."""


@dataclass(frozen=True)
class Nothing(Augmentation):
    """The images as they are."""

    def draw(self, images: Tensor, generator: torch.Generator) -> Draws:
        return ()

    def apply(self, images: Tensor, *draws: Any) -> Tensor:
        return images


@dataclass(frozen=True)
class Chain(Augmentation):
    """One augmentation after the other.

    Args:
        parts: In the order in which they are applied.
    """

    parts: tuple[Augmentation, ...]

    def check_size(self, height: int, width: int) -> None:
        for part in self.parts:
            part.check_size(height, width)

    def draw(self, images: Tensor, generator: torch.Generator) -> Draws:
        return tuple(part.draw(images, generator) for part in self.parts)

    def apply(self, images: Tensor, *draws: Draws) -> Tensor:
        for part, drawn in zip(self.parts, draws):
            images = part.apply(images, *drawn)
        return images


def rows_of(draws: Draws, rows: Tensor) -> Draws:
    """The draws of some of the images.

    Example:
        >>> rows_of((torch.arange(4), (torch.eye(4),)), torch.tensor([2]))[0]
        tensor([2])
    """
    return tuple(
        drawn[..., rows] if isinstance(drawn, Tensor) else rows_of(drawn, rows) for drawn in draws
    )


def draws_on(draws: Draws, device: torch.device) -> Draws:
    """The draws, on their way to a device: the host does not wait for what is queued there."""
    return tuple(
        drawn.to(device, non_blocking=True)
        if isinstance(drawn, Tensor)
        else draws_on(drawn, device)
        for drawn in draws
    )


def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` as a tensor that is copied to the device once.

    A copy at every call would make the host wait, and a captured graph refuses it.
    """
    if torch.compiler.is_compiling():  # which keeps constants itself, and warns of other caches
        return torch.tensor(values, dtype=dtype, device=device)
    return _kept(values, dtype, device)


@functools.lru_cache(maxsize=256)
def _kept(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def check_images(images: Tensor) -> Tensor:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(
            f"images must be bytes (torch.uint8) of shape (N, C, H, W), "
            f"got {images.dtype} of shape {tuple(images.shape)}"
        )
    return images


def check_number(name: str, value: Any, least: float, most: float = math.inf) -> None:
    """Raises ValueError unless `value` is a number between `least` and `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        bounds = f"of at least {least}" if most == math.inf else f"between {least} and {most}"
        raise ValueError(f"{name} must be a number {bounds}, got {value!r}")


def check_count(name: str, value: Any, least: int) -> None:
    """Raises ValueError unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
