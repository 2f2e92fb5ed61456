"""Values as TOML writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def literal(value: Any) -> str:
    r"""The value in TOML's grammar.

    Example:
        >>> literal({"betas": (0.9, 0.99), "fused": True, "why": "a\tb"})
        '{betas = [0.9, 0.99], fused = true, why = "a\\tb"}'
    """
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        pairs = (f"{bare(key)} = {literal(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


def bare(key: str) -> str:
    """A key, in quotes if it needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quoted(key)


_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\t": r"\t", "\r": r"\r"}


def _quoted(text: str) -> str:
    inside = re.sub(
        r'[\\"\x00-\x1f\x7f]', lambda m: _ESCAPES.get(m[0], f"\\u{ord(m[0]):04x}"), text
    )
    return f'"{inside}"'
