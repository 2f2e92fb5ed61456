"""The things that a recipe names, and what each of them can be given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from crsam._arguments import arguments
from crsam._names import plain
from crsam.errors import UserError, unknown
from crsam.lab import data, models
from crsam.lab.data import augment
from crsam.lab.experiment.values import RecipeError, Table, fitted, unknown_key
from crsam.lab.models.timm import is_timm, timm_name
from crsam.optim import registry

_FILLED_IN = {"group", "in_channels", "in_chans", "num_classes", "model", "seed", "max_norm"}
"""Arguments that follow from the rest: processes, images, model, seed, ``train.clip_norm``."""

_REFUSED = {
    "lbfgs": "it calls for the loss many times a step, and is not made for mini-batches",
    "sparseadam": "it takes sparse gradients only, and these models have dense ones",
}


class Kind(NamedTuple):
    """A kind of thing that has a name and options."""

    noun: str
    names: Callable[[], Iterable[str]]
    options: Callable[[str], Mapping[str, Any]]
    """Those of the thing with this name, each with its type."""
    more: Callable[[str], bool] = lambda name: False
    """Whether it may take others too, which it alone can tell."""


@cache
def optimizers() -> Mapping[str, type[Optimizer]]:
    """The base optimizers by name: torch's, but for those that cannot serve.

    Example:
        >>> optimizers()["adamw"]
        <class 'torch.optim.adamw.AdamW'>
    """
    return {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type)
        and issubclass(kind, Optimizer)
        and name.lower() not in _REFUSED
        and {"params", "lr"} <= arguments(kind).keys()
    }


def _optimizer_options(name: str) -> Mapping[str, Any]:
    found = arguments(optimizers()[name])
    del found["params"]
    return found


KINDS = {
    "data": Kind("dataset", data.datasets, lambda name: {}),
    "augment": Kind("augmentation", augment.augmentations, augment.options),
    "model": Kind("model", models.models, models.options, is_timm),
    "optimizer": Kind("optimizer", optimizers, _optimizer_options),
    "methods": Kind("method", registry.methods, registry.options),
}
"""By the table of the recipe that they stand in."""


def canonical(table: str, name: str, key: str, also: Iterable[str] = ()) -> str:
    """The name as the registry writes it.

    Args:
        table: Of `KINDS`.
        name: In anyone's spelling.
        key: Where it is.
        also: Other names that are allowed there.

    Raises:
        RecipeError: If there is no such thing; names the nearest.

    Example:
        >>> canonical("model", "ResNet-18", "model.name")
        'resnet18'
    """
    if table == "optimizer" and plain(name) in _REFUSED:
        raise RecipeError(f"{key} must not be {name!r}: {_REFUSED[plain(name)]}", key)
    if table == "model" and is_timm(name):
        try:
            return timm_name(name)
        except UserError as error:
            raise RecipeError(str(error), key) from None
    names = {plain(known): known for known in (*KINDS[table].names(), *also)}
    if plain(name) not in names:
        told = str(unknown(KINDS[table].noun, name, names.values()))
        if table in ("methods", "model"):
            told += "; one of your own: crsam --import FILE, before the command"
        raise RecipeError(told, key)
    return names[plain(name)]


def accepted(table: str, name: str) -> dict[str, Any]:
    """The options that a recipe may give, each with its type.

    Example:
        >>> list(accepted("model", "digits_mlp"))
        ['width', 'batch_norm']
    """
    found = KINDS[table].options(name)
    return {option: wanted for option, wanted in found.items() if option not in _FILLED_IN}


def checked(table: str, name: str, given: Mapping[str, Any], key: str) -> Table:
    """The options, each known and of its type.

    Args:
        table: Of `KINDS`.
        name: Of the thing, as the registry writes it.
        given: Its options.
        key: Where they are.

    Raises:
        RecipeError: Otherwise.
    """
    known, more = accepted(table, name), KINDS[table].more(name)
    for option in given:
        if option not in known and (not more or option in _FILLED_IN):
            also = () if table == "methods" else ("name",)
            raise unknown_key(f"{key}.{option}", name, (*also, *known))
    return Table({o: fitted(f"{key}.{o}", v, known.get(o, Any)) for o, v in given.items()})


@contextmanager
def naming(table: str) -> Iterator[None]:
    """Says in which table of the recipe a value is that a constructor refuses."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError) as error:
        raise UserError(f"{table}: {error}") from error
