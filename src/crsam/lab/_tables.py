"""Tables of a recipe, as TOML and JSON have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """All values by their dotted keys.

    Example:
        >>> flat({"seed": 0, "train": {"epochs": 40}})
        {'seed': 0, 'train.epochs': 40}
    """
    found: dict[str, Any] = {}
    for name, value in tables.items():
        deeper = isinstance(value, dict) and (value or not above)
        found |= flat(value, f"{above}{name}.") if deeper else {above + name: value}
    return found
