"""Methods by name, and what each of them can be given."""

from __future__ import annotations

import inspect
from typing import Any

from torch.optim import Optimizer

from crsam._arguments import arguments
from crsam._names import named
from crsam.optim.methods import METHODS
from crsam.optim.sharpness import SharpnessAware


def methods() -> list[str]:
    """The names that `make` takes.

    Example:
        >>> import crsam
        >>> "crsam" in crsam.methods()
        True
    """
    return list(METHODS)


def make(name: str, base: Optimizer, **hyper: Any) -> SharpnessAware:
    """A method by its name, whatever its case, dashes or underscores.

    Args:
        name: One of `methods`, such as ``"crsam"`` or ``"CR-SAM"``.
        base: The base optimizer.
        **hyper: The method's own arguments.

    Example:
        >>> import torch, crsam
        >>> base = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
        >>> crsam.make("CR-SAM", base, rho=0.1).param_groups[0]["rho"]
        0.1
    """
    return named("method", name, METHODS)(base, **hyper)


def options(name: str) -> dict[str, Any]:
    """The arguments that `make` takes for this method beside the base, each with its type.

    Example:
        >>> list(options("sam"))
        ['rho', 'max_norm', 'model', 'seed', 'scope', 'group', 'warmup']
    """
    found = arguments(named("method", name, METHODS))
    del found["base"]
    return found


def defaults(name: str) -> dict[str, Any]:
    """What those arguments are if they are not given.

    Example:
        >>> defaults("sam")["rho"], defaults("crsam")["warmup"]
        (0.05, 200)
    """
    own = named("method", name, METHODS)
    given = {
        argument: parameter.default
        for maker in (SharpnessAware, own)
        for argument, parameter in inspect.signature(maker).parameters.items()
    }
    return {argument: given[argument] for argument in options(name)}
