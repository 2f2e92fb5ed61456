"""Models of timm's by name, without timm: what is passed on, and what is said of mistakes.

That the true ones can be trained is tested where timm is: `test_timm_itself.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from crsam.errors import UserError
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.run import evaluate_run, run
from crsam.lab.experiment.sections import Choice
from crsam.lab.experiment.toml import load_recipe, to_toml
from crsam.lab.models import make_model
from lab.experiment.runs import tiny

NAMES = ["resnet50", "vit_small_patch32_224", "vit_small_patch16_224"]


class FakeTimm(ModuleType):
    """Three models, of which ViTs are made for a size of image; remembers how it was called."""

    def __init__(self) -> None:
        super().__init__("timm")
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.models = ModuleType("timm.models")
        vars(self.models)["get_pretrained_cfg"] = lambda name: SimpleNamespace(
            fixed_input_size=name.startswith("vit")
        )

    def list_models(self, pattern: str = "", pretrained: bool = False) -> list[str]:
        return ["resnet50.a1_in1k"] if pattern == "resnet50.*" and pretrained else NAMES

    def create_model(self, name: str, num_classes: int, in_chans: int, **options: Any) -> nn.Module:
        self.calls.append((name, {"num_classes": num_classes, "in_chans": in_chans, **options}))
        if options.get("pretrained") == "offline":
            raise ConnectionError("no route\nto anywhere")
        if "drop_pth" in options:
            raise TypeError("unexpected keyword argument 'drop_pth'")
        return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_chans, num_classes))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> FakeTimm:
    fake = FakeTimm()
    monkeypatch.setitem(sys.modules, "timm", fake)
    monkeypatch.setitem(sys.modules, "timm.models", fake.models)
    return fake


def test_classes_channels_and_options_are_passed_on(timm: FakeTimm) -> None:
    make_model("timm:ResNet-50", 7, in_channels=1, image_size=160, drop_rate=0.1)
    make_model("timm:vit_small_patch32_224", 7, image_size=160)
    make_model("timm:vit_small_patch32_224", 7, image_size=160, img_size=96)
    vit = {"num_classes": 7, "in_chans": 3}
    assert timm.calls == [
        ("resnet50", {"num_classes": 7, "in_chans": 1, "drop_rate": 0.1}),
        ("vit_small_patch32_224", {**vit, "img_size": 160}),
        ("vit_small_patch32_224", {**vit, "img_size": 96}),
    ]


def test_a_tag_names_certain_weights(timm: FakeTimm) -> None:
    make_model("timm:resnet50.a1_in1k", 7, pretrained=True)
    assert timm.calls[0][0] == "resnet50.a1_in1k"
    with pytest.raises(UserError, match=r"unknown tag 'b2' of timm's resnet50: .* are a1_in1k"):
        make_model("timm:resnet50.b2", 7)


def test_unknown_names_get_the_nearest(timm: FakeTimm) -> None:
    for ask in (
        lambda name: make_model(name, 7),
        lambda name: Recipe(model=Choice(name)),
        lambda name: load_recipe("digits", [f"model={name}"]),
    ):
        with pytest.raises(UserError, match="unknown model 'timm:vit_smal_patch_32'") as error:
            ask("timm:vit_smal_patch_32")
        assert "did you mean timm:vit_small_patch32_224" in str(error.value)
        assert "timm has 3 models" in str(error.value)


def test_options_that_timm_refuses_are_told(timm: FakeTimm) -> None:
    with pytest.raises(UserError, match=r"cannot make resnet50\(drop_pth=1\): TypeError: unexp"):
        make_model("timm:resnet50", 7, drop_pth=1)


def test_weights_that_cannot_be_had_are_told_in_one_line(timm: FakeTimm) -> None:
    with pytest.raises(
        UserError, match=r"no weights for resnet50, .*no route.*: .* init=FILE"
    ) as error:
        make_model("timm:resnet50", 7, pretrained="offline")
    assert "\n" not in str(error.value)


def test_without_timm_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"'timm:resnet50' needs timm .*: pip install timm"):
        make_model("timm:resnet50", 7)
    with pytest.raises(UserError, match="pip install timm"):
        load_recipe("digits", ["model=timm:resnet50"])


def test_recipes_take_whatever_timm_takes_and_no_more(timm: FakeTimm, tmp_path: Path) -> None:
    words = ["model=timm:ResNet-50", "model.drop_path_rate=0.1", "model.pretrained=true"]
    recipe = load_recipe("digits", words)
    assert recipe.model == Choice("timm:resnet50", {"drop_path_rate": 0.1, "pretrained": True})
    (tmp_path / "again.toml").write_text(to_toml(recipe))
    assert load_recipe(tmp_path / "again.toml") == recipe
    for word, message in (
        ("model.in_chans=1", "unknown key 'model.in_chans'"),
        ("model.num_classes=3", "unknown key 'model.num_classes'"),
        ("model.pretrained=3", "model.pretrained must be true or false, got 3"),
    ):
        with pytest.raises(UserError, match=message):
            load_recipe("digits", [*words, word])


def test_weights_are_fetched_when_a_run_begins_and_never_again(
    timm: FakeTimm, tmp_path: Path
) -> None:
    recipe = tiny("model=timm:resnet50", "model.pretrained=true", "train.epochs=1")
    run(recipe, tmp_path, lines=False)
    (tmp_path / "result.json").unlink()
    run(recipe, tmp_path, lines=False)
    evaluate_run(tmp_path)
    assert [call["pretrained"] for _, call in timm.calls if "pretrained" in call] == [True]
    assert len(timm.calls) == 3
    assert all((call["num_classes"], call["in_chans"]) == (10, 1) for _, call in timm.calls)


def test_timm_is_not_imported_until_it_is_asked_for() -> None:
    code = "import crsam.lab.cli, sys; print({'timm', 'torchvision'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_our_vit_is_made_for_the_images(tmp_path: Path) -> None:
    words = ["model=vit_s32", "model.patch=4", "model.width=12", "model.depth=1", "model.heads=2"]
    result = run(
        load_recipe("digits", [*words, "train.epochs=1", "train.batch_size=512"]),
        tmp_path,
        lines=False,
    )
    assert result["steps"] == 3  # 1,437 images: the last batch is filled up
    weights = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]["model"]
    assert weights["positions"].shape == (1, 1 + 2 * 2, 12)
