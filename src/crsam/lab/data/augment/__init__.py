"""Augmentation of whole batches of byte images, each image with its own draw.

Works on the CPU and the GPU, depends on nothing but the images and a `torch.Generator`, and never
reads a value off the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict, Unpack

from crsam._arguments import arguments
from crsam._names import named
from crsam.lab.data.augment.autoaugment import AutoAugment
from crsam.lab.data.augment.base import Augmentation, Chain, Nothing
from crsam.lab.data.augment.basic import Basic, Flip, flip, padded_crop
from crsam.lab.data.augment.cutout import CIFAR10_MEAN, Cutout, cut
from crsam.lab.data.augment.inception import Inception, scaled_crop
from crsam.lab.data.augment.labels import smooth_one_hot
from crsam.lab.data.augment.mixup import Mixup
from crsam.lab.data.augment.ops import Op, apply_op
from crsam.lab.data.augment.policies import Policy
from crsam.lab.data.augment.randaugment import RandAugment
from crsam.lab.data.augment.scaling import normalize

__all__ = [
    "Augmentation",
    "AutoAugment",
    "Basic",
    "Chain",
    "Cutout",
    "Flip",
    "Inception",
    "Mixup",
    "Nothing",
    "Op",
    "RandAugment",
    "apply_op",
    "augmentations",
    "cut",
    "flip",
    "make_augment",
    "normalize",
    "options",
    "padded_crop",
    "scaled_crop",
    "smooth_one_hot",
]


def augmentations() -> tuple[str, ...]:
    """The names that `make_augment` knows."""
    return tuple(_AUGMENTATIONS)


def make_augment(name: str, **options: Any) -> Augmentation:
    """An augmentation by its name.

    Args:
        name: ``"none"``; ``"basic"``; ``"inception"``, for photographs; ``"cutout"``: basic, then
            Cutout; ``"autoaugment"`` and ``"randaugment"``: basic, then the method, then Cutout,
            as in their papers on CIFAR.
        **options: `pad` and `flip_share` of `Basic`; `least`, `shape` and `flip_share` of
            `Inception`; `side` and `fill` of `Cutout`, and `cut_share` for its `share`
            (``side=0`` leaves Cutout out); `policy` and `levels` of `AutoAugment`; `num_ops` and
            `magnitude` of `RandAugment`.

    Raises:
        UserError: There is no such name.

    Example:
        >>> make_augment("basic", pad=2)
        Basic(pad=2, flip_share=0.5)
    """
    return named("augmentation", name, _AUGMENTATIONS)(**options)


def options(name: str) -> dict[str, Any]:
    """The options that `make_augment` takes for this augmentation, each with its type.

    Example:
        >>> options("cutout")["side"]
        <class 'int'>
    """
    return arguments(named("augmentation", name, _AUGMENTATIONS))


class _Around(TypedDict, total=False):
    """The options of what comes before and after a method."""

    pad: int
    flip_share: float
    side: int
    fill: tuple[int, ...]
    cut_share: float


def _cutout(**around: Unpack[_Around]) -> Augmentation:
    return _around((), **around)


def _autoaugment(
    policy: str | Policy = "cifar10",
    levels: Literal["code", "paper"] | None = None,
    **around: Unpack[_Around],
) -> Augmentation:
    return _around((AutoAugment(policy, levels),), **around)


def _randaugment(
    num_ops: int = 2, magnitude: float = 9.0, **around: Unpack[_Around]
) -> Augmentation:
    return _around((RandAugment(num_ops, magnitude),), **around)


def _around(
    parts: tuple[Augmentation, ...],
    pad: int = 4,
    flip_share: float = 0.5,
    side: int = 16,
    fill: tuple[int, ...] = CIFAR10_MEAN,
    cut_share: float = 1.0,
) -> Augmentation:
    last = (Cutout(side, tuple(fill), cut_share),) if side else ()
    return Chain((Basic(pad, flip_share), *parts, *last))


_AUGMENTATIONS: dict[str, Callable[..., Augmentation]] = {
    "none": Nothing,
    "basic": Basic,
    "inception": Inception,
    "cutout": _cutout,
    "autoaugment": _autoaugment,
    "randaugment": _randaugment,
}
