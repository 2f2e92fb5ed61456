"""SGD, SAM and CR-SAM side by side on handwritten digits, three in ten training labels wrong.

    python examples/quickstart.py            # half a minute on one core

A net that is free to will learn the wrong labels by heart. Sharpness-aware training makes that
harder: the accuracy below is on clean test labels, after the last epoch, over paired seeds (every
method sees the same data, the same initial weights and the same order of batches).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import crsam

METHODS: dict[str, Callable[[SGD, nn.Module], Optimizer]] = {
    "SGD": lambda base, model: base,
    "SAM": lambda base, model: crsam.SAM(base, rho=0.3, model=model),
    "CR-SAM": lambda base, model: crsam.CRSAM(base, rho=0.3, model=model),
}


def noisy_digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,437 training images, 30 % of them wrongly labelled, and 360 test images."""
    raw = load_digits()
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(raw.data), generator=g)
    x = torch.tensor(raw.data, dtype=torch.float32)[order] / 16
    y = torch.tensor(raw.target)[order]
    wrong = torch.rand(1437, generator=g) < 0.3
    shift = torch.randint(1, 10, (1437,), generator=g) * wrong
    return x[:1437], (y[:1437] + shift) % 10, x[1437:], y[1437:]


def train(method: str, seed: int, epochs: int) -> float:
    """One run; returns the test accuracy in per cent."""
    x, y, test_x, test_y = noisy_digits(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    base = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    opt = METHODS[method](base, model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * math.ceil(len(x) / 64))
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(64):

            def closure(part: Tensor = part) -> Tensor:
                opt.zero_grad()
                loss = F.cross_entropy(model(x[part]), y[part])
                loss.backward()
                return loss

            opt.step(closure)
            scheduler.step()
    with torch.no_grad():
        return 100 * (model(test_x).argmax(1) == test_y).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, help="also write the results as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the net is small: more threads only get in each other's way

    accuracies: dict[str, list[float]] = {method: [] for method in METHODS}
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for seed in range(args.seeds):
        for method in METHODS:
            start = time.perf_counter()
            accuracies[method].append(train(method, seed, args.epochs))
            seconds[method].append(time.perf_counter() - start)
            print(f"seed {seed}  {method:7} {accuracies[method][-1]:5.1f} %", flush=True)

    print(f"\n{'':8}{'test accuracy':>16}{'against SGD':>16}{'time':>8}")
    for method, got in accuracies.items():
        gains = [a - b for a, b in zip(got, accuracies["SGD"])]
        error = statistics.stdev(got) / math.sqrt(len(got)) if len(got) > 1 else math.nan
        cost = sum(seconds[method]) / sum(seconds["SGD"])
        print(
            f"{method:8}{statistics.mean(got):9.1f} ± {error:3.1f} %"
            f"{statistics.mean(gains):+14.1f}{cost:10.1f}×"
        )
    if args.out:
        result = {
            "command": f"python examples/quickstart.py --seeds {args.seeds} --epochs {args.epochs}",
            "torch": str(torch.__version__),
            "crsam": crsam.__version__,
            "hardware": platform.machine(),
            "accuracy": {m: [round(a, 2) for a in got] for m, got in accuracies.items()},
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
