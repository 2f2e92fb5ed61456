"""Values of a recipe: those that TOML can hold, made to fit the type that is asked for.

TOML has no word for None: where None is allowed, ``"none"`` stands for it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from crsam.errors import UserError


class RecipeError(UserError):
    """A mistake at one place of a recipe.

    Args:
        message: One line.
        key: The place, such as ``"train.epochs"``.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Table(Mapping[str, Any]):
    """A mapping that does not change: equal to a dict of the same items, and hashable.

    Args:
        items: Lists in them become tuples, and mappings tables.

    Example:
        >>> Table({"betas": [0.9, 0.99]})
        {'betas': (0.9, 0.99)}
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        self._items = {key: frozen(value) for key, value in (items or {}).items()}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def frozen(value: Any) -> Any:
    """The value with tuples for its lists and tables for its mappings."""
    if isinstance(value, Mapping):
        return Table(value)
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    return value


_LISTS = (tuple, list, Sequence)
"""What a list of a recipe may stand for; it is a tuple in all of them."""


class _Misfit(Exception):
    """The value is not of the type."""


def fitted(key: str, value: Any, wanted: Any) -> Any:
    """The value as the type wants it: whole numbers as floats, lists as tuples.

    Args:
        key: Where it is.
        value: As read from TOML, or given in Python.
        wanted: A type hint.

    Raises:
        RecipeError: If it does not fit, or is not finite.

    Example:
        >>> fitted("train.clip_norm", 1, float | None), fitted("model.widths", [8, 16], list)
        (1.0, (8, 16))
        >>> fitted("train.epochs", "ten", int)
        Traceback (most recent call last):
        crsam.lab.experiment.values.RecipeError: train.epochs must be a whole number, got 'ten'
    """
    try:
        return _fit(value, wanted)
    except _Misfit:
        infinite = isinstance(value, float) and not math.isfinite(value)
        allowed = "a finite number" if infinite else described(wanted)
        raise RecipeError(f"{key} must be {allowed}, got {value!r}", key) from None


def _fit(value: Any, wanted: Any) -> Any:
    if wanted is Any:
        return _any(value)
    if wanted is NoneType and value in (None, "none"):
        return None
    if wanted is float:
        return _float(value)
    if wanted is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if wanted is bool and isinstance(value, bool):
        return value
    if wanted is str:
        return _text(value)
    kind, parts = _parts(wanted)
    if kind in (Union, UnionType):
        # None first: where it is allowed, "none" is no text.
        for part in sorted(parts, key=lambda part: part is not NoneType):
            with suppress(_Misfit):
                return _fit(value, part)
    if kind is Literal and isinstance(value, str) and value in parts:
        return value
    if kind in _LISTS and isinstance(value, list | tuple):
        each = parts[:1] * len(value) if kind is not tuple or parts[-1] is ... else parts
        if len(each) == len(value):
            return tuple(_fit(v, part) for v, part in zip(value, each))
    raise _Misfit


def _parts(wanted: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a type is, and of what; a list that does not say it is of anything."""
    kind, parts = get_origin(wanted) or wanted, get_args(wanted)
    return kind, parts or ((Any, ...) if kind in _LISTS else ())


def _any(value: Any) -> Any:
    """Whatever TOML can hold; of dates a recipe has no use."""
    if isinstance(value, Mapping):
        return Table({_text(key): _any(inner) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return tuple(map(_any, value))
    return _fit(value, None | bool | int | float | str)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Misfit
    try:
        value = float(value)
    except OverflowError:
        raise _Misfit from None
    if not math.isfinite(value):
        raise _Misfit
    return value


def _text(value: Any) -> str:
    """Text that UTF-8, and so a TOML file, can hold."""
    with suppress(UnicodeEncodeError):
        if isinstance(value, str) and value.encode() is not None:
            return value
    raise _Misfit


_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    **dict.fromkeys(_LISTS, ("a list", "lists")),
    NoneType: ('"none"', '"none"'),
    Any: ("a number, text, list or table", "numbers, texts, lists or tables"),
}
_OTHERS = ("something that no recipe can hold", "values")


def described(wanted: Any) -> str:
    """A type in words.

    Example:
        >>> described(float | None)
        'a number or "none"'
        >>> described(tuple[int, ...])
        'a list of whole numbers'
    """
    kind, parts = _parts(wanted)
    if kind in (Union, UnionType):
        return " or ".join(described(part) for part in parts if _is_known(part))
    if kind is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if kind in _LISTS:
        count = "" if kind is not tuple or parts[-1] is ... else f"{len(parts)} "
        return f"a list of {count}{_plural(parts[0])}"
    return _WORDS.get(wanted, _OTHERS)[0]


def _plural(wanted: Any) -> str:
    if get_origin(wanted) in (Union, UnionType):
        wanted = next(filter(_is_known, get_args(wanted)), None)
    return _WORDS.get(get_origin(wanted) or wanted, _OTHERS)[1]


def _is_known(wanted: Any) -> bool:
    """Whether a recipe can hold such a thing: a tensor or a module it cannot."""
    return wanted in _WORDS or get_origin(wanted) in (*_LISTS, Literal)


def require(holds: bool, key: str, value: Any, allowed: str) -> None:
    """Raises RecipeError unless the condition holds.

    Example:
        >>> require(0 > 1, "train.epochs", 0, "at least 1")
        Traceback (most recent call last):
        crsam.lab.experiment.values.RecipeError: train.epochs must be at least 1, got 0
    """
    if not holds:
        raise RecipeError(f"{key} must be {allowed}, got {value!r}", key)


def unknown_key(
    key: str, owner: str, known: Iterable[str], elsewhere: Sequence[str] = ()
) -> RecipeError:
    """The error for a key that does not exist, with the nearest that does.

    Args:
        key: With dots.
        owner: What it should belong to.
        known: The keys of the owner, without dots.
        elsewhere: Keys of others that may be meant.

    Example:
        >>> print(unknown_key("train.epoch", "[train]", ["epochs", "ema"]))
        unknown key 'train.epoch': did you mean train.epochs? [train] takes epochs, ema
    """
    names = list(known)
    table, dot, leaf = key.rpartition(".")
    if elsewhere:
        return RecipeError(f"unknown key {key!r}: did you mean {' or '.join(elsewhere)}?", key)
    near = difflib.get_close_matches(leaf, names, n=1)
    hint = f"did you mean {table}{dot}{near[0]}? " if near else ""
    takes = ", ".join(names) or "no options"
    return RecipeError(f"unknown key {key!r}: {hint}{owner} takes {takes}", key)
