"""How good are losses, and differences of them, when a net computes in few bits?

CR-SAM's log form divides by ``d_2 = L(w + e) + L(w − e) − 2 L(w)``, of three losses that are nearly
equal. A net is trained for a while; then, for batches of further images, losses and gradients at
``w`` and ``w ± e`` are compared with those in float64: root mean squares of the errors, and the
cosine between ``D_2 = g_+ + g_− − 2 g_0`` and the true one.

    python benchmarks/rounding.py --root data --out results/rounding_cpu.json

- ``float32``: on a CPU
- ``tf32``: float32 with weights and inputs of linear and convolution layers cut to 10 bits, as a
  GPU does with convolutions by default; emulated, forward only
- ``float16``, ``bfloat16``: under autocast
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from crsam.lab.data import load
from crsam.lab.experiment.environment import environment
from crsam.lab.models import make_model

Tensors = list[Tensor]


class Case(NamedTuple):
    """A net, and how far it is trained."""

    model: str
    options: dict[str, Any]
    pixels: int
    num_images: int | None
    """To train on, and to judge on: of few, the loss falls far. None: nine tenths, and the rest."""
    steps: int
    rho: float = 0.1


CASES = {
    "ResNet-18 of width 16, early": Case("resnet18", {"width": 16}, 32, None, 300),
    "ResNet-18 of width 16, late": Case("resnet18", {"width": 16}, 32, 2000, 600),
    "ResNet-18 of width 32, early": Case("resnet18", {"width": 32}, 32, None, 100),
    "ViT-S/32 of 3 blocks, early": Case("vit_s32", {"image_size": 160, "depth": 3}, 160, None, 60),
}
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


def cut(tensor: Tensor) -> Tensor:
    """To 10 bits after the first, rounded to nearest."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@contextmanager
def computing_in(precision: str, model: nn.Module) -> Iterator[None]:
    with ExitStack() as stack:
        if precision in ("float16", "bfloat16"):
            stack.enter_context(torch.autocast("cpu", getattr(torch, precision)))
        if precision == "tf32":
            for module in model.modules():
                if isinstance(module, nn.Linear | nn.Conv2d):
                    hook = module.register_forward_pre_hook(lambda _, inputs: (cut(inputs[0]),))
                    stack.callback(hook.remove)
        yield


class Look(NamedTuple):
    loss: float
    grads: Tensors
    """None of what is emulated."""


class Net:
    """A model, as a function of its weights."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        dtype = torch.float64 if precision == "float64" else torch.float32
        self.model, self.precision = copy.deepcopy(model).to(dtype), precision
        self.dtype, self.names = dtype, [name for name, _ in model.named_parameters()]
        self.narrow = [p.dim() > 1 for p in model.parameters()]

    def __call__(self, weights: Tensors, x: Tensor, y: Tensor) -> Look:
        weights = [w.to(self.dtype) for w in weights]
        if self.precision == "tf32":
            weights = [cut(w) if narrow else w for w, narrow in zip(weights, self.narrow)]
        leaves = [w.requires_grad_() for w in weights]
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        with computing_in(self.precision, self.model):
            state = {**dict(zip(self.names, leaves)), **buffers}
            logits = functional_call(self.model, state, (x.to(self.dtype),))
        loss = F.cross_entropy(logits.to(self.dtype), y)
        if self.precision == "tf32":
            return Look(loss.item(), [])
        return Look(loss.item(), [g.double() for g in torch.autograd.grad(loss, leaves)])


def norm(tensors: Tensors) -> float:
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors))


def cosine(a: Tensors, b: Tensors) -> float:
    return sum((s * t).sum().item() for s, t in zip(a, b)) / (norm(a) * norm(b))


def root_mean_square(values: list[float]) -> float:
    return math.sqrt(statistics.fmean(v * v for v in values))


def second(looks: list[Look]) -> tuple[float, Tensors]:
    """``d_2`` and ``D_2`` of looks at ``w``, ``w + e`` and ``w − e``."""
    zero, up, down = looks
    grads = [a + b - 2 * c for a, b, c in zip(up.grads, down.grads, zero.grads)]
    return up.loss + down.loss - 2 * zero.loss, grads


def batches(case: Case, root: str) -> Callable[[int, int, bool], tuple[Tensor, Tensor]]:
    train = load("cifar10", root).train
    end = len(train) * 9 // 10

    def batch(number: int, size: int, to_judge: bool) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(number)
        first, last = 0, case.num_images or end
        if to_judge and case.num_images is None:
            first, last = end, len(train)
        rows = torch.randint(first, last, (size,), generator=generator)
        x = (train.images[rows].float() / 255 - 0.47) / 0.25
        if case.pixels != 32:
            x = F.interpolate(x, size=(case.pixels, case.pixels))
        return x, train.labels[rows]

    return batch


def trained(case: Case, batch: Callable[[int, int, bool], tuple[Tensor, Tensor]]) -> nn.Module:
    torch.manual_seed(0)
    model = make_model(case.model, 10, **case.options).train()
    optimizer: torch.optim.Optimizer
    if case.model.startswith("vit"):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=5e-4)
    for step in range(case.steps):
        x, y = batch(step, 64, False)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def judged(case: Case, root: str, size: int, number: int) -> dict[str, Any]:
    batch = batches(case, root)
    model = trained(case, batch)
    weights = [p.detach() for p in model.parameters()]
    truth = Net(model, "float64")
    nets = [Net(model, precision) for precision in PRECISIONS]
    found: dict[str, dict[str, list[float]]] = {
        p: {"loss": [], "d_2": [], "cosine": []} for p in PRECISIONS
    }
    losses, curvatures = [], []
    for i in range(number):
        x, y = batch(10**6 + i, size, True)
        first = truth(weights, x, y)
        scale = case.rho / norm(first.grads)
        e = [(scale * g).float() for g in first.grads]
        points = [weights, [w + d for w, d in zip(weights, e)], [w - d for w, d in zip(weights, e)]]
        exact = [first, *(truth(point, x, y) for point in points[1:])]
        d_2, full = second(exact)
        losses.append(first.loss)
        curvatures.append(d_2)
        for net in nets:
            looks = [net(point, x, y) for point in points]
            into = found[net.precision]
            into["loss"] += [a.loss - b.loss for a, b in zip(looks, exact)]
            mine, grads = second(looks)
            into["d_2"].append(mine - d_2)
            if grads:
                into["cosine"].append(cosine(grads, full))
    return {
        **case._asdict(),
        "batch": size,
        "batches": number,
        "loss": statistics.fmean(losses),
        "d_2": statistics.fmean(curvatures),
        "errors": {
            precision: {
                "loss": root_mean_square(errors["loss"]),
                "d_2": root_mean_square(errors["d_2"]),
                "cosine_of_D_2": statistics.fmean(errors["cosine"]) if errors["cosine"] else None,
            }
            for precision, errors in found.items()
        },
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| | loss | d₂ | precision | error of a loss | error of d₂ | cosine of D₂ |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, row in rows.items():
        for precision, errors in row["errors"].items():
            cosine = errors["cosine_of_D_2"]
            cells = [f"{row['loss']:.3f}", f"{row['d_2']:.4f}", precision]
            cells += [f"{errors[key]:.1e}" for key in ("loss", "d_2")]
            lines.append(
                f"| {' | '.join([name, *cells])} | {'' if cosine is None else f'{cosine:.3f}'} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", default="data", help="holds CIFAR-10")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--out", type=Path, help="a JSON file, renewed after every case")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, Any]] = {}
    for name in args.cases:
        rows[name] = judged(CASES[name], args.root, args.batch, args.batches)
        print(name, json.dumps(rows[name]["errors"]), flush=True)
        if args.out:
            result = {**environment("cpu"), "rows": rows}
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
