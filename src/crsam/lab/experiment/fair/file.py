"""Study files: a recipe with a ``[study]`` table, checked as a whole before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from crsam._names import slug
from crsam.errors import UserError, unknown
from crsam.lab._tables import flat
from crsam.lab.experiment.fair.study import (
    Choose,
    Contestant,
    EqualTime,
    Kept,
    Measured,
    Study,
    options_of,
)
from crsam.lab.experiment.measure import check_metrics
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.toml import STUDIES, read_layers
from crsam.lab.experiment.values import RecipeError, Table, fitted, require, unknown_key


def load_study(source: str | Path, overrides: Sequence[str] = ()) -> Study:
    """A study out of a file or by the name of a shipped one.

    Args:
        source: Such as ``"digits"`` or ``"mine.toml"``: a recipe with a ``[study]`` table.
        overrides: Of the recipe or of the study, such as ``"train.epochs=10"`` or
            ``"study.seeds=[0, 1]"``.

    Raises:
        UserError: If something in it is not known, not allowed or does not fit together.

    Example:
        >>> study = load_study("digits")
        >>> list(study.contestants), study.reference
        (['SGD', 'SAM', 'CR-SAM log', 'CR-SAM linear'], 'SAM')
    """
    layers = read_layers(source, overrides, also=STUDIES)
    table = layers.table.pop("study", None)
    if not isinstance(table, dict):
        raise UserError(f"{source} is no study: it has no [study] table")
    try:
        return _study(Path(source).stem, layers.recipe(), table)
    except RecipeError as error:
        raise UserError(f"{source}: {error}") from None


def _study(name: str, recipe: Recipe, table: dict[str, Any]) -> Study:
    inner = {"choose": Choose, "equal_time": EqualTime, "measure": Measured}
    plain: dict[str, Any] = {
        "seeds": tuple[int, ...],
        "reference": str,
        "overhead_seconds": float,
        "checkpoints": Kept,
    }
    _refuse_unknown("study", table, ["contestants", *plain, *inner])
    given = table.get("contestants")
    require(isinstance(given, dict) and bool(given), "study.contestants", given, "a table of them")
    assert isinstance(given, dict)
    if "equal_time" in table:
        table["equal_time"] = _of_one(table["equal_time"])
    parts: dict[str, Any] = {
        key: _section(f"study.{key}", table[key], kind) for key, kind in inner.items()
        if key in table
    }  # fmt: skip
    parts |= {
        key: fitted(f"study.{key}", table[key], t) for key, t in plain.items() if key in table
    }
    contestants = {
        each: _section(
            f"study.contestants.{each}", {"method": each, **_table_of(each, one)}, Contestant
        )
        for each, one in given.items()
    }
    parts.setdefault("reference", next(iter(contestants)))
    study = Study(name=name, recipe=recipe, contestants=contestants, **parts)
    _check(study)
    return study


def _table_of(name: str, value: Any) -> dict[str, Any]:
    require(isinstance(value, dict), f"study.contestants.{name}", value, "a table")
    return value


def _section(key: str, table: Any, kind: Any) -> Any:
    require(isinstance(table, dict), key, table, "a table")
    wanted = get_type_hints(kind)
    _refuse_unknown(key, table, list(wanted))
    for each in fields(kind):
        if each.default is each.default_factory and each.name not in table:
            raise RecipeError(f"{key}.{each.name} must be given", key)
    made = {
        # What is in these is checked later, or by the recipes that they make.
        name: Table(flat(value))
        if name in ("grid", "options", "widen", "factor") and isinstance(value, dict)
        else fitted(f"{key}.{name}", value, wanted[name])
        for name, value in table.items()
    }
    return kind(**made)


def _of_one(table: Any) -> Any:
    """``[study.equal_time]`` with lists and tables, also where it has one name and one number."""
    if not isinstance(table, dict):
        return table
    given = {key: value for key, value in table.items() if (key, value) != ("factor", "none")}
    factor, is_one = given.get("factor", {}), isinstance(given.get("give"), str)
    if is_one and not isinstance(factor, dict):
        given["factor"] = factor = {given["give"]: factor}
    require(isinstance(factor, dict), "study.equal_time.factor", factor,
            "a table with a number for each, such as {SAM = 1.3}")  # fmt: skip
    return {**given, "give": [given["give"]]} if is_one else given


def _refuse_unknown(key: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in table:
        if name not in known:
            raise unknown_key(f"{key}.{name}", f"[{key}]", known)


def _check(study: Study) -> None:
    """Refuses what does not fit together, before anything runs."""
    _check_names(study, "reference", study.reference)
    if study.equal_time is not None:
        _check_equal_time(study, study.equal_time)
    if study.measure is not None:
        check_metrics(study.measure.metrics)
        for split in study.measure.splits:
            require(split in ("train", "test"), "study.measure.splits", split, "train or test")
    _check_seeds("study.seeds", study.seeds)
    folders = [slug(name) for name in study.contestants]
    for name, folder in zip(study.contestants, folders):
        if folders.count(folder) > 1:
            raise UserError(f"study.contestants: {name!r} and another would share a folder")
    if study.choose is not None:
        _check_choose(study, study.choose)
    elif not study.seeds:
        raise UserError("a study needs study.seeds, or [study.choose], or both")
    for name, one in study.contestants.items():
        for key in one.grid:
            if "." not in key and key not in options_of(study.recipe, one.method):
                raise unknown_key(
                    f"study.contestants.{name}.grid.{key}",
                    one.method,
                    options_of(study.recipe, one.method),
                )
        for setting in study.settings(name):
            study.recipe_of(name, setting, seed=0)


def _check_choose(study: Study, choose: Choose) -> None:
    value = choose.validation
    require(0 < value < 1, "study.choose.validation", value, "above 0 and below 1")
    require(choose.epochs is None or choose.epochs >= 1, "study.choose.epochs", choose.epochs,
            "at least 1")  # fmt: skip
    require(bool(choose.seeds), "study.choose.seeds", choose.seeds, "at least one")
    _check_seeds("study.choose.seeds", choose.seeds)
    grids = {"study.choose.grid": choose.grid} | {
        f"study.contestants.{name}.grid": one.grid for name, one in study.contestants.items()
    }
    for place, grid in grids.items():
        for key, values in grid.items():
            require(isinstance(values, tuple) and bool(values), f"{place}.{key}", values,
                    "a list of values")  # fmt: skip
    takes = {o for one in study.contestants.values() for o in options_of(study.recipe, one.method)}
    for key in choose.grid:
        if "." not in key and key not in takes:
            raise unknown_key(f"study.choose.grid.{key}", "a contestant", sorted(takes))
    tried: dict[str, list[Any]] = {}
    for grid in grids.values():
        for key, values in grid.items():
            tried.setdefault(key, []).extend(values)
    for key, most in choose.widen.items():
        if key not in tried:
            raise unknown_key(f"study.choose.widen.{key}", "a grid", sorted(tried))
        at_all = type(most) is int and most >= 1
        require(at_all, f"study.choose.widen.{key}", most, "a whole number, at least 1")
        numbers = all(type(value) in (int, float) for value in tried[key])
        require(numbers, f"study.choose.widen.{key}", most, f"for numbers, not {tried[key]}")


def _check_equal_time(study: Study, equal: EqualTime) -> None:
    _check_names(study, "equal_time.of", equal.of)
    _check_names(study, "equal_time.give", *equal.give)
    require(bool(equal.give), "study.equal_time.give", list(equal.give), "one contestant or more")
    if equal.of in equal.give or len(set(equal.give)) < len(equal.give):
        names = [*equal.give, equal.of]
        raise UserError(f"study.equal_time: give and of must differ, they are {names}")
    for name, factor in equal.factor.items():
        if name not in equal.give:
            raise unknown_key(f"study.equal_time.factor.{name}", "give", equal.give)
        number = fitted("study.equal_time.factor", factor, float)
        require(number > 0, "study.equal_time.factor", factor, "above 0")


def _check_names(study: Study, key: str, *names: str) -> None:
    for name in names:
        if name not in study.contestants:
            raise UserError(f"study.{key}: {unknown('contestant', name, study.contestants)}")


def _check_seeds(key: str, seeds: tuple[int, ...]) -> None:
    require(len(set(seeds)) == len(seeds), key, seeds, "different from each other")
    require(all(seed >= 0 for seed in seeds), key, seeds, "at least 0")
