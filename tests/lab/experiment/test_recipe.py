"""Recipes put together in Python: what they put right, what they refuse, how they compare."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch

import crsam
from crsam.errors import UserError
from crsam.lab.data.augment import augmentations, make_augment
from crsam.lab.experiment.options import accepted, canonical, optimizers
from crsam.lab.experiment.ranges import Sweep
from crsam.lab.experiment.recipe import Recipe, as_tables, differences
from crsam.lab.experiment.sections import Choice, Data, Log, Loss, Train
from crsam.lab.experiment.values import RecipeError, Table, described, fitted
from crsam.lab.models import make_model, models


def test_the_default_recipe_is_the_digits_with_crsam() -> None:
    recipe = Recipe()
    assert (recipe.method, recipe.data.name, recipe.model.name) == ("crsam", "digits", "digits_mlp")
    assert recipe.optimizer == Choice("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4})
    assert recipe.method_options == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Data(name="cifar"), "unknown dataset 'cifar': did you mean 'cifar10'"),
        (lambda: Data(root=3), "data.root must be text, got 3"),
        (lambda: Data(root="\udc80"), "data.root must be text, got '\\udc80'"),
        (lambda: Data(validation=1.0), "data.validation must be at least 0 and below 1, got 1.0"),
        (lambda: Data(validation=-0.1), "data.validation must be at least 0 and below 1, got -0.1"),
        (lambda: Data(test_share=1.0), "data.test_share must be at least 0 and below 1, got 1.0"),
        (lambda: Data(label_noise=1.1), "data.label_noise must be between 0 and 1, got 1.1"),
        (lambda: Data(image_size=0), "data.image_size must be at least 1, got 0"),
        (lambda: Data(image_size=8.0), 'data.image_size must be a whole number or "none", got 8.0'),
        (lambda: Data(download=1), "data.download must be true or false, got 1"),
        (lambda: Loss(label_smoothing=1.0), "loss.label_smoothing must be at least 0 and below 1"),
        (lambda: Loss(mixup=-1), "loss.mixup must be at least 0, got -1.0"),
        (lambda: Loss(mixup=float("nan")), "loss.mixup must be a finite number, got nan"),
        (lambda: Train(epochs="ten"), "train.epochs must be a whole number, got 'ten'"),
        (lambda: Train(epochs=True), "train.epochs must be a whole number, got True"),
        (lambda: Train(epochs=0), "train.epochs must be at least 1, got 0"),
        (lambda: Train(batch_size=0), "train.batch_size must be at least 1, got 0"),
        (lambda: Train(accumulate=0), "train.accumulate must be at least 1, got 0"),
        (
            lambda: Train(batch_size=64, accumulate=3),
            "train.accumulate must divide train.batch_size = 64, got 3",
        ),
        (
            lambda: Train(precision="fp16"),
            "train.precision must be one of 'float32', 'bfloat16', 'float64', got 'fp16'",
        ),
        (lambda: Train(clip_norm=0), 'train.clip_norm must be above 0 or "none", got 0.0'),
        (lambda: Train(clip_norm=float("inf")), "train.clip_norm must be a finite number, got inf"),
        (lambda: Train(clip_norm=10**400), "train.clip_norm must be a number"),
        (lambda: Train(ema=1), 'train.ema must be between 0 and 1 or "none", got 1.0'),
        (lambda: Log(every=0), "log.every must be at least 1, got 0"),
        (lambda: Log(evaluate=0), "log.evaluate must be at least 1, got 0"),
        (lambda: Log(checkpoint=0), "log.checkpoint must be at least 1, got 0"),
        (lambda: Log(tensorboard="yes"), "log.tensorboard must be true or false, got 'yes'"),
        (lambda: Recipe(seed=-1), "seed must be at least 0 and below 2**63, got -1"),
        (lambda: Recipe(seed=2**63), "seed must be at least 0 and below 2**63, got 922"),
        (lambda: Recipe(seed=1.0), "seed must be a whole number, got 1.0"),
        (lambda: Recipe(model=Choice("resnet81")), "unknown model 'resnet81': did you mean"),
        (lambda: Recipe(model=Choice(3)), "model.name must be text, got 3"),
        (lambda: Recipe(augment=Choice("cutuot")), "unknown augmentation 'cutuot': did you mean"),
        (
            lambda: Recipe(model=Choice("resnet18", {"widht": 3})),
            "unknown key 'model.widht': did you mean model.width? resnet18 takes name, stem, width",
        ),
        (
            lambda: Recipe(augment=Choice("none", {"pad": 3})),
            "unknown key 'augment.pad': none takes name",
        ),
        (
            lambda: Recipe(model=Choice("resnet18", {"in_channels": 3})),
            "unknown key 'model.in_channels'",
        ),
        (
            lambda: Recipe(model=Choice("resnet18", {"width": 1.5})),
            "model.width must be a whole number, got 1.5",
        ),
        (
            lambda: Recipe(augment=Choice("cutout", {"fill": ["red"]})),
            "augment.fill must be a list of whole numbers, got ('red',)",
        ),
        (
            lambda: Recipe(optimizer=Choice("adamw", {"lr": 1, "betas": [0.9]})),
            "optimizer.betas must be a list of 2 numbers, got (0.9,)",
        ),
        (lambda: Recipe(optimizer=Choice("sgd")), "optimizer.lr must be given; 'sgd' has none"),
        (lambda: Recipe(optimizer=Choice("adm")), "unknown optimizer 'adm': did you mean 'adam'"),
        (
            lambda: Recipe(optimizer=Choice("LBFGS", {"lr": 1})),
            "optimizer.name must not be 'LBFGS': it calls for the loss many times a step",
        ),
        (
            lambda: Recipe(optimizer=Choice("sparse_adam", {"lr": 1})),
            "optimizer.name must not be 'sparse_adam': it takes sparse gradients only",
        ),
        (lambda: Recipe(method="smm"), "unknown method 'smm': did you mean 'sam'? there are crsam"),
        (
            lambda: Recipe(method="adamw"),
            "method 'adamw' is not the optimizer of this recipe: for that alone, say 'sgd' or",
        ),
        (lambda: Recipe(methods={"smm": {}}), "unknown method 'smm': did you mean 'sam'"),
        (lambda: Recipe(methods={"sam": 3}), "methods.sam must be a table of options, got 3"),
        (
            lambda: Recipe(methods={"sam": {"rho": 1}, "SAM": {"rho": 2}}),
            "methods.SAM: there is another table of sam",
        ),
        (
            lambda: Recipe(methods={"sgd": {"lr": 1}}),
            "methods.sgd: the options of the base are those of [optimizer]",
        ),
        (
            lambda: Recipe(methods={"crsam": {"rhoo": 1}}),
            "unknown key 'methods.crsam.rhoo': did you mean methods.crsam.rho? crsam takes rho",
        ),
        (
            lambda: Recipe(methods={"crsam": {"form": "cubic"}}),
            "methods.crsam.form must be one of 'log', 'linear', got 'cubic'",
        ),
        (lambda: Recipe(methods={"sam": {"seed": 1}}), "unknown key 'methods.sam.seed'"),
        (lambda: Recipe(methods={"sam": {"max_norm": 1}}), "unknown key 'methods.sam.max_norm'"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_knows_its_key() -> None:
    with pytest.raises(RecipeError) as caught:
        Train(epochs=0)
    assert caught.value.key == "train.epochs"
    assert pickle.loads(pickle.dumps(caught.value)).key == "train.epochs"


def test_numbers_get_the_type_that_is_asked_for() -> None:
    train = Train(clip_norm=1, ema="none")
    assert type(train.clip_norm) is float
    assert train.ema is None
    recipe = Recipe(optimizer=Choice("adamw", {"lr": 1, "betas": [0, 0.9]}))
    assert repr(recipe.optimizer.options) == "{'lr': 1.0, 'betas': (0.0, 0.9)}"


def test_none_can_be_said_where_it_is_allowed() -> None:
    assert Recipe(methods={"crsam": {"trust": "none"}}).method_options["trust"] is None
    assert Data(root="none").root == "none"
    assert fitted("a", "none", str | None) is None
    with pytest.raises(UserError, match="rho must be a number, got 'none'"):
        Recipe(methods={"crsam": {"rho": "none"}})


def test_other_spellings_make_equal_recipes() -> None:
    spelled = Recipe(
        method="CR-SAM",
        methods={"CR-SAM": {"rho": 1}},
        data=Data("CIFAR-10"),
        augment=Choice("Auto_Augment"),
        model=Choice("WRN-28-10"),
        optimizer=Choice("AdamW", {"lr": 1}),
    )
    plain = Recipe(
        method="crsam",
        methods={"crsam": {"rho": 1.0}},
        data=Data("cifar10"),
        augment=Choice("autoaugment"),
        model=Choice("wrn28_10"),
        optimizer=Choice("adamw", {"lr": 1.0}),
    )
    assert spelled == plain
    assert hash(spelled) == hash(plain)


@pytest.mark.parametrize("name", ["base", "sgd", "SGD"])
def test_the_optimizer_alone_goes_by_its_own_name(name: str) -> None:
    recipe = Recipe(methods={"sam": {"rho": 0.2}}).with_method(name)
    assert recipe.method == "sgd"
    assert recipe.method_options == {}


def test_with_method_changes_nothing_else() -> None:
    recipe = Recipe(methods={"sam": {"rho": 0.2}}, seed=3)
    other = recipe.with_method("SAM")
    assert other.method_options == {"rho": 0.2}
    assert differences(recipe, other) == ['method: "crsam" there, "sam" here']


def test_recipes_and_their_options_do_not_change() -> None:
    given = {"width": 8}
    recipe = Recipe(model=Choice("resnet18", given))
    given["width"] = 16
    assert recipe.model.options["width"] == 8
    with pytest.raises(TypeError):
        recipe.model.options["width"] = 16  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        recipe.seed = 1  # type: ignore[misc]


def test_tables_compare_as_dicts_do_and_can_be_hashed() -> None:
    nested = {"a": [1, {"b": 2}], "c": {"d": [3]}}
    table = Table(nested)
    assert table == Table({"c": {"d": (3,)}, "a": (1, {"b": 2})})
    assert hash(table) == hash(Table({"c": {"d": (3,)}, "a": (1, {"b": 2})}))
    assert table != Table({"a": 1})
    assert Table({"a": 1}) == {"a": 1}
    assert len({Choice("x", {"a": [1]}), Choice("x", {"a": (1,)}), Choice("x")}) == 2


def test_recipes_survive_copies_and_other_processes() -> None:
    recipe = Recipe(augment=Choice("cutout", {"fill": [1, 2, 3]}), methods={"sam": {"rho": 1}})
    assert pickle.loads(pickle.dumps(recipe)) == recipe == copy.deepcopy(recipe)


def test_differences_come_in_the_order_of_the_tables() -> None:
    a = Recipe(model=Choice("resnet18", {"width": 8}), methods={"sam": {"rho": 0.1}})
    b = replace(a, train=Train(epochs=60), model=Choice("wrn28_10"), seed=1, methods={"asam": {}})
    assert differences(a, b) == [
        "seed: 0 there, 1 here",
        'model.name: "resnet18" there, "wrn28_10" here',
        "model.width: 8 there, nothing here",
        "train.epochs: 40 there, 60 here",
        "methods.sam.rho: 0.1 there, nothing here",
        "methods.asam: nothing there, {} here",
    ]
    assert differences(b, a)[1:4] == [
        'model.name: "wrn28_10" there, "resnet18" here',
        "model.width: nothing there, 8 here",
        "train.epochs: 60 there, 40 here",
    ]
    assert differences(a, a) == []


def test_tables_of_a_recipe_have_every_field() -> None:
    tables = as_tables(Recipe())
    unsaid = {"sweep", "init"}  # where there is none
    assert set(tables) == set(Recipe.__dataclass_fields__) - unsaid
    assert as_tables(Recipe(init="net.pt"))["init"] == "net.pt"
    assert "sweep" in as_tables(Recipe(sweep=Sweep({"seed": [0, 1]})))
    assert set(tables["train"]) == set(Train.__dataclass_fields__)


@pytest.mark.parametrize("name", list(optimizers()))
def test_every_optimizer_can_be_made_and_led(name: str) -> None:
    recipe = Recipe(optimizer=Choice(name, {"lr": 0.1}))
    weight = torch.nn.Parameter(torch.ones(2, 2))
    base = optimizers()[name]([weight], **recipe.optimizer.options)
    crsam.make(recipe.method, base)


@pytest.mark.parametrize("name", crsam.methods())
def test_options_of_methods_are_those_of_their_classes(name: str) -> None:
    options = accepted("methods", name)
    assert {"rho", "warmup"} <= options.keys()
    assert not {"base", "model", "seed", "max_norm", "common", "options"} & options.keys()
    base = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    for option, wanted in options.items():
        crsam.make(name, base, **{option: sample(wanted)})


@pytest.mark.parametrize("name", models())
def test_options_of_models_are_those_of_their_classes(name: str) -> None:
    options = accepted("model", name)
    assert not {"num_classes", "in_channels"} & options.keys()
    assert "depth" not in options or not name.startswith("resnet")
    for option, wanted in options.items():
        valid = {"depth": {"wrn28_10": 10, "pyramidnet110": 8}.get(name)}
        if name.startswith("vit"):  # whose sizes must divide each other
            valid |= {"image_size": 64, "width": 24}
        with torch.device("meta"):
            make_model(name, 3, **{option: valid.get(option) or sample(wanted)})


@pytest.mark.parametrize("name", augmentations())
def test_options_of_augmentations_are_those_of_their_makers(name: str) -> None:
    for option, wanted in accepted("augment", name).items():
        valid = {"policy": "imagenet", "shape": 2.0}
        make_augment(name, **{option: valid.get(option, sample(wanted))})


def test_options_of_a_chain_are_those_of_all_its_parts() -> None:
    around = {"pad", "flip_share", "side", "fill", "cut_share"}
    assert accepted("augment", "cutout").keys() == around
    assert accepted("augment", "autoaugment").keys() == {"policy", "levels"} | around
    assert accepted("augment", "randaugment").keys() == {"num_ops", "magnitude"} | around


def sample(wanted: Any) -> Any:
    """A value of the type that everything here allows."""
    for value in (0.5, 1, True, None, "log", "gradient", "dynamic", "cifar", "code", "batch", (1,)):
        try:
            if fitted("", value, wanted) == value and type(value) is type(
                fitted("", value, wanted)
            ):
                return value
        except UserError:
            continue
    raise AssertionError(f"no sample of {wanted}")


def test_types_in_words() -> None:
    assert described(str | tuple[tuple[str, int], ...]) == "text or a list of lists"
    assert described(torch.nn.Module | None) == '"none"'
    assert described(tuple[float | torch.Tensor, ...]) == "a list of numbers"
    assert described(torch.Tensor) == "something that no recipe can hold"


def test_untyped_options_may_be_nested() -> None:
    assert fitted("a", {"b": [1, {"c": "none"}]}, Any) == Table({"b": (1, {"c": None})})
    with pytest.raises(UserError, match="a must be a number, text, list or table"):
        fitted("a", {"b": [object()]}, Any)


def test_names_are_known_in_any_spelling() -> None:
    assert canonical("methods", "Gradient-Norm_Penalty", "method") == "gradientnormpenalty"
