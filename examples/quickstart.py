"""SGD, SAM and CR-SAM side by side on handwritten digits, three in ten training labels wrong.

    python examples/quickstart.py            # half a minute on one core

A net that is free to will learn the wrong labels by heart. Sharpness-aware training makes that
harder: the accuracy below is on clean test labels, after the last epoch, over paired seeds (every
method sees the same data, the same initial weights and the same order of batches).
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import crsam

METHODS: dict[str, Callable[[SGD, nn.Module], Optimizer]] = {
    "SGD": lambda base, model: base,
    "SAM": lambda base, model: crsam.SAM(base, rho=0.3, warmup=200, model=model),
    "CR-SAM": lambda base, model: crsam.CRSAM(base, rho=0.3, warmup=200, model=model),
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


def compare(num_seeds: int, epochs: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Accuracy and seconds of every run, by method; says each as it is done."""
    accuracies: dict[str, list[float]] = {method: [] for method in METHODS}
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for seed in range(num_seeds):
        for method in METHODS:
            start = time.perf_counter()
            accuracies[method].append(train(method, seed, epochs))
            seconds[method].append(time.perf_counter() - start)
            print(f"seed {seed}  {method:7} {accuracies[method][-1]:5.1f} %", flush=True)
    return accuracies, seconds


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.mean(values), error


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)  # the net is small: more threads only get in each other's way
    accuracies, seconds = compare(args.seeds, args.epochs)
    print(f"\n{'':8}{'test accuracy':>16}{'against SGD':>18}{'time':>8}")
    for method, got in accuracies.items():
        mean, error = mean_and_error(got)
        gain, gain_error = mean_and_error([a - b for a, b in zip(got, accuracies["SGD"])])
        cost = sum(seconds[method]) / sum(seconds["SGD"])
        against = "" if method == "SGD" else f"{gain:+.1f} ± {gain_error:.1f}"
        print(f"{method:8}{mean:9.1f} ± {error:3.1f} %{against:>18}{cost:7.1f}×")


if __name__ == "__main__":
    main()
