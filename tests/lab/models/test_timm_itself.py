"""True models of timm's are built for any images, trained with CR-SAM, and given weights.

Runs where timm is installed: ``make test-timm``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim import SGD

import crsam
import problems
from crsam.errors import UserError
from crsam.lab.experiment.run import evaluate_run, run
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.models import load_weights, make_model
from lab.models.narrow import norms

timm = pytest.importorskip("timm")
MODELS: dict[str, dict[str, Any]] = {
    "timm:resnet18": {},
    "timm:resnet18d": {"drop_path_rate": 0.2, "zero_init_last": False},
    "timm:vit_tiny_patch16_224": {"drop_path_rate": 0.2},
    "timm:mixer_s32_224": {},
    "timm:convnext_atto": {},
    "timm:efficientnet_lite0": {},
    "timm:deit_tiny_distilled_patch16_224": {},
}
every_model = pytest.mark.parametrize("name", MODELS)
SIZE = 64


def build(name: str, num_classes: int = 5, image_size: int = SIZE) -> torch.nn.Module:
    torch.manual_seed(0)
    return make_model(name, num_classes, image_size=image_size, **MODELS[name])


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, SIZE, SIZE, generator=g), torch.randint(5, (4,), generator=g)


@every_model
def test_made_for_classes_channels_and_size(name: str) -> None:
    model = make_model(name, 7, in_channels=1, image_size=96)
    assert model.eval()(torch.zeros(2, 1, 96, 96)).shape == (2, 7)


@every_model
def test_a_crsam_step_moves_statistics_once_and_all_weights(name: str) -> None:
    model, (x, y) = build(name), batch()
    before = [p.detach().clone() for p in model.parameters()]
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.05), warmup=0, model=model)
    loss = opt.step(problems.closure_of(model, opt, x, y))
    assert torch.as_tensor(loss).isfinite()
    assert all(value.isfinite() for value in opt.report.values())
    assert all(m.num_batches_tracked == 1 for m in norms(model))
    moved = sum(not torch.equal(p, q) for p, q in zip(model.parameters(), before))
    assert moved > 0.9 * len(before)  # biases before a norm, and dropped paths, have no gradient


@pytest.mark.parametrize("name", ["timm:resnet18d", "timm:vit_tiny_patch16_224"])
def test_dropped_paths_are_the_same_in_all_passes(name: str) -> None:
    model, (x, y) = build(name), batch()
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.0), rho=1e-6, warmup=0, model=model)
    opt.step(problems.closure_of(model, opt, x, y))
    losses = [opt.report[key].item() for key in ("loss", "loss_plus", "loss_minus")]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)
    fresh = {F.cross_entropy(model(x), y).item() for _ in range(4)}
    assert max(fresh) - min(fresh) > 1e-3 * max(fresh)  # while other masks are other losses


@every_model
def test_weights_for_other_classes_and_sizes_fit(name: str) -> None:
    theirs = build(name, 9, SIZE if "mixer" in name else 96)  # its tokens are mixed by weights
    ours = build(name)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    loaded = load_weights(ours, theirs.state_dict())
    classifier = timm.models.get_pretrained_cfg(name.removeprefix("timm:")).classifier
    heads = [classifier] if isinstance(classifier, str) else classifier
    assert sorted(loaded.new) == sorted(f"{h}.{kind}" for h in heads for kind in ("weight", "bias"))
    if "vit" in name or "deit" in name:
        assert loaded.resized == ("pos_embed",)
    for key in loaded.taken:
        assert torch.equal(ours.state_dict()[key], theirs.state_dict()[key]), key


def test_weights_of_timms_resnet50_are_those_of_ours() -> None:
    theirs, ours = timm.create_model("resnet50"), make_model("resnet50", 1000, stem="imagenet")
    assert not load_weights(ours, theirs.state_dict()).new
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-4)


def test_a_recipe_trains_one_and_goes_on_from_it(tmp_path: Path) -> None:
    words = ["model=timm:resnet18", "train.epochs=1", "train.batch_size=512"]
    run(load_recipe("digits", words), tmp_path / "one", lines=False)
    step, _ = evaluate_run(tmp_path / "one")
    assert step == 2
    other = load_recipe("digits", [*words, f"init={tmp_path / 'one'}"])
    run(other, tmp_path / "two", lines=False)


def test_true_names_and_options_are_checked() -> None:
    with pytest.raises(UserError, match="did you mean timm:vit_small_patch32_224, "):
        make_model("timm:vit_smal_patch32_224", 3)
    with pytest.raises(UserError, match=r"cannot make resnet18.*unexpected keyword"):
        make_model("timm:resnet18", 3, drop_pth=0.1)
    with pytest.raises(UserError, match=r"unknown tag 'nosuch' of timm's resnet50: .*a1_in1k"):
        make_model("timm:resnet50.nosuch", 3)


def test_weights_that_cannot_be_fetched_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="no weights for resnet18, here or on the network"):
        make_model("timm:resnet18", 3, pretrained=True, cache_dir=str(tmp_path))
