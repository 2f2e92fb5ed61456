"""The recipes that come with the package: short, true to their sources, and accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import crsam
from crsam.lab.data.augment import make_augment
from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.options import optimizers
from crsam.lab.experiment.sections import Choice, Data, Train
from crsam.lab.experiment.toml import load_recipe, recipes, studies
from crsam.lab.models import make_model
from crsam.lab.train.schedule import Schedule

RECIPES = Path(crsam.__file__).parent / "lab" / "recipes"
FILES = sorted(path.relative_to(RECIPES).as_posix() for path in RECIPES.rglob("*.toml"))


def test_every_shipped_file_is_listed_but_the_bases() -> None:
    listed = [*recipes(), *(f"studies/{name}" for name in studies())]
    assert sorted(f"{name}.toml" for name in listed) == [
        file for file in FILES if not file.endswith("base.toml")
    ]
    assert {"demo", "digits", "folder", "cifar10/quick", "cifar100/wrn28_10"} <= set(recipes())


@pytest.mark.parametrize("file", FILES)
def test_shipped_files_are_short_and_open_with_their_command(file: str) -> None:
    lines = (RECIPES / file).read_text().splitlines()
    study = file.startswith("studies/")
    assert 4 <= len(lines) <= (70 if study else 37)
    assert all(len(line) <= 100 for line in lines)
    name = file.removesuffix(".toml").removeprefix("studies/")
    name = name.replace("/base", "/resnet50" if "imagenet" in name else "/resnet18")
    assert lines[0].startswith("# ")
    commands = "study" if study else "train|compare|sweep|bench"
    assert re.fullmatch(rf"#   crsam ({commands}) {name}( .*)?", lines[1])
    assert "steps an epoch" in " ".join(lines[2:5])


@pytest.mark.parametrize("name", recipes())
def test_shipped_recipes_are_accepted_by_what_they_name(name: str) -> None:
    recipe = load_recipe(name)
    make_augment(recipe.augment.name, **recipe.augment.options)
    with torch.device("meta"):
        model = make_model(recipe.model.name, 10, **recipe.model.options)
    base = optimizers()[recipe.optimizer.name](model.parameters(), **recipe.optimizer.options)
    for method, hyper in recipe.methods.items():
        crsam.make(method, base, **hyper)


TABLE_4 = {
    ("cifar10", "resnet18"): (0.05, 0.10, 0.1, 0.01),
    ("cifar100", "resnet18"): (0.10, 0.15, 0.5, 0.01),
    ("cifar10", "resnet101"): (0.05, 0.10, 0.2, 0.05),
    ("cifar100", "resnet101"): (0.10, 0.15, 0.5, 0.05),
    ("cifar10", "wrn28_10"): (0.10, 0.10, 0.5, 0.1),
    ("cifar100", "wrn28_10"): (0.10, 0.15, 0.5, 0.1),
    ("cifar10", "pyramidnet110"): (0.15, 0.20, 0.5, 0.1),
    ("cifar100", "pyramidnet110"): (0.15, 0.20, 0.5, 0.1),
}


@pytest.mark.parametrize(("data", "model"), list(TABLE_4))
def test_cifar_recipes_are_those_of_the_papers_table_4(data: str, model: str) -> None:
    rho_sam, rho, alpha, beta = TABLE_4[data, model]
    recipe = load_recipe(f"{data}/{model}")
    assert (recipe.data.name, recipe.model) == (data, Choice(model))
    assert recipe.train == Train(epochs=200, batch_size=128, rho_warmup=200)
    assert recipe.schedule == Schedule("cosine")
    assert recipe.augment.name == "basic"
    sgd = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}  # the table: 5e-3 but for WRN-28-10
    assert recipe.optimizer == Choice("sgd", sgd)
    assert recipe.methods["sam"] == {"rho": rho_sam}
    assert recipe.methods["crsam"] == {"rho": rho, "alpha": alpha, "beta": beta}


@pytest.mark.parametrize("name", ["cutout", "autoaugment"])
def test_the_papers_other_augmentations_are_one_override(name: str) -> None:
    recipe = load_recipe("cifar10/resnet18", [f"augment={name}"])
    assert recipe.augment == Choice(name)


def test_the_demo_is_the_quickstart() -> None:
    recipe = load_recipe("demo")
    assert recipe.data == Data("digits", label_noise=0.3)
    assert recipe.optimizer == Choice("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4})
    assert recipe.train == Train(epochs=40, batch_size=64, rho_warmup=200)
    assert recipe.schedule == Schedule("cosine")
    assert recipe.methods == {"sam": {"rho": 0.3}, "crsam": {"rho": 0.3}}


@pytest.mark.parametrize("name", ["resnet50", "vit_s32"])
def test_imagenette_gives_every_method_the_same_radius(name: str) -> None:
    recipe, paper = load_recipe(f"imagenette/{name}"), load_recipe(f"paper/imagenet/{name}")
    assert {options["rho"] for options in recipe.methods.values()} == {0.1}
    assert {options["warmup"] for options in recipe.methods.values()} == {100}
    assert list(recipe.methods) == ["sam", "rsam", "crsam"]
    assert (recipe.model.name, recipe.optimizer.name) == (paper.model.name, paper.optimizer.name)
    assert recipe.augment.name == paper.augment.name == "inception"
    contestants = load_study(f"imagenette_{name}").contestants
    assert [one.method for one in contestants.values()] == [paper.optimizer.name, *recipe.methods]
