"""Models by name, and what they say of wrong names and sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from crsam.lab.models import (
    DigitsConv,
    DigitsMLP,
    PyramidNet,
    ResNet,
    WideResNet,
    make_model,
    models,
)

NAMES = [
    "resnet18", "resnet50", "resnet101", "wrn28_10", "pyramidnet110", "vit_s32", "vit_b32",
    "digits_conv", "digits_mlp",
]  # fmt: skip


def test_names() -> None:
    assert models() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_takes_classes_and_channels(name: str) -> None:
    with torch.device("meta"):
        model = make_model(name, num_classes=7, in_channels=2)
        size = {"digits": 8, "vit": 224}.get(name.split("_")[0], 32)
        assert model(torch.empty(3, 2, size, size)).shape == (3, 7)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ResNet-18", ResNet),
        ("WRN-28-10", WideResNet),
        ("PyramidNet_110", PyramidNet),
        ("DigitsConv", DigitsConv),
        ("digits-MLP", DigitsMLP),
    ],
)
def test_names_in_other_spellings(name: str, kind: type) -> None:
    with torch.device("meta"):
        assert isinstance(make_model(name, 10), kind)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("resnet81", "resnet18"),
        ("resnet_100", "resnet101"),
        ("wrn28", "wrn28_10"),
        ("pyramidnet", "pyramidnet110"),
        ("digitconv", "digits_conv"),
    ],
)
def test_unknown_name_says_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"unknown model '{name}': did you mean '{nearest}'"):
        make_model(name, 10)


def test_name_near_none_gets_the_list() -> None:
    with pytest.raises(ValueError, match="unknown model 'gpt': there are resnet18, resnet50, "):
        make_model("gpt", 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {"num_classes": 0}, "num_classes must be a whole number of at least 1, got 0"),
        ("resnet18", {"in_channels": 1.5}, "in_channels must be .*, got 1.5"),
        ("resnet18", {"width": True}, "width must be .*, got True"),
        ("resnet18", {"stem": "mnist"}, "stem must be one of 'cifar', 'imagenet', got 'mnist'"),
        ("wrn28_10", {"depth": 27}, r"depth must be 6n \+ 4 \(10, 16, 22, …\), got 27"),
        ("wrn28_10", {"depth": 4}, "got 4"),
        ("wrn28_10", {"widen_factor": 0}, "widen_factor must be"),
        ("wrn28_10", {"dropout": 1.5, "depth": 10}, "dropout"),
        ("pyramidnet110", {"depth": 112}, r"depth must be 6n \+ 2 \(8, 14, 20, …\), got 112"),
        ("pyramidnet110", {"alpha": -1}, "alpha must be a number of at least 0, got -1"),
        ("pyramidnet110", {"alpha": float("nan")}, "alpha must be .*, got nan"),
        ("digits_conv", {"width": 0}, "width must be"),
        ("digits_mlp", {"num_classes": "10"}, "num_classes must be .*, got '10'"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model(name, **{"num_classes": 10, **options})


def test_wrong_depth_of_a_resnet() -> None:
    with pytest.raises(ValueError, match="depth must be one of 18, 50, 101, got 20"):
        ResNet(20, num_classes=10)
