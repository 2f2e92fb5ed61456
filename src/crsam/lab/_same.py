"""When two runs are the same experiment: what of a recipe has no part in it, and which images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CHANGES_NOTHING = ("data.root", "data.download", "data.workers", "sweep")
"""Keys and tables of a recipe that change nothing that a run computes.

`data.root` is only a place. Whether other images lie there is for `different_sets` to say.
"""


def has_no_part(key: str, *others: str) -> bool:
    """Whether a key of a recipe changes nothing that a run computes.

    Args:
        key: The dotted key.
        others: More keys and tables that count as such.

    Example:
        >>> has_no_part("data.root"), has_no_part("log.every"), has_no_part("log.every", "log")
        (True, False, True)
    """
    ignored = (*CHANGES_NOTHING, *others)
    return key in ignored or key.partition(".")[0] in ignored


class Origin(NamedTuple):
    """Where the images of a run come from."""

    dataset: object
    """The `data.name` of its recipe."""
    root: object
    """The `data.root` of its recipe."""
    fingerprint: object = None
    """That of the images, as ``data.json`` has it. Runs of earlier versions have none."""


def different_sets(origins: Sequence[Origin]) -> list[str]:
    """A text for each run. Two texts are equal if both runs are on the same images.

    The name of a dataset fixes its images, wherever they lie, except for ``folder``: that is
    anybody's photographs. Those are the same if their fingerprints agree. A run without a
    fingerprint is on the images that other runs found at its root.

    Example:
        >>> different_sets([Origin("cifar10", "a"), Origin("cifar10", "b")])
        ['', '']
        >>> different_sets([Origin("folder", "cats", "1f"), Origin("folder", "/new/cats", "1f"),
        ...                 Origin("folder", "dogs", "2e"), Origin("folder", "dogs")])
        ['cats', 'cats', 'dogs', 'dogs']
        >>> different_sets([Origin("folder", "cats", "1f"), Origin("folder", "cats", "2e")])
        ['cats', 'cats (other images, 2e)']
    """
    at_root: dict[object, dict[object, None]] = {}
    for one in origins:
        if one.dataset == "folder" and isinstance(one.fingerprint, str):
            at_root.setdefault(str(one.root), {})[one.fingerprint] = None
    names: dict[object, str] = {}
    found = []
    for one in origins:
        if one.dataset != "folder":
            found.append("")
            continue
        root, known = str(one.root), one.fingerprint
        if not isinstance(known, str):
            there = list(at_root.get(root, {}))
            known = there[0] if len(there) == 1 else ("unknown", root)
        if known not in names:
            others = f" (other images, {str(one.fingerprint or 'unknown')[:8]})"
            names[known] = root + others if root in names.values() else root
        found.append(names[known])
    return found
