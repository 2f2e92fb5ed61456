"""Things by name, in anyone's spelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from crsam.errors import unknown

T = TypeVar("T")


def plain(name: str) -> str:
    """A name without case, dashes and underscores, in which people differ.

    Example:
        >>> plain("WRN-28_10")
        'wrn2810'
    """
    return name.lower().replace("-", "").replace("_", "")


def named(kind: str, name: str, known: Mapping[str, T]) -> T:
    """What `known` has under this name.

    Raises:
        UserError: If there is no such name; says the nearest.

    Example:
        >>> named("model", "ResNet-18", {"resnet18": 11.2})
        11.2
    """
    for spelling, thing in known.items():
        if plain(spelling) == plain(name):
            return thing
    raise unknown(kind, name, known)
