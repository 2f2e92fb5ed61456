"""The one exception that means: what was asked for cannot be done, and here is why."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave: a recipe, a file, an argument.

    Its message is one line that names the bad value and what would be right. The command line
    prints just that and ends with exit code 2.
    """


MANY = 20
"""Names that are still told where one of them is near."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest that does, or all there are.

    Example:
        >>> unknown("model", "resnet81", ["resnet18", "wrn28_10"])
        UserError("unknown model 'resnet81': did you mean 'resnet18'? there are resnet18, wrn28_10")
    """
    names = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(name).lower(), names, n=1)
    hint = f"did you mean {names[close[0]]!r}?" if close else ""
    every = f"there are {', '.join(names.values())}" if not close or len(names) <= MANY else ""
    return UserError(f"unknown {kind} {name!r}: {' '.join(filter(None, (hint, every)))}")
