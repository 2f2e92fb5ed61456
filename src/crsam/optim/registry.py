"""Methods by name, and what each of them can be given."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from torch.optim import Optimizer

from crsam._arguments import arguments
from crsam._names import enter, named
from crsam.optim.methods import METHODS
from crsam.optim.sharpness import SharpnessAware

M = TypeVar("M", bound=SharpnessAware)


def register(method: type[M]) -> type[M]:
    """Gives a method of your own its name, for `make`, recipes and the command line.

    Its class's name in lower case; its arguments are the options that recipes may give. The command
    line has to import the file first: ``crsam --import FILE …``.

    Args:
        method: Derived from `SharpnessAware`; takes the base optimizer first, as ``base``, and
            hands ``**common`` on.

    Raises:
        TypeError: If it is something else.
        ValueError: If the name is another method's already.

    Example:
        >>> import torch, crsam
        >>> from crsam.optim import Adaptive, EveryK, WorstCase
        >>> @crsam.register
        ... class RareASAM(crsam.SharpnessAware):
        ...     def __init__(self, base, rho: float = 0.5, every: int = 5, **common):
        ...         super().__init__(base, Adaptive(rho), WorstCase(), EveryK(every), **common)
        >>> base = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
        >>> crsam.make("rare-asam", base, every=3).schedule
        EveryK(k=3, reuse=0.7)
    """
    if not (isinstance(method, type) and issubclass(method, SharpnessAware)):
        raise TypeError(f"a method is a class derived from crsam.SharpnessAware, got {method!r}")
    taken = inspect.signature(method).parameters
    if next(iter(taken), None) != "base":
        raise TypeError(f"the first argument of {method.__name__} must be base, the base optimizer")
    common = {"model", "seed", "max_norm"}
    if not common <= taken.keys() and all(p.kind is not p.VAR_KEYWORD for p in taken.values()):
        raise TypeError(f"{method.__name__} must take **common and hand it on: model, seed, …")
    enter("method", method.__name__.lower(), method, METHODS)
    return method


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
