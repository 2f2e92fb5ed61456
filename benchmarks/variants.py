"""Would another regulariser serve CR-SAM better? What was tried, each at many ρ.

The paper's regulariser, the authors', and what else suggests itself: other weights than 1/d_2,
other directions, other bounds (`VARIANTS`). Small nets, so that there can be many seeds: all seeds
of a run are trained at once, every parameter with a first dimension of seeds. A seed has its own
first weights, order of batches and, of digits, wrong labels and split, the same for all variants.

    python benchmarks/variants.py --out results/variants_digits.json
    python benchmarks/variants.py cifar10 --seeds 6 --epochs 20 --out results/variants_cifar10.json

- ``digits``: 1,437 digits, 30 % of the labels wrong, an MLP of two layers of 128
- ``cifar10``: 5,000 of CIFAR-10's images at 8 × 8 pixels, an MLP of two layers of 256

No variant is judged on seeds that its ρ was chosen on: ρ is that which is best in one half of the
seeds, and counts in the other half. (The seeds share test images: all of CIFAR-10's, most of the
digits. Errors are over first weights and orders, and of digits over splits and wrong labels.) What
is in the file already is not run again; ``--table FILE`` prints it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from digits import digits
from torch import Tensor
from torch.nn import functional as F

from crsam.lab.data import load
from crsam.lab.experiment.environment import environment

Tensors = list[Tensor]


@dataclass(frozen=True)
class Variant:
    """What is added to the gradient at w + e: α w_2 D_2 + β w_1 D_1, bounded."""

    form: Literal["none", "linear", "log"] = "log"
    """The weights w_i: all 0 (plain SAM), 1, or 1/d_i."""
    alpha: float = 0.1
    beta: float = 0.01
    trust: float = 0.5
    """The bound, in lengths of the gradient."""
    soft: float = 0.0
    """Weights are 1/(d_i + soft), in units of the loss: the gradient of log(d_i + soft)."""
    mean: float = 0.0
    """The d_i of the weights are running means over steps with this decay."""
    relative: bool = False
    """Weights are L/d_i: then the balance does not change with the unit of the loss."""
    follows: bool = False
    """α and β follow the learning rate."""
    random: bool = False
    """Along a random direction of the length of e."""
    adaptive: bool = False
    """e is ASAM's."""
    by_layer: bool = False
    """Each tensor's part is bounded by that of the gradient."""
    even: bool = False
    """e is as long in each tensor as in the others."""


VARIANTS = {
    "SAM": Variant("none"),
    "linear, α = 0.5": Variant("linear", 0.5, 0.1),
    "linear, curvature alone": Variant("linear", 0.5, 0.0),
    "linear, slope alone": Variant("linear", 0.0, 0.5),
    "linear, less curvature": Variant("linear", -0.25, 0.0),
    "log, α = 0.1": Variant(),
    "log, α = 0.03": Variant(alpha=0.03, beta=0.003),
    "log, α = 0.01": Variant(alpha=0.01, beta=0.001),
    "log, α = 0.003": Variant(alpha=0.003, beta=0.0003),
    "log, α = 0.001": Variant(alpha=0.001, beta=0.0001),
    "log, trust 0.05": Variant(trust=0.05),
    "log, trust 0.1": Variant(trust=0.1),
    "log, trust 0.2": Variant(trust=0.2),
    "log, trust 1": Variant(trust=1.0),
    "log, no slope": Variant(beta=0.0),
    "log(d + 0.01)": Variant(soft=0.01),
    "log, mean of d": Variant(mean=0.9),
    "log, α with the rate": Variant(follows=True),
    "log, times the loss": Variant(relative=True),
    "log, by layer": Variant(by_layer=True),
    "log, random direction": Variant(random=True),
    "ASAM": Variant("none", adaptive=True),
    "ASAM, linear": Variant("linear", 0.5, 0.1, adaptive=True),
    "ASAM, log": Variant(adaptive=True),
    "log, trust 0.1, no slope": Variant(trust=0.1, beta=0.0),
    "log, trust 0.1, mean of d": Variant(trust=0.1, mean=0.9),
    "log, trust 0.1, by layer": Variant(trust=0.1, by_layer=True),
    "log, trust 0.1, random": Variant(trust=0.1, random=True),
    "ASAM, log, trust 0.1": Variant(trust=0.1, adaptive=True),
    "linear, by layer": Variant("linear", 0.5, 0.1, by_layer=True),
    "SAM, even": Variant("none", even=True),
    "log, trust 0.1, even": Variant(trust=0.1, even=True),
}
RHOS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
ADAPTIVE = 5.0
"""Its ρ in units of the others'."""
WARMUP = 200
"""Steps over which ρ rises."""


class Problem(NamedTuple):
    """Everything with a first dimension of seeds."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    width: int
    batch: int
    lr: float
    epochs: int


def digits_problem(seeds: int, epochs: int | None) -> Problem:
    x, y, test_x, test_y = (torch.stack(of) for of in zip(*(digits(0.3, s) for s in range(seeds))))
    return Problem(2 * x.flatten(2) - 1, y, 2 * test_x.flatten(2) - 1, test_y, 128, 64, 0.1,
                   epochs or 40)  # fmt: skip


def cifar10_problem(seeds: int, epochs: int | None, root: str) -> Problem:
    dataset = load("cifar10", root)

    def prepared(images: Any, number: int) -> tuple[Tensor, Tensor]:
        small = F.avg_pool2d(images.images[:number].float() / 127.5 - 1, 4).flatten(1)
        return (2 * small).expand(seeds, -1, -1), images.labels[:number].expand(seeds, -1)

    train, test = prepared(dataset.train, 5000), prepared(dataset.test, 10000)
    return Problem(*train, *test, 256, 128, 0.05, epochs or 30)


def first_weights(problem: Problem, seeds: int) -> Tensors:
    sizes = (problem.x.shape[-1], problem.width, problem.width, 10)
    params = []
    for layer, (inside, outside) in enumerate(itertools.pairwise(sizes)):
        draws = [torch.Generator().manual_seed(10 * seed + layer) for seed in range(seeds)]
        weights = [torch.randn(inside, outside, generator=g) for g in draws]
        params += [torch.stack(weights) * math.sqrt(2 / inside), torch.zeros(seeds, 1, outside)]
    return params


def logits(params: Tensors, x: Tensor) -> Tensor:
    *layers, last = zip(params[::2], params[1::2])
    for weight, bias in layers:
        x = torch.baddbmm(bias, x, weight).relu()
    return torch.baddbmm(last[1], x, last[0])


def look(params: Tensors, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
    """Losses, one a seed, and gradients."""
    params = [p.detach().requires_grad_() for p in params]
    each = F.cross_entropy(logits(params, x).transpose(1, 2), y, reduction="none").mean(1)
    return each.detach()[:, None, None], list(torch.autograd.grad(each.sum(), params))


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """Of each seed's, with two more dimensions."""
    return torch.stack([t.square().sum((1, 2), keepdim=True) for t in tensors]).sum(0).sqrt()


def offset(variant: Variant, params: Tensors, grads: Tensors, rho: float) -> Tensors:
    if variant.even:
        return [g * (rho / math.sqrt(len(grads)) / norm([g]).clamp_min(1e-12)) for g in grads]
    if not variant.adaptive:
        return [g * (rho / norm(grads)) for g in grads]
    by = [p.abs() + 0.01 if p.shape[1] > 1 else torch.ones_like(p) for p in params]
    length = norm([t * g for t, g in zip(by, grads)])
    return [t.square() * g * (rho / length) for t, g in zip(by, grads)]


class Regularizer:
    """∇R_c, step by step."""

    def __init__(self, variant: Variant) -> None:
        self.variant, self.means = variant, [torch.zeros(()), torch.zeros(())]
        self.count, self.draws = 0, torch.Generator().manual_seed(1)

    def __call__(
        self, params: Tensors, e: Tensors, batch: Any, l_0: Tensor, g_0: Tensors,
        plus: tuple[Tensor, Tensors], rate: float,
    ) -> Tensors:  # fmt: skip
        v = self.variant
        l_up, up = plus
        if v.random:
            length = norm(e)
            e = [torch.randn(p.shape, generator=self.draws, dtype=p.dtype) for p in params]
            e = [part * (length / norm(e)) for part in e]
            l_up, up = look([p + d for p, d in zip(params, e)], *batch)
        l_down, down = look([p - d for p, d in zip(params, e)], *batch)
        sign = torch.where(l_up < l_down, -1.0, 1.0) if v.random else 1.0
        weights = [
            self.weight(k, d, l_0) * (rate if v.follows else 1.0)
            for k, d in enumerate(((l_up - l_down) * sign, l_up + l_down - 2 * l_0))
        ]
        self.count += 1
        w_1, w_2 = v.beta * weights[0] * sign, v.alpha * weights[1]
        found = [w_2 * (a + b - 2 * c) + w_1 * (a - b) for a, b, c in zip(up, down, g_0)]
        if v.by_layer:
            return [part for a, b in zip(found, plus[1]) for part in self.bounded([a], [b])]
        return self.bounded(found, plus[1])

    def weight(self, k: int, d: Tensor, loss: Tensor) -> Tensor:
        v = self.variant
        if v.form == "linear":
            return torch.ones_like(d)
        if v.mean:
            self.means[k] = v.mean * self.means[k] + (1 - v.mean) * d
            d = self.means[k] / (1 - v.mean ** (self.count + 1))
        least = 8 * torch.finfo(loss.dtype).eps * loss
        return torch.where(d + v.soft > least, (loss if v.relative else 1.0) / (d + v.soft), 0.0)

    def bounded(self, found: Tensors, beside: Tensors) -> Tensors:
        ratio = norm(found) / norm(beside).clamp_min(1e-12)
        scale = torch.where(ratio > self.variant.trust, self.variant.trust / ratio, 1.0)
        return [part * scale for part in found]


def trained(problem: Problem, variant: Variant, rho: float) -> Tensors:
    """The weights after the last epoch, of SGD with momentum 0.9 and weight decay 5e-4."""
    seeds, number = problem.y.shape
    params = [p.to(problem.x.dtype) for p in first_weights(problem, seeds)]
    momentum = [torch.zeros_like(p) for p in params]
    regularizer = Regularizer(variant)
    steps, count = number // problem.batch, 0
    for epoch in range(problem.epochs):
        draws = [torch.Generator().manual_seed(1000 * seed + epoch) for seed in range(seeds)]
        order = torch.stack([torch.randperm(number, generator=g) for g in draws])
        for some in order[:, : steps * problem.batch].split(problem.batch, 1):
            rate = (1 + math.cos(math.pi * count / (steps * problem.epochs))) / 2
            x = torch.stack([images[i] for images, i in zip(problem.x, some)])
            batch = (x, problem.y.gather(1, some))
            l_0, g_0 = look(params, *batch)
            e = offset(variant, params, g_0, rho * min(1.0, (count + 1) / WARMUP))
            plus = look([p + d for p, d in zip(params, e)], *batch)
            follow = plus[1]
            if variant.form != "none":
                more = regularizer(params, e, batch, l_0, g_0, plus, rate)
                follow = [a + b for a, b in zip(follow, more)]
            for p, m, g in zip(params, momentum, follow):
                m.mul_(0.9).add_(g).add_(p, alpha=5e-4)
                p.sub_(m, alpha=rate * problem.lr)
            count += 1
    return params


def accuracies(problem: Problem, variant: Variant, rho: float) -> list[float]:
    """On test images, by seed, in per cent."""
    params = trained(problem, variant, rho)
    chunks = zip(problem.test_x.split(1000, 1), problem.test_y.split(1000, 1))
    with torch.no_grad():
        right = torch.stack([(logits(params, x).argmax(2) == y).sum(1) for x, y in chunks]).sum(0)
    return [round(100 * each / problem.test_y.shape[1], 3) for each in right.tolist()]


def at_own_rho(runs: dict[str, list[float]]) -> list[float]:
    """By seed, at the ρ that is best in the other half of the seeds."""
    seeds = range(len(next(iter(runs.values()))))
    best = {
        half: max(runs, key=lambda rho: sum(runs[rho][s] for s in seeds if s % 2 != half))
        for half in (0, 1)
    }
    return [runs[best[seed % 2]][seed] for seed in seeds]


def spread(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.2f} ± {error:.2f}"


def table(result: dict[str, Any]) -> str:
    """Mean accuracies by ρ; at each one's own ρ, with standard errors; and beside SAM's."""
    rhos = [str(rho) for rho in result["rhos"]]
    lines = [f"| ρ | {' | '.join(rhos)} | own ρ | beside SAM |", "|---" * (len(rhos) + 3) + "|"]
    sam = at_own_rho(result["accuracies"]["SAM"])
    for name in VARIANTS:
        runs = result["accuracies"][name]
        own = at_own_rho(runs)
        cells = [f"{statistics.mean(runs[rho]):.2f}" for rho in rhos]
        gain = "" if name == "SAM" else spread([a - b for a, b in zip(own, sam)])
        lines.append(f"| {name} | {' | '.join(cells)} | {spread(own)} | {gain} |")
    return "\n".join(lines)


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problem", nargs="?", default="digits", choices=("digits", "cifar10"))
    parser.add_argument("--root", default="data", help="holds CIFAR-10")
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--rhos", type=numbers, default=RHOS, help="with commas")
    parser.add_argument("--out", type=Path, help="a JSON file, renewed after every variant")
    parser.add_argument("--table", type=Path, help="print what is in this file, and no more")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(args.table.read_text())))
        return
    if args.seeds < 2:
        parser.error("--seeds must be at least 2: the ρ of one half is chosen on the other")
    torch.set_num_threads(1)
    if args.problem == "digits":
        problem = digits_problem(args.seeds, args.epochs)
    else:
        problem = cifar10_problem(args.seeds, args.epochs, args.root)
    asked = {
        "problem": args.problem,
        "seeds": args.seeds,
        "epochs": problem.epochs,
        "rhos": list(args.rhos),
        "adaptive_rho": f"{ADAPTIVE} times",
    }
    result: dict[str, Any] = {**asked, **environment(torch.device("cpu")), "accuracies": {}}
    if args.out and args.out.exists():
        result = json.loads(args.out.read_text())
    if any(result[key] != value for key, value in asked.items()):
        raise SystemExit(f"{args.out} holds other runs: give another --out")
    for name, variant in VARIANTS.items():
        if name in result["accuracies"]:
            continue
        began, runs = time.perf_counter(), {}
        for rho in args.rhos:
            radius = rho * (ADAPTIVE if variant.adaptive else 1.0)
            runs[str(rho)] = accuracies(problem, variant, radius)
        result["accuracies"][name] = runs
        print(f"{name:24} {time.perf_counter() - began:5.0f} s", flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
