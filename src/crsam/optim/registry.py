"""Methods by name, and what each of them can be given."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar, get_type_hints

import torch
from torch.optim import Optimizer

from crsam._arguments import arguments
from crsam._names import enter, named, plain
from crsam.optim.methods import METHODS, Common
from crsam.optim.optimizer import SharpnessAware

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
        ValueError: If the name is another method's already, or an optimizer's.

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
    name, taken = method.__name__, inspect.signature(method).parameters
    if {"ascent", "objective", "schedule"} <= taken.keys():
        raise TypeError(f"{name} must have an __init__ of its own, which chooses its parts")
    if next(iter(taken), None) != "base":
        raise TypeError(f"the first argument of {name} must be base, the base optimizer")
    if not {"model", "seed", "max_norm"} <= taken.keys() and not _takes_more(method):
        raise TypeError(f"{name} must take **common and hand it on: model, seed, …")
    optimizers = [kind for kind, made in vars(torch.optim).items() if isinstance(made, type)]
    if plain(name) in map(plain, ["base", *optimizers]):
        raise ValueError(f"{name} is the name of an optimizer: give your method another one")
    enter("method", name.lower(), method, METHODS)
    return method


def _takes_more(method: type[SharpnessAware]) -> bool:
    """Whether there is a ``**common`` in its call."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(method).parameters.values())


def methods() -> list[str]:
    """The names that `make` takes.

    Example:
        >>> import crsam
        >>> "crsam" in crsam.methods()
        True
    """
    return list(METHODS)


def is_own(name: str) -> bool:
    """Whether the method is a user's own.

    Example:
        >>> is_own("crsam")
        False
    """
    return not named("method", name, METHODS).__module__.startswith("crsam.")


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
    own = named("method", name, METHODS)
    found = arguments(own)
    del found["base"]
    if _takes_more(own):
        found |= {n: kind for n, kind in get_type_hints(Common).items() if n not in found}
    return found


def defaults(name: str) -> dict[str, Any]:
    """What those arguments are if they are not given, as far as signatures tell.

    What goes through a ``**common`` of one's own may have any default.

    Example:
        >>> defaults("sam")["rho"], defaults("crsam")["warmup"]
        (0.05, 200)
    """
    own = named("method", name, METHODS)
    makers = [kind for kind in reversed(own.__mro__) if issubclass(kind, SharpnessAware)]
    given = {
        argument: parameter.default
        for maker in makers
        for argument, parameter in inspect.signature(maker).parameters.items()
    }
    return {argument: given[argument] for argument in arguments(own) if argument in given
            and argument != "base"}  # fmt: skip
