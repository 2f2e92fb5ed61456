"""Blocks and nets against their definitions, written out with functions; and how models start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crsam.lab.models import PyramidNet, ResNet, WideResNet
from crsam.lab.models.pyramidnet import PyramidBlock
from crsam.lab.models.resnet import BasicBlock, Bottleneck
from crsam.lab.models.wide_resnet import WideBlock

Weights = dict[str, Tensor]


def bn(x: Tensor, w: Weights, name: str) -> Tensor:
    """Batch norm by its formula."""
    mean = x.mean((0, 2, 3), keepdim=True)
    var = (x - mean).square().mean((0, 2, 3), keepdim=True)
    scale, shift = (w[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("weight", "bias"))
    return (x - mean) / (var + 1e-5).sqrt() * scale + shift


def conv(x: Tensor, w: Weights, name: str, stride: int = 1) -> Tensor:
    weight = w[f"{name}.weight"]
    return F.conv2d(x, weight, stride=stride, padding=(weight.shape[-1] - 1) // 2)


def projection(x: Tensor, w: Weights, stride: int) -> Tensor:
    if "downsample.0.weight" not in w:
        return x
    return bn(conv(x, w, "downsample.0", stride), w, "downsample.1")


def basic(x: Tensor, w: Weights, stride: int) -> Tensor:
    y = bn(conv(x, w, "conv1", stride), w, "bn1").relu()
    return (bn(conv(y, w, "conv2"), w, "bn2") + projection(x, w, stride)).relu()


def bottleneck(x: Tensor, w: Weights, stride: int) -> Tensor:
    y = bn(conv(x, w, "conv1"), w, "bn1").relu()
    y = bn(conv(y, w, "conv2", stride), w, "bn2").relu()
    return (bn(conv(y, w, "conv3"), w, "bn3") + projection(x, w, stride)).relu()


def wide(x: Tensor, w: Weights, stride: int) -> Tensor:
    a = bn(x, w, "norm1").relu()
    y = conv(bn(conv(a, w, "conv1", stride), w, "norm2").relu(), w, "conv2")
    return y + (conv(a, w, "shortcut", stride) if "shortcut.weight" in w else x)


def pyramid(x: Tensor, w: Weights, stride: int) -> Tensor:
    y = conv(bn(x, w, "norm1"), w, "conv1", stride)
    y = bn(conv(bn(y, w, "norm2").relu(), w, "conv2"), w, "norm3")
    if stride == 2:
        x = (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4
    return torch.cat([x + y[:, : x.shape[1]], y[:, x.shape[1] :]], dim=1)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor, Weights, int], Tensor], int]] = {
    "basic": (lambda: BasicBlock(6, 6, 1), basic, 1),
    "basic, wider": (lambda: BasicBlock(6, 8, 1), basic, 1),
    "basic, stride": (lambda: BasicBlock(6, 12, 2), basic, 2),
    "bottleneck": (lambda: Bottleneck(12, 3, 1), bottleneck, 1),
    "bottleneck, wider": (lambda: Bottleneck(3, 3, 1), bottleneck, 1),
    "bottleneck, stride": (lambda: Bottleneck(12, 6, 2), bottleneck, 2),
    "wide": (lambda: WideBlock(6, 6, 1, 0.0), wide, 1),
    "wide, wider": (lambda: WideBlock(6, 8, 1, 0.0), wide, 1),
    "wide, stride": (lambda: WideBlock(6, 12, 2, 0.0), wide, 2),
    "pyramid, same width": (lambda: PyramidBlock(6, 6, 1), pyramid, 1),
    "pyramid": (lambda: PyramidBlock(6, 9, 1), pyramid, 1),
    "pyramid, stride": (lambda: PyramidBlock(6, 9, 2), pyramid, 2),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_block_is_its_definition(case: str) -> None:
    make, definition, stride = BLOCKS[case]
    torch.manual_seed(0)
    block = make().double()
    for p in block.parameters():  # norms that are not the identity
        nn.init.normal_(p, 0.3)
    w = dict(block.named_parameters())
    x = torch.randn(4, _inside(block), 8, 8, dtype=torch.float64)
    torch.testing.assert_close(block(x), definition(x, w, stride), rtol=1e-10, atol=1e-10)


def _inside(block: nn.Module) -> int:
    conv1 = block.conv1
    assert isinstance(conv1, nn.Conv2d)
    return conv1.in_channels


def part(w: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): p for name, p in w.items() if name.startswith(prefix)}


def head(x: Tensor, w: Weights) -> Tensor:
    x = bn(x, w, "head.0").relu().mean((2, 3))
    return x @ w["head.4.weight"].T + w["head.4.bias"]


def resnet18(x: Tensor, w: Weights, stem: str) -> Tensor:
    x = bn(conv(x, w, "conv1", 2 if stem == "imagenet" else 1), w, "bn1").relu()
    if stem == "imagenet":
        x = F.max_pool2d(x, 3, stride=2, padding=1)
    for block in (f"layer{stage}.{i}." for stage in (1, 2, 3, 4) for i in (0, 1)):
        x = basic(x, part(w, block), 2 if block[5] > "1" and block.endswith(".0.") else 1)
    return x.mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"]


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_resnet_is_its_definition(stem: Literal["cifar", "imagenet"]) -> None:
    torch.manual_seed(0)
    model = ResNet(18, num_classes=3, stem=stem, width=4).double()
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    expected = resnet18(x, dict(model.named_parameters()), stem)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)


def test_wide_resnet_is_its_definition() -> None:
    torch.manual_seed(0)
    model = WideResNet(num_classes=3, depth=10, widen_factor=2).double()
    w = dict(model.named_parameters())
    x = images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    x = conv(x, w, "stem")
    for group in range(3):
        x = wide(x, part(w, f"groups.{group}.0."), 2 if group else 1)
    torch.testing.assert_close(model(images), head(x, w), rtol=1e-9, atol=1e-9)


def test_pyramidnet_is_its_definition() -> None:
    torch.manual_seed(0)
    model = PyramidNet(num_classes=3, depth=8, alpha=7).double()
    w = dict(model.named_parameters())
    x = images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    x = bn(conv(x, w, "stem.0"), w, "stem.1")
    for k in range(3):
        x = pyramid(x, part(w, f"blocks.{k}."), 2 if k else 1)
    torch.testing.assert_close(model(images), head(x, w), rtol=1e-9, atol=1e-9)


def test_dropout_lies_between_the_convolutions() -> None:
    torch.manual_seed(0)
    block = WideBlock(6, 6, 1, dropout=0.5)
    seen: list[Tensor] = []
    block.norm2.register_forward_hook(lambda module, inputs, output: seen.append(output.relu()))
    block.conv2.register_forward_hook(lambda module, inputs, output: seen.append(*inputs))
    block(torch.randn(4, 6, 8, 8))
    active, dropped = seen
    kept = dropped != 0
    assert torch.equal(dropped[kept], 2 * active[kept])
    assert 0.4 < kept.sum() / (active != 0).sum() < 0.6


def test_convolutions_start_with_the_fan_out_variance() -> None:
    torch.manual_seed(0)
    for name, module in ResNet(18, num_classes=10, width=16).named_modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            expected = math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels))
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05), name


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize("zero", [False, True])
def test_zero_init_makes_every_block_its_shortcut(depth: int, zero: bool) -> None:
    torch.manual_seed(0)
    model = ResNet(depth, num_classes=10, width=4, zero_init_residual=zero)
    blocks = [m for m in model.modules() if isinstance(m, BasicBlock | Bottleneck)]
    for block in blocks:
        x = torch.randn(2, _inside(block), 8, 8)
        assert torch.equal(block(x), block.downsample(x).relu()) is zero
    zeros = [name for name, p in model.named_parameters() if p.ndim == 1 and not p.any()]
    last = "bn2" if depth == 18 else "bn3"
    num_zero = sum(name.endswith(f"{last}.weight") for name in zeros)
    assert num_zero == sum(name.endswith("weight") for name in zeros)
    assert num_zero == (len(blocks) if zero else 0)
