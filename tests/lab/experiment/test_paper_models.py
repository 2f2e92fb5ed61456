"""Every model of the paper takes a step from a set in CIFAR's layout, with each augmentation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from crsam.lab.experiment.build import build
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.train.distributed import World
from lab.data.cifar_files import write_cifar

MODELS = ["resnet18", "resnet50", "resnet101", "wrn28_10", "pyramidnet110"]
AUGMENTATIONS = ["basic", "cutout", "autoaugment", "randaugment"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cifar")
    write_cifar(folder / "cifar-10-batches-py")
    return folder


@pytest.mark.parametrize("augment", AUGMENTATIONS)
@pytest.mark.parametrize("model", MODELS)
def test_a_paper_model_takes_a_step(model: str, augment: str, root: Path) -> None:
    recipe = load_recipe(
        "cifar10/resnet18",
        [
            *(f"model={model}", f"augment={augment}", f"data.root={root}", "train.batch_size=2"),
            *("method=sgd", "loss.mixup=0.2", "loss.label_smoothing=0.1"),
        ],
    )
    parts = build(recipe, World())
    before = [p.detach().clone() for p in parts.training.model.parameters()]
    loss, _ = parts.take_step(next(parts.batches.epoch(0)))
    assert math.isfinite(loss.item())
    after = parts.training.model.parameters()
    assert all(p.isfinite().all() and not torch.equal(p, b) for p, b in zip(after, before))
