"""Every row of the paper's tables: its recipe is there, true to the paper, and runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crsam.lab.data.augment import (
    Augmentation,
    AutoAugment,
    Basic,
    Chain,
    Cutout,
    make_augment,
)
from crsam.lab.data.cifar import CIFAR10, CIFAR100
from crsam.lab.experiment.paper import printed
from crsam.lab.experiment.run import run
from crsam.lab.experiment.sections import Choice, Train
from crsam.lab.experiment.toml import load_recipe, recipes
from crsam.lab.models import make_model
from lab.data.cifar_files import write_cifar

CIFAR = [
    (data, model, augment)
    for model, rows in printed("cifar").items()
    for data in ("cifar10", "cifar100")
    for augment in rows[data]
]
IMAGENET = list(printed("imagenet"))
ROWS = [
    *(f"paper/{data}/{model}-{augment}" for data, model, augment in CIFAR),
    *(f"paper/imagenet/{model}" for model in IMAGENET),
    "paper/geometry",
]
NAMED_IN_THE_TEXT = ["paper/cifar10/resnet50-basic", "paper/cifar100/resnet50-basic"]
ROWS += NAMED_IN_THE_TEXT
"""Of a net that section 4.1 names and no table has."""
NARROW = {
    "resnet18": ["model.width=4"],
    "resnet50": ["model.width=4"],
    "resnet101": ["model.width=2"],
    "wrn28_10": ["model.depth=10", "model.widen_factor=1"],
    "pyramidnet110": ["model.depth=14", "model.alpha=10"],
    "vit_s32": ["model.depth=1", "model.width=12", "model.image_size=64"],
    "vit_b32": ["model.depth=1", "model.width=12", "model.image_size=64"],
}
SIZES = {  # million weights
    ("resnet18", 10): 11.2, ("resnet18", 100): 11.2, ("resnet101", 10): 42.5,
    ("resnet101", 100): 42.7, ("wrn28_10", 10): 36.5, ("wrn28_10", 100): 36.5,
    ("pyramidnet110", 10): 28.5, ("pyramidnet110", 100): 28.5, ("resnet50", 1000): 25.6,
    ("resnet50", 10): 23.5, ("resnet50", 100): 23.7,
    ("resnet101", 1000): 44.5, ("vit_s32", 1000): 22.9, ("vit_b32", 1000): 88.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both CIFARs and an ImageNet of three classes, in their layouts."""
    folder = tmp_path_factory.mktemp("sets")
    write_cifar(folder / "cifar-10-batches-py", CIFAR10, each=4)
    write_cifar(folder / "cifar-100-python", CIFAR100, each=20)
    draw = np.random.default_rng(0)
    for split, each in (("train", 7), ("val", 1)):
        for name in ("n01", "n02", "n03"):
            (folder / "imagenet" / split / name).mkdir(parents=True)
            for i in range(each):
                pixels = draw.integers(256, size=(90, 70, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / "imagenet" / split / name / f"{i}.JPEG")
    return folder


def test_there_is_a_recipe_for_every_row_and_no_other() -> None:
    assert len(CIFAR) == 24
    tables = (name for name in recipes() if name.startswith("paper/"))
    assert sorted(ROWS) == sorted(n for n in tables if not n.startswith("paper/figure"))


@pytest.mark.parametrize("name", ROWS)
def test_every_row_takes_two_steps_and_is_tested(name: str, root: Path, tmp_path: Path) -> None:
    full = load_recipe(name)
    imagenet = full.data.name == "folder"
    overrides = [
        *(f"data.root={root / 'imagenet' if imagenet else root}", "train.batch_size=10"),
        *("train.epochs=1", "schedule.warmup=0", *NARROW[full.model.name]),
        *(["data.image_size=64"] if imagenet else []),
        *(["measure.num_probes=2"] if full.measure.metrics else []),
    ]
    recipe = load_recipe(name, overrides)
    assert recipe.method == "crsam"
    result = run(recipe, tmp_path, lines=False)
    assert result["steps"] == 2
    assert result["diverged_at"] is None
    assert math.isfinite(result["test_loss"])


@pytest.mark.parametrize("name", ROWS)
def test_the_true_model_of_every_row_has_its_published_size(name: str) -> None:
    recipe = load_recipe(name)
    num_classes = {"cifar10": 10, "cifar100": 100, "folder": 1000}[recipe.data.name]
    with torch.device("meta"):
        model = make_model(recipe.model.name, num_classes, **recipe.model.options)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    assert round(size, 1) == SIZES[recipe.model.name, num_classes]


@pytest.mark.parametrize(("data", "model", "augment"), CIFAR)
def test_rows_of_table_1_have_the_settings_of_table_4(data: str, model: str, augment: str) -> None:
    recipe, basic = load_recipe(f"paper/{data}/{model}-{augment}"), load_recipe(f"{data}/{model}")
    assert (recipe.data.name, recipe.model.name, recipe.augment.name) == (data, model, augment)
    assert (recipe.optimizer, recipe.methods) == (basic.optimizer, basic.methods)
    assert recipe.train == Train(epochs=200, batch_size=128, rho_warmup=200)


@pytest.mark.parametrize(("data", "model", "augment"), CIFAR)
def test_cutout_is_applied_where_the_row_names_it_and_nowhere_else(
    data: str, model: str, augment: str
) -> None:
    """As in the authors' code (utils/dataset.py, utils/cutout.py): with probability 0.5."""
    choice = load_recipe(f"paper/{data}/{model}-{augment}").augment
    built = make_augment(choice.name, **choice.options)
    parts = built.parts if isinstance(built, Chain) else (built,)
    theirs: dict[str, tuple[Augmentation, ...]] = {
        "basic": (Basic(),),
        "cutout": (Basic(), Cutout(16, share=0.5)),
        "autoaugment": (Basic(), AutoAugment()),
    }
    assert parts == theirs[augment]


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_resnet50_has_the_settings_of_resnet101(data: str) -> None:
    recipe, printed_one = (
        load_recipe(f"paper/{data}/resnet50-basic"),
        load_recipe(f"{data}/resnet101"),
    )
    assert replace(recipe, model=printed_one.model) == printed_one
    assert recipe.model == Choice("resnet50")


TABLE_5 = {
    "resnet50": (90, "sgd", 0.1, 3e-5, 0.10, (0.15, 0.1, 0.01)),
    "resnet101": (90, "sgd", 0.1, 3e-5, 0.10, (0.15, 0.2, 0.01)),
    "vit_s32": (300, "adamw", 3e-3, 0.3, 0.05, (0.10, 0.05, 0.01)),
    "vit_b32": (300, "adamw", 3e-3, 0.3, 0.05, (0.10, 0.05, 0.01)),
}


@pytest.mark.parametrize("model", IMAGENET)
def test_rows_of_table_2_have_the_settings_of_table_5(model: str) -> None:
    epochs, base, lr, weight_decay, rho, (rho_c, alpha, beta) = TABLE_5[model]
    recipe = load_recipe(f"paper/imagenet/{model}")
    assert (recipe.train.epochs, recipe.train.batch_size) == (epochs, 512)
    assert recipe.augment == Choice("inception")
    assert recipe.optimizer.name == base
    assert recipe.optimizer.options["lr"] == lr
    assert recipe.optimizer.options["weight_decay"] == weight_decay
    assert recipe.methods["sam"] == recipe.methods["rsam"] == {"rho": rho}
    assert recipe.methods["crsam"] == {"rho": rho_c, "alpha": alpha, "beta": beta}
