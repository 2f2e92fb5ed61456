"""A recipe: all that decides what a run computes, checked as soon as it is put together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter
from typing import Any

from crsam._names import plain
from crsam.lab._tables import flat
from crsam.lab.experiment.literal import literal
from crsam.lab.experiment.options import accepted, canonical, checked, optimizers
from crsam.lab.experiment.ranges import Sweep
from crsam.lab.experiment.sections import Choice, Data, Log, Loss, Measures, Train
from crsam.lab.experiment.values import RecipeError, Table, fitted, require
from crsam.lab.models import is_own as is_own_model
from crsam.lab.models.timm import is_timm
from crsam.lab.train.schedule import Schedule
from crsam.optim.registry import defaults
from crsam.optim.registry import is_own as is_own_method

CHOICES = ("augment", "model", "optimizer")
"""The tables of a recipe that name a thing and give its options."""


@dataclass(frozen=True)
class Recipe:
    """All that decides what a run computes.

    Names are put into the registries' spelling, numbers into the types that are asked for; two
    recipes that say the same are equal.

    Raises:
        RecipeError: For whatever is not known, not of its type or not allowed.

    Example:
        >>> recipe = Recipe(model=Choice("ResNet-18", {"width": 16}), methods={"sam": {"rho": 0.2}})
        >>> recipe.model.name, recipe.with_method("SAM").method_options
        ('resnet18', {'rho': 0.2})
    """

    seed: int = 0
    """Of the first weights, the order of the images, their augmentation and a method's draws."""
    method: str = "crsam"
    """One of `crsam.methods`, or the optimizer's name (or ``"base"``) for the optimizer alone."""
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=Table)
    """Options of methods, by name: of the one that is used, and of others to compare it with."""
    data: Data = field(default_factory=Data)
    """The images."""
    augment: Choice = field(default_factory=lambda: Choice("none"))
    """One of `crsam.lab.data.augment.augmentations`."""
    loss: Loss = field(default_factory=Loss)
    """Label smoothing and mixup."""
    model: Choice = field(default_factory=lambda: Choice("digits_mlp"))
    """One of `crsam.lab.models.models`, or ``timm:NAME``."""
    init: str | None = None
    """A file of weights to start from, or the folder of a run; None: weights are drawn."""
    optimizer: Choice = field(
        default_factory=lambda: Choice("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4})
    )
    """The base optimizer: any of ``torch.optim``, by its name in lower case."""
    schedule: Schedule = field(default_factory=Schedule)
    """Of the learning rate."""
    train: Train = field(default_factory=Train)
    """Epochs, batches, precision."""
    log: Log = field(default_factory=Log)
    """What is written down."""
    measure: Measures = field(default_factory=Measures)
    """Figures of flatness through training."""
    sweep: Sweep = field(default_factory=Sweep)
    """What ``crsam sweep`` tries; of no effect on a run."""

    def __post_init__(self) -> None:
        set_ = functools.partial(object.__setattr__, self)
        set_("seed", fitted("seed", self.seed, int))
        require(0 <= self.seed < 2**63, "seed", self.seed, "at least 0 and below 2**63")
        set_("init", fitted("init", self.init, str | None))
        require(self.init != "", "init", self.init, 'a file or "none"')
        for table in CHOICES:
            set_(table, _settled(table, getattr(self, table)))
        if "lr" not in self.optimizer.options:
            # The optimizers' own defaults differ by a factor of a thousand.
            name = self.optimizer.name
            raise RecipeError(f"optimizer.lr must be given; {name!r} has none here", "optimizer")
        set_("methods", self._settled_methods())
        set_("method", self._settled_method())
        if not (self.log.test or self.data.validation):
            raise RecipeError(
                "log.test = false leaves nothing to judge a run by: data.validation must be above "
                f"0, got {self.data.validation}",
                "log.test",
            )

    @property
    def method_options(self) -> Mapping[str, Any]:
        """The options of the method that is used."""
        return self.methods.get(self.method, Table())

    @property
    def all_method_options(self) -> dict[str, Any]:
        """The same with those that it has by default, which may change in later versions.

        ``warmup`` is what the recipe asks for, before it is capped for a short training.
        """
        if self.method == self.optimizer.name:
            return {}
        known = {**defaults(self.method), **self.method_options}
        if self.train.rho_warmup is not None and "warmup" not in self.method_options:
            known["warmup"] = self.train.rho_warmup
        names = accepted("methods", self.method)
        return {name: _plain(known[name]) for name in names if name in known}

    def with_method(self, name: str) -> Recipe:
        """The same recipe with another method."""
        return replace(self, method=name)

    def _settled_method(self) -> str:
        own = self.optimizer.name
        name = plain(fitted("method", self.method, str))
        if name in ("base", own):
            return own
        if name in optimizers():
            raise RecipeError(
                f"method {self.method!r} is not the optimizer of this recipe: for that alone, say "
                f"{own!r} or 'base'",
                "method",
            )
        name = canonical("methods", self.method, "method", also=(own,))
        for option, default in defaults(name).items():
            if default is Parameter.empty and option not in self.methods.get(name, {}):
                key = f"methods.{name}.{option}"
                raise RecipeError(f"{key} must be given: it has no default", key)
        return name

    def _settled_methods(self) -> Table:
        found: dict[str, Table] = {}
        for given, options in self.methods.items():
            key = f"methods.{given}"
            if plain(given) in ("base", *optimizers()):
                raise RecipeError(f"{key}: the options of the base are those of [optimizer]", key)
            name = canonical("methods", given, key)
            if name in found:
                raise RecipeError(f"{key}: there is another table of {name}", key)
            require(isinstance(options, Mapping), key, options, "a table of options")
            found[name] = checked("methods", name, options, key)
        return Table(found)


def uses_own(recipe: Recipe) -> bool:
    """Whether its method or model is not one of ours, nor an optimizer of torch's."""
    method, model = recipe.method, recipe.model.name
    return (method != recipe.optimizer.name and is_own_method(method)) or (
        not is_timm(model) and is_own_model(model)
    )


def as_tables(recipe: Recipe) -> dict[str, Any]:
    """The recipe as a TOML file has it: plain values first, then tables.

    Example:
        >>> as_tables(Recipe())["model"]
        {'name': 'digits_mlp'}
    """
    tables: dict[str, Any] = {"seed": recipe.seed, "method": recipe.method}
    if recipe.init is not None:
        tables["init"] = recipe.init
    swept = ("sweep",) if recipe.sweep.ranges else ()
    for table in ("data", "augment", "loss", "model", "optimizer", "schedule", "train", "log",
                  "measure", *swept):  # fmt: skip
        value = getattr(recipe, table)
        if isinstance(value, Choice):
            tables[table] = {"name": value.name, **value.options}
        else:
            tables[table] = {f.name: getattr(value, f.name) for f in fields(value)}
    return {**tables, "methods": {name: dict(given) for name, given in recipe.methods.items()}}


def differences(a: Recipe, b: Recipe) -> list[str]:
    """What is not the same in two recipes, a line each, in the order of the tables.

    Args:
        a: The one that is there.
        b: The one that is here.

    Example:
        >>> differences(Recipe(), Recipe(train=Train(epochs=60)))
        ['train.epochs: 40 there, 60 here']
    """
    there, here = flat(as_tables(a)), flat(as_tables(b))
    tables = list({**as_tables(a), **as_tables(b)})
    keys = sorted({**there, **here}, key=lambda key: tables.index(key.split(".")[0]))

    def said(values: dict[str, Any], key: str) -> str:
        return literal(values[key]) if key in values else "nothing"

    return [
        f"{key}: {said(there, key)} there, {said(here, key)} here"
        for key in keys
        if said(there, key) != said(here, key)
    ]


def _plain(value: Any) -> Any:
    """A default as JSON can have it: of what no recipe can hold, the name."""
    try:
        return fitted("default", value, Any)
    except RecipeError:
        return getattr(value, "__qualname__", type(value).__qualname__)


def _settled(table: str, choice: Choice) -> Choice:
    key = f"{table}.name"
    name = canonical(table, fitted(key, choice.name, str), key)
    return Choice(name, checked(table, name, choice.options, table))
