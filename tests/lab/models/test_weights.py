"""Weights out of files into models: what is taken, what is new, what is refused."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from crsam.errors import UserError
from crsam.lab.models import ResNet, load_weights, make_model, read_weights
from crsam.lab.models.vit import resized_positions
from lab.models.narrow import NARROW, Narrow
from lab.models.test_safetensors import write

every_model = pytest.mark.parametrize("case", NARROW.values(), ids=NARROW.keys())


def other_classes(case: Narrow) -> nn.Module:
    torch.manual_seed(1)
    return make_model(case.name, 9, **case.options)


@every_model
def test_all_but_the_head_is_taken_where_classes_differ(case: Narrow) -> None:
    model, theirs = case.model(), other_classes(case)
    before = copy.deepcopy(model.state_dict())
    loaded = load_weights(model, theirs.state_dict())
    assert len(loaded.new) == 2
    assert all(before[name].shape[0] == 5 for name in loaded.new)
    assert set(loaded.taken) | set(loaded.new) == set(before)
    for name, value in model.state_dict().items():
        source = before if name in loaded.new else theirs.state_dict()
        assert torch.equal(value, source[name]), name


@every_model
def test_all_is_taken_where_classes_are_as_many(case: Narrow) -> None:
    model, theirs = case.model(), case.model(seed=1)
    assert not load_weights(model, theirs.state_dict()).new
    x = case.batch()[0]
    assert torch.equal(model.eval()(x), theirs.eval()(x))


def mlp(num_classes: int = 5, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make_model("digits_mlp", num_classes, width=4, batch_norm=True)


WRAPPED: dict[str, Any] = {
    "plain": lambda net: net.state_dict(),
    "ddp": lambda net: {f"module.{k}": v for k, v in net.state_dict().items()},
    "compiled": lambda net: torch.compile(net).state_dict(),
    "ddp of compiled": lambda net: {
        f"module._orig_mod.{k}": v for k, v in net.state_dict().items()
    },
    "a layer compiled": lambda net: {
        k.replace("layers.1.", "layers.1._orig_mod."): v for k, v in net.state_dict().items()
    },
    "lightning": lambda net: {"state_dict": {f"model.{k}": v for k, v in net.state_dict().items()}},
    "a timm checkpoint": lambda net: {
        "epoch": 3, "arch": "mlp", "state_dict": mlp(seed=2).state_dict(),
        "state_dict_ema": net.state_dict(),
    },
    "nested twice": lambda net: {"model": {"state_dict": net.state_dict()}, "n": torch.tensor(3)},
    "an average": lambda net: AveragedModel(net).state_dict(),
    "ours": lambda net: {
        "training": {"step": 1, "model": net.state_dict(), "average": None, "optimizer": {}},
        "seconds": 1.0,
    },
    "ours, averaged": lambda net: {
        "training": {"model": mlp(seed=2).state_dict(), "average": AveragedModel(net).state_dict()},
    },
    "half precision": lambda net: copy.deepcopy(net).half().state_dict(),
}  # fmt: skip


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED.keys())
def test_weights_are_found_however_they_were_kept(wrap: Any, tmp_path: Path) -> None:
    theirs, model = mlp(seed=1), mlp()
    torch.save(wrap(theirs), tmp_path / "net.pth")
    loaded = load_weights(model, read_weights(tmp_path / "net.pth"))
    assert not loaded.new
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-3)
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_safetensors_and_folders_of_runs(tmp_path: Path) -> None:
    theirs = mlp(seed=1)
    write(tmp_path / "net.safetensors", theirs.state_dict())
    torch.save({"training": {"model": theirs.state_dict()}}, tmp_path / "checkpoint.pt")
    for place in (tmp_path / "net.safetensors", tmp_path, tmp_path / "checkpoint.pt"):
        found = read_weights(place)
        assert all(torch.equal(found[k], v) for k, v in theirs.state_dict().items())


def test_a_file_without_a_head_leaves_it_new() -> None:
    weights = {k: v for k, v in mlp(seed=1).state_dict().items() if not k.startswith("layers.7")}
    loaded = load_weights(mlp(), weights)
    assert str(loaded) == "12 of 14 tensors; new: layers.7.weight, layers.7.bias"


def test_counters_of_batch_norm_may_be_missing() -> None:
    weights = {k: v for k, v in mlp(seed=1).state_dict().items() if "tracked" not in k}
    assert load_weights(mlp(), weights).new == (
        "layers.2.num_batches_tracked",
        "layers.5.num_batches_tracked",
    )


def changed(**values: Tensor | None) -> dict[str, Tensor]:
    state = {**mlp(seed=1).state_dict()}
    for name, value in values.items():
        key = name.replace("_", ".", 2)
        if value is None:
            del state[key]
        else:
            state[key] = value
    return state


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (changed(layers_1_weight=torch.ones(4, 63)), r"layers.1.weight \(4×63 there, 4×64 here\)"),
        (changed(layers_1_weight=None), "do not fit or are missing there: layers.1.weight"),
        (changed(layers_2_running_mean=None), r"missing there: layers.2.running_mean"),
        (changed(layers_9_weight=torch.ones(2)), "are not of this model: layers.9.weight"),
        (changed(layers_7_weight=torch.ones(5, 3)), r"layers.7.weight \(5×3 there, 5×4 here\)"),
        (
            changed(layers_1_weight=torch.ones(4, 64, dtype=torch.int8)),
            r"layers.1.weight \(4×64 of torch.int8 there, 4×64 here\)",
        ),
        (
            make_model("resnet18", 5, width=2).state_dict(),
            r"of another model: conv1.weight, .* and 119 more; here there are layers.1.weight, ",
        ),
        ({"head.weight": torch.ones(2)}, "weights of another model: head.weight"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_changed(
    weights: dict[str, Tensor], message: str
) -> None:
    model, untouched = mlp(), mlp()
    with pytest.raises(UserError, match=message):
        load_weights(model, weights)
    for name, value in model.state_dict().items():
        assert torch.equal(value, untouched.state_dict()[name])


def test_files_that_hold_no_weights_are_told(tmp_path: Path) -> None:
    file = tmp_path / "net.pt"
    for content, message in (
        ({"epoch": 3, "arch": "mlp"}, "net.pt holds no weights: in it are epoch, arch"),
        ([torch.ones(2)], "holds no weights, but a list"),
        ({}, "holds no weights: in it are nothing"),
        ({"args": argparse.Namespace(lr=1)}, "holds more than tensors and plain values"),
    ):
        torch.save(content, file)
        with pytest.raises(UserError, match=message):
            read_weights(file)
    for raw in (b"", b"GIF89a", b"no such thing"):
        file.write_bytes(raw)
        with pytest.raises(
            UserError, match=r"no(t a whole)? file of torch's|is damaged: it is empty"
        ):
            read_weights(file)
    torch.save(mlp().state_dict(), file)
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"data/0") + 100] ^= 8
    for raw in (whole[:-200], bytes(flipped)):
        file.write_bytes(raw)
        with pytest.raises(UserError, match=r"net.pt is damaged.*copy the file again") as caught:
            read_weights(file)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["no checksums", "legacy"])
def test_files_without_checksums_are_read(tmp_path: Path, how: str) -> None:
    weights = mlp().state_dict()
    torch.serialization.set_crc32_options(how == "legacy")
    try:
        torch.save(weights, tmp_path / "a.pt", _use_new_zipfile_serialization=how != "legacy")
    finally:
        torch.serialization.set_crc32_options(True)
    found = read_weights(tmp_path / "a.pt")
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_places_without_a_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.pt does not exist: give a .safetensors, .pt"):
        read_weights(tmp_path / "nowhere.pt")
    with pytest.raises(UserError, match=r"holds no checkpoint.pt: give a "):
        read_weights(tmp_path)


def vit(image_size: int) -> nn.Module:
    return make_model("vit_s32", 5, image_size=image_size, patch=8, width=12, depth=1, heads=3)


def test_positions_of_another_image_size_are_interpolated() -> None:
    small, large = vit(32), vit(56)
    state = large.state_dict()
    loaded = load_weights(small, state)
    assert loaded.resized == ("positions",)
    assert str(loaded).endswith("interpolated: positions")
    assert torch.equal(small.state_dict()["positions"][:, 0], state["positions"][:, 0])
    assert small.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 5)


def test_interpolated_positions_are_those_of_the_same_places() -> None:
    def ramp(side: int, first: int) -> Tensor:
        middles = (torch.arange(side) + 0.5) / side
        grid = torch.stack(torch.meshgrid(middles, middles, indexing="ij"), -1).reshape(1, -1, 2)
        return torch.cat([torch.full((1, first, 2), 9.0), grid], 1)

    for first in (0, 1, 5):
        found = resized_positions(ramp(14, first), ramp(7, first))
        assert found is not None
        assert found.shape == ramp(7, first).shape
        assert (found - ramp(7, first)).abs().max() < 0.02  # a little at the borders
        larger = resized_positions(ramp(7, first), ramp(14, first))
        assert larger is not None
        assert F.mse_loss(larger, ramp(14, first)) < 1e-3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((1, 50, 8), (1, 26, 4)),
        ((1, 30, 8), (1, 26, 8)),
        ((50, 8), (26, 8)),
        ((1, 0, 8), (1, 2, 8)),
    ],
)
def test_what_is_no_grid_is_not_interpolated(old: Any, new: Any) -> None:
    assert resized_positions(torch.zeros(old), torch.zeros(new)) is None


def test_halves_are_taken_counters_and_all() -> None:
    model, other = ResNet(18, 10, width=4), ResNet(18, 10, width=4)
    other.bn1.num_batches_tracked += 7
    load_weights(model, {name: t.half() for name, t in other.state_dict().items()})
    assert model.bn1.num_batches_tracked == 7
    assert torch.equal(model.conv1.weight, other.conv1.weight.half().float())


def test_weights_that_are_not_finite_are_told() -> None:
    model, other = ResNet(18, 10, width=4), ResNet(18, 10, width=4)
    with torch.no_grad():
        other.conv1.weight[0, 0, 0, 0] = torch.nan
    before = model.conv1.weight.clone()
    with pytest.raises(UserError, match=r"values are not finite in conv1\.weight"):
        load_weights(model, other.state_dict())
    assert torch.equal(model.conv1.weight, before)
