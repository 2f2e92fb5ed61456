"""Recipes on top of each other: later ones win, and every value knows the file it came from."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, get_type_hints

from crsam.errors import UserError
from crsam.lab.experiment.options import accepted, canonical
from crsam.lab.experiment.ranges import Sweep
from crsam.lab.experiment.recipe import CHOICES, Recipe, as_tables
from crsam.lab.experiment.sections import Choice, Data, Log, Loss, Measures, Train
from crsam.lab.experiment.values import RecipeError, fitted, unknown_key
from crsam.lab.train.schedule import Schedule

_SECTIONS: dict[str, Callable[..., Any]] = {
    "data": Data,
    "loss": Loss,
    "schedule": Schedule,
    "train": Train,
    "log": Log,
    "measure": Measures,
    "sweep": Sweep,
}
_KEYS = [f.name for f in fields(Recipe)]


class Layers:
    """Tables that are merged deeply, key by key.

    A table that names another model, augmentation or optimizer than the one below it starts
    afresh: options of one thing are never given to another.

    Example:
        >>> layers = Layers()
        >>> layers.add({"model": {"name": "resnet18", "width": 16}}, "a.toml")
        >>> layers.add({"model": {"name": "wrn28_10"}, "train": {"epochs": 200}}, "b.toml")
        >>> layers.table
        {'model': {'name': 'wrn28_10'}, 'train': {'epochs': 200}}
    """

    def __init__(self) -> None:
        self.table: dict[str, Any] = {}
        self._origins: dict[str, str] = {}

    def add(self, table: Mapping[str, Any], origin: str = "") -> None:
        """Puts a table on top.

        Args:
            table: As TOML has it.
            origin: The file, for error messages.
        """
        self._merge(self.table, normal(table), "", origin)

    def _merge(
        self, below: dict[str, Any], table: Mapping[str, Any], above: str, origin: str
    ) -> None:
        for name, value in table.items():
            key = above + name
            self._origins[key] = origin
            if not isinstance(value, dict):
                below[name] = value
                continue
            inside = below.get(name)
            if not isinstance(inside, dict) or _renames(key, inside, value):
                inside = below[name] = {}
            self._merge(inside, value, f"{key}.", origin)

    def fill(self) -> None:
        """Puts the defaults where nothing was said; what was named has none but its own."""
        for name, default in as_tables(Recipe()).items():
            given = self.table.setdefault(name, default)
            named = name in CHOICES and isinstance(given, dict) and "name" in given
            if isinstance(default, dict) and isinstance(given, dict) and not named:
                self.table[name] = {**default, **given}

    def recipe(self) -> Recipe:
        """What all layers together say.

        Raises:
            UserError: If something in them is wrong; begins with the file it is in.
        """
        try:
            recipe = _recipe(self.table)
            _check_ranges(recipe)
            return recipe
        except RecipeError as error:
            origin = self._origins.get(error.key)
            raise UserError(f"{origin}: {error}" if origin else str(error)) from None


def changed(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with other values, by their dotted keys.

    Raises:
        UserError: For a key that does not exist, or a value that is not allowed there.

    Example:
        >>> changed(Recipe(), {"methods.sam.rho": 0.2, "train.epochs": 3}).methods["sam"]["rho"]
        0.2
    """
    layers = Layers()
    layers.add(as_tables(recipe))
    table: dict[str, Any] = {}
    for key, value in values.items():
        *above, last = key.split(".")
        inside = table
        for name in above:
            inside = inside.setdefault(name, {})
        inside[last] = value
    layers.add(table)
    return layers.recipe()


def _check_ranges(recipe: Recipe) -> None:
    """Refuses ranges of keys that do not exist, or with ends that are not allowed there."""
    plain = replace(recipe, sweep=Sweep())
    for key, value in recipe.sweep.ends():
        try:
            changed(plain, {key: value})
        except UserError as error:
            raise RecipeError(f"sweep.ranges: {error}", "sweep.ranges") from None


def normal(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with known names in the registries' spelling, so that like is merged with like.

    Example:
        >>> normal({"model": "ResNet-18", "methods": {"CR-SAM": {"rho": 0.1}}})
        {'model': {'name': 'resnet18'}, 'methods': {'crsam': {'rho': 0.1}}}
    """
    tables = dict(table)
    for name in CHOICES:
        value = tables.get(name)
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            value = {**value, "name": _spelled(name, value["name"])}
        if value is not None:
            tables[name] = value
    if isinstance(tables.get("methods"), dict):
        given: dict[str, Any] = {}
        for name, options in tables["methods"].items():
            spelled = _spelled("methods", name)
            # Two spellings in one file: both stay, to be refused.
            given[name if spelled in given else spelled] = options
        tables["methods"] = given
    return tables


def _spelled(table: str, name: str) -> str:
    with suppress(RecipeError):
        return canonical(table, name, "")
    return name


def _renames(key: str, below: dict[str, Any], table: dict[str, Any]) -> bool:
    if key not in CHOICES or "name" not in table:
        return False
    default: Choice = getattr(Recipe(), key)
    return table["name"] != below.get("name", default.name)


def _recipe(tables: dict[str, Any]) -> Recipe:
    for key in tables:
        if key not in _KEYS:
            raise unknown_key(key, "a recipe", _KEYS, _elsewhere(key, tables))
        if key not in ("seed", "init", "method"):
            _require_table(key, tables[key])
    made: dict[str, Any] = {key: tables[key] for key in ("seed", "method", "methods")}
    made["init"] = tables.get("init")
    made |= {key: _section(key, tables) for key in _SECTIONS if key in tables}
    for key in CHOICES:
        options = dict(tables[key])
        made[key] = Choice(options.pop("name"), options)
    return Recipe(**made)


def _require_table(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        named = isinstance(value, str) and key in ("data", "schedule")
        hint = f": did you mean {key}.name?" if named else ""
        raise RecipeError(f"{key} must be a table, got {value!r}{hint}", key)


def _section(key: str, tables: dict[str, Any]) -> Any:
    kind = _SECTIONS[key]
    wanted = get_type_hints(kind)
    given = {}
    for name, value in tables[key].items():
        place = f"{key}.{name}"
        if name not in wanted:
            near = difflib.get_close_matches(name, wanted, n=1)
            raise unknown_key(place, f"[{key}]", wanted, () if near else _elsewhere(name, tables))
        given[name] = fitted(place, value, wanted[name])
    try:
        return kind(**given)
    except RecipeError:
        raise
    except UserError as error:  # of a class that knows nothing of recipes
        raise RecipeError(str(error), key) from None


def _elsewhere(name: str, tables: dict[str, Any]) -> list[str]:
    """Returns the keys that have this name or the nearest one.

    Keys of ``[measure]`` are left out if a key that changes the training has the same name.
    """
    places: dict[str, list[str]] = {}
    for place in _places(tables):
        places.setdefault(place.rpartition(".")[2], []).append(place)
    near = [name] if name in places else difflib.get_close_matches(name, [*places, *_KEYS], n=1)
    found = places.get(near[0], []) if near else []
    return [key for key in found if not key.startswith("measure.")] or found


def _places(tables: dict[str, Any]) -> Iterator[str]:
    for key, kind in _SECTIONS.items():
        yield from (f"{key}.{name}" for name in get_type_hints(kind))
    for key in ("optimizer", "methods", "model", "augment"):
        with suppress(RecipeError, AttributeError):  # what is wrong there is another error
            named = tables["method"] if key == "methods" else tables[key].get("name")
            name = canonical(key, named, "")
            path = f"methods.{name}" if key == "methods" else key
            yield from (f"{path}.{option}" for option in accepted(key, name))
