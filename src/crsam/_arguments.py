"""What a class or function can be given by name, and of which type: how registries tell."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints


def arguments(maker: Callable[..., Any]) -> dict[str, Any]:
    """The named arguments, each with its type; ``**more: Unpack[…]`` spelled out.

    Args:
        maker: A class, a function or a `functools.partial` of one.

    Example:
        >>> def blur(radius: float, *, passes: int = 1) -> None: ...
        >>> arguments(partial(blur, 2.0))
        {'passes': <class 'int'>}
    """
    return dict(_arguments(maker))


@lru_cache(maxsize=512)
def _arguments(maker: Callable[..., Any]) -> dict[str, Any]:
    """Kept: a recipe asks for those of every optimizer, many times."""
    inner = maker.func if isinstance(maker, partial) else maker
    # `inner` is the class itself, of which mypy fears that it stands for a subclass.
    types = _types(inner.__init__ if isinstance(inner, type) else inner)  # type: ignore[misc]
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(maker).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            found[name] = types.get(name, Any)
        else:
            for table in get_args(types.get(name)):
                found |= get_type_hints(table)
    return found


def _types(function: Any) -> dict[str, Any]:
    """Its type hints, but for those whose names are imported for the type checker alone."""
    try:
        return get_type_hints(function)
    except NameError:
        found: dict[str, Any] = {}
        for name, hint in function.__annotations__.items():
            with suppress(NameError):
                alone = SimpleNamespace(__annotations__={name: hint})
                found |= get_type_hints(alone, function.__globals__)
        return found
