"""Any recipe, written as TOML and read again, is the same."""

from __future__ import annotations

import re
import tomllib
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crsam
from crsam.lab.experiment.literal import literal
from crsam.lab.experiment.options import KINDS, accepted
from crsam.lab.experiment.recipe import Recipe, differences
from crsam.lab.experiment.sections import Choice, Data, Log, Loss, Train
from crsam.lab.experiment.toml import load_recipe, to_toml
from crsam.lab.experiment.values import frozen
from crsam.lab.train.schedule import Schedule

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1e-30, 1e16, 5e-324])
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    NoneType: st.none(),
    bool: st.booleans(),
    int: st.integers(),
    float: FLOATS | st.integers(-(2**60), 2**60),
    str: TEXT | st.just("none"),
}


def values(wanted: Any) -> st.SearchStrategy[Any]:
    """Values of a type."""
    kind, parts = get_origin(wanted), get_args(wanted)
    if kind in (Union, UnionType):
        held = [part for part in parts if part in SIMPLE or get_origin(part) in (tuple, Literal)]
        return st.one_of(*map(values, held))
    if kind is Literal:
        return st.sampled_from(parts)
    if kind is tuple and parts[-1] is ...:
        return st.lists(values(parts[0]), max_size=3)
    if kind is tuple:
        return st.tuples(*map(values, parts))
    return SIMPLE[wanted]


def options(table: str, name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={o: values(wanted) for o, wanted in accepted(table, name).items()}
    )


def choices(table: str) -> st.SearchStrategy[Choice]:
    return st.sampled_from(sorted(KINDS[table].names())).flatmap(
        lambda name: options(table, name).map(
            lambda given: Choice(name, {"lr": 1, **given} if table == "optimizer" else given)
        )
    )


SHARE = st.floats(0, 1, exclude_max=True)
COUNT = st.integers(1, 10**6)
RECIPE = st.builds(
    Recipe,
    seed=st.integers(0, 2**63 - 1),
    init=st.none() | TEXT.filter(lambda text: text not in ("", "none")),
    method=st.sampled_from(["base", *crsam.methods()]),
    methods=st.fixed_dictionaries({}, optional={n: options("methods", n) for n in crsam.methods()}),
    data=st.builds(
        Data,
        name=st.sampled_from(["digits", "CIFAR-10"]),
        root=TEXT,
        validation=SHARE,
        test_share=SHARE,
        label_noise=SHARE,
        image_size=st.none() | COUNT,
        download=st.booleans(),
    ),
    augment=choices("augment"),
    loss=st.builds(Loss, label_smoothing=SHARE, mixup=st.floats(0, 1e300)),
    model=choices("model"),
    optimizer=choices("optimizer"),
    schedule=st.builds(
        Schedule, warmup=st.floats(0, 1e9), milestones=st.lists(st.floats(0, 1e9), max_size=3)
    ),
    train=st.builds(
        Train,
        epochs=COUNT,
        batch_size=st.sampled_from([12, 24]),
        accumulate=st.sampled_from([1, 4]),
        precision=st.sampled_from(["float32", "bfloat16", "float64"]),
        clip_norm=st.none() | st.floats(1e-300, 1e300),
        backbone_lr=st.floats(1e-9, 1e9),
        ema=st.none() | st.floats(0.1, 0.999),
    ),
    log=st.builds(Log, every=COUNT, tensorboard=st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(recipe=RECIPE)
def test_what_is_written_reads_as_the_same_recipe(
    recipe: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.toml"
    path.write_text(to_toml(recipe), encoding="utf-8")
    again = load_recipe(path)
    assert again == recipe
    assert hash(again) == hash(recipe)
    assert to_toml(again) == to_toml(recipe)
    assert differences(recipe, again) == []


def test_every_field_is_written() -> None:
    text = to_toml(Recipe())
    assert 'clip_norm = "none"' in text
    for section in (Data, Loss, Schedule, Train, Log):
        for name in section.__dataclass_fields__:
            assert re.search(rf"^{name} = ", text, re.MULTILINE)


@pytest.mark.parametrize("text", ["\x7f", "\x00\x1f", "\\u0041", '"""', "\r\n", "\x85\u2028", "€𝄞"])
def test_odd_characters_are_written_as_toml_wants_them(text: str) -> None:
    value = {"key": text, text: [{"a.b": True}]}
    assert tomllib.loads(f"v = {literal(frozen(value))}") == {"v": value}
