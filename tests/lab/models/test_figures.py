"""Parameter counts and shapes of the full-sized models, on the meta device, where they are free."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crsam.lab.models import PyramidNet, ResNet, WideResNet, make_model
from crsam.lab.models.resnet import BasicBlock, Bottleneck

IMAGENET = {"stem": "imagenet"}

# ResNet, ImageNet: `num_params` of torchvision's published weights; ResNet-18 with the 3×3 stem:
# kuangliu's pytorch-cifar. The others: osmr's imgclsmob (pytorchcv), whose tests assert them. The
# papers say 36.5 M of WRN-28-10, and 28.3 M of PyramidNet-110 with α = 270, whatever the classes.
# ViT-B/32: torchvision's. ViT-S/32 is published as 22.9 M; by hand:
# 3 · 32² · 384 + 384 + 51 · 384 + 12 · (12 · 384² + 13 · 384) + 2 · 384 + 385 · 1000.
COUNTS: list[tuple[str, int, dict[str, Any], int]] = [
    ("resnet18", 10, {}, 11_173_962),
    ("resnet18", 1000, IMAGENET, 11_689_512),
    ("resnet50", 1000, IMAGENET, 25_557_032),
    ("resnet101", 1000, IMAGENET, 44_549_160),
    ("wrn28_10", 10, {}, 36_479_194),
    ("wrn28_10", 100, {}, 36_536_884),
    ("wrn28_10", 10, {"depth": 16}, 17_116_634),
    ("wrn28_10", 10, {"depth": 40, "widen_factor": 8}, 35_748_314),
    ("pyramidnet110", 10, {}, 28_485_477),
    ("pyramidnet110", 100, {}, 28_511_307),
    ("pyramidnet110", 10, {"alpha": 48}, 1_772_706),
    ("pyramidnet110", 10, {"alpha": 84}, 3_904_446),
    # By hand: 9 · (16 + 16 · 32 + 32 · 32) + 2 · (16 + 32 + 32) + 129 · 10, and
    # 65 · 128 + 129 · 128 + 129 · 10.
    ("vit_s32", 1000, {}, 22_878_952),
    ("vit_b32", 1000, {}, 88_224_232),
    ("digits_conv", 10, {}, 15_418),
    ("digits_mlp", 10, {}, 26_122),
]


def meta(name: str, num_classes: int = 10, **options: Any) -> nn.Module:
    with torch.device("meta"):
        return make_model(name, num_classes, **options)


def convs(model: nn.Module) -> list[nn.Conv2d]:
    return [m for m in model.modules() if isinstance(m, nn.Conv2d)]


@pytest.mark.parametrize(("name", "num_classes", "options", "count"), COUNTS)
def test_parameter_count(name: str, num_classes: int, options: dict[str, Any], count: int) -> None:
    model = meta(name, num_classes, **options)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet101", "wrn28_10", "pyramidnet110"])
@pytest.mark.parametrize("channels", [1, 3])
def test_output_of_32_by_32_images(name: str, channels: int) -> None:
    x = torch.empty(2, channels, 32, 32, device="meta")
    assert meta(name, 100, in_channels=channels)(x).shape == (2, 100)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet101"])
@pytest.mark.parametrize(
    ("stem", "size", "sizes"),
    [("cifar", 32, [32, 16, 8, 4]), ("imagenet", 224, [56, 28, 14, 7])],
)
def test_resnet_shapes_stage_by_stage(name: str, stem: str, size: int, sizes: list[int]) -> None:
    model = meta(name, 1000, stem=stem)
    assert isinstance(model, ResNet)
    seen: list[torch.Size] = []
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    out = model(torch.empty(2, 3, size, size, device="meta"))
    expansion = 1 if name == "resnet18" else 4
    assert seen == [(2, c * expansion, s, s) for c, s in zip((64, 128, 256, 512), sizes)]
    assert out.shape == (2, 1000)


@pytest.mark.parametrize(("size", "sizes"), [(32, [32, 16, 8]), (33, [33, 17, 9])])
@pytest.mark.parametrize("name", ["wrn28_10", "pyramidnet110"])
def test_three_groups_halve_the_image(name: str, size: int, sizes: list[int]) -> None:
    model = meta(name)
    seen: list[int] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output.shape[-1])

    for module in convs(model):
        module.register_forward_hook(look)
    model(torch.empty(2, 3, size, size, device="meta"))
    assert list(dict.fromkeys(seen)) == sizes


@pytest.mark.parametrize("depth", [18, 50, 101])
def test_resnet_depth_counts_convolutions_and_the_last_layer(depth: int) -> None:
    model = meta(f"resnet{depth}")
    blocks = [m for m in model.modules() if isinstance(m, BasicBlock | Bottleneck)]
    shortcuts = sum(len(convs(block.downsample)) for block in blocks)
    assert len(convs(model)) - shortcuts + 1 == depth
    assert shortcuts == (3 if depth == 18 else 4)


@pytest.mark.parametrize("depth", [10, 28, 40])
def test_wide_resnet_depth_counts_all_convolutions(depth: int) -> None:
    model = meta("wrn28_10", depth=depth, widen_factor=2)
    assert isinstance(model, WideResNet)
    assert len(convs(model)) == depth
    assert sum(m.kernel_size == (1, 1) for m in convs(model)) == 3


def test_wide_resnet_widths() -> None:
    widths = [m.out_channels for m in convs(meta("wrn28_10"))]
    assert list(dict.fromkeys(widths)) == [16, 160, 320, 640]


@pytest.mark.parametrize("depth", [8, 110, 272])
def test_pyramidnet_depth_counts_convolutions_and_the_last_layer(depth: int) -> None:
    assert len(convs(meta("pyramidnet110", depth=depth))) + 1 == depth


def test_pyramidnet_grows_by_the_same_number_of_channels_in_every_block() -> None:
    model = meta("pyramidnet110")
    assert isinstance(model, PyramidNet)
    assert model.widths == list(range(16, 287, 5))
    assert [m.out_channels for m in convs(model)] == [
        16,
        *(w for w in model.widths[1:] for _ in "ab"),
    ]


@pytest.mark.parametrize("name", ["vit_s32", "vit_b32"])
def test_vit_sees_50_tokens_of_224_by_224_images(name: str) -> None:
    model = meta(name, 1000)
    seen: list[torch.Size] = []
    blocks = model.get_submodule("blocks")
    blocks.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)
    assert seen == [(2, 50, {"vit_s32": 384, "vit_b32": 768}[name])]
    with pytest.raises(ValueError, match="multiple of patch = 32, got 200"):
        meta(name, image_size=200)
    with pytest.raises(ValueError, match="heads must divide width"):
        meta(name, heads=5)


def test_resnet_goes_by_the_names_of_torchvision() -> None:
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    expected = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{n}" for n in norm)}
    for stage, num in zip((1, 2, 3, 4), (3, 4, 6, 3)):
        for block in (f"layer{stage}.{i}" for i in range(num)):
            expected |= {f"{block}.conv{k}.weight" for k in (1, 2, 3)}
            expected |= {f"{block}.bn{k}.{n}" for k in (1, 2, 3) for n in norm}
        expected |= {f"layer{stage}.0.downsample.1.{n}" for n in norm}
        expected.add(f"layer{stage}.0.downsample.0.weight")
    assert set(meta("resnet50", stem="imagenet").state_dict()) == expected
