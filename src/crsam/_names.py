"""Things by name, in anyone's spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from crsam.errors import unknown

T = TypeVar("T")


def plain(name: str) -> str:
    """A name without case, dashes and underscores, in which people differ.

    Example:
        >>> plain("WRN-28_10")
        'wrn2810'
    """
    return name.lower().replace("-", "").replace("_", "")


def slug(text: str) -> str:
    """The text as the name of a folder.

    Example:
        >>> slug("CR-SAM log")
        'cr-sam-log'
    """
    return re.sub(r"[^a-z0-9.=+_-]+", "-", text.lower()).strip("-")


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


def enter(kind: str, name: str, thing: Any, known: dict[str, Any]) -> None:
    """Puts a thing into a registry; one of the same module and name is replaced, as by a reload.

    Raises:
        ValueError: If the name is another's already.

    Example:
        >>> enter("model", "ResNet18", dict, {"resnet18": list})
        Traceback (most recent call last):
        ValueError: there is a model 'resnet18' already: give yours another name
    """
    for spelling, other in list(known.items()):
        if plain(spelling) == plain(name):
            if _origin(other) != _origin(thing):
                raise ValueError(f"there is a {kind} {spelling!r} already: give yours another name")
            del known[spelling]
    known[name] = thing


def _origin(thing: object) -> tuple[object, object]:
    return getattr(thing, "__module__", thing), getattr(thing, "__qualname__", thing)
