"""What a landscape costs: its rate beside that of plain evaluation, point for point.

A ResNet-18 on CIFAR-10 images (or noise of that shape: ``--root`` says where the data is). A plain
evaluation is one pass in ``eval`` mode with loss and accuracy, weights untouched. Every round
times as many of them as the grid has points, then a whole landscape over that grid, directions,
fingerprint and file included; what counts is the median over the rounds of the ratio, so that a
busy machine slows both. On a CPU the time of the processor is given beside that of the clock:
neighbours do not enter into it.

    OMP_NUM_THREADS=1 python benchmarks/landscape.py --root data     # width 8, 1,000 images
    python benchmarks/landscape.py --root data --device cuda --width 64 --samples 5000 \
        --batch 1000 --whole 50                                      # and 2,500 points, timed

Results: ``results/landscape_cost_cpu.json``, ``results/landscape_cost_h200.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crsam import landscape
from crsam.lab import data
from crsam.lab.data.augment import normalize
from crsam.lab.experiment.environment import environment
from crsam.lab.models import ResNet

LEAST = 0.9
"""Of the plain rate: what we promise."""
DTYPES = {"float32": None, "bfloat16": torch.bfloat16}

Batches = list[tuple[Tensor, Tensor]]


def images(root: str | None, samples: int, batch: int, device: torch.device) -> Batches:
    """Normalised CIFAR-10 training images and labels; noise without a root."""
    if root is None:
        g = torch.Generator().manual_seed(0)
        x = torch.randn(samples, 3, 32, 32, generator=g)
        y = torch.randint(10, (samples,), generator=g)
    else:
        found = data.load("cifar10", root)
        some = torch.arange(samples)
        x = normalize(found.train.fetch(some), found.mean, found.std, torch.float32)
        y = found.train.labels[:samples]
    return list(zip(x.to(device).split(batch), y.to(device).split(batch)))


def losses_and_right(model: Any, batch: Any, autocast: torch.dtype | None) -> tuple[Tensor, Tensor]:
    x, y = batch
    with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
        logits = model(x)
    logits = logits.float()
    return F.cross_entropy(logits, y, reduction="none"), logits.argmax(1) == y


LossFn = Callable[[Any, Any], tuple[Tensor, Tensor]]


def plain(model: nn.Module, loss_fn: LossFn, batches: Batches, count: int) -> None:
    """So many evaluations of the model as it is."""
    model.eval()
    with torch.no_grad():
        for _ in range(count):
            found = [loss_fn(model, batch) for batch in batches]
            for part in zip(*found):
                torch.cat(part).double().mean().item()


def seconds(work: Callable[[], object]) -> dict[str, float]:
    """By the clock on the wall, and by this process's share of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def over_grid(side: int, **options: Any) -> landscape.Surface:
    """A landscape that is written to a file, as the command does it."""
    with tempfile.TemporaryDirectory() as folder:
        x = torch.linspace(-1, 1, side).tolist()
        return landscape.surface(x=x, file=f"{folder}/a.npz", **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", help="the folder that holds cifar-10-batches-py; else noise")
    parser.add_argument("--width", type=int, default=8, help="channels of the first stage")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--grid", type=int, default=3, help="points a side, in a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--also", action="store_true", help="time the options of a landscape too")
    parser.add_argument("--whole", type=int, help="also time one landscape of so many a side")
    parser.add_argument("--precision", choices=DTYPES, default="float32")
    parser.add_argument("--compile", action="store_true", help="model and loss")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    torch.manual_seed(0)
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    model = ResNet(18, 10, width=args.width).to(device, memory_format=layout)
    batches = images(args.root, args.samples, args.batch, device)
    batches = [(x.contiguous(memory_format=layout), y) for x, y in batches]
    loss_fn: LossFn = partial(losses_and_right, autocast=DTYPES[args.precision])
    if args.compile:
        loss_fn = torch.compile(loss_fn)
    given: dict[str, Any] = {"model": model, "loss_fn": loss_fn, "batches": batches}

    ways: dict[str, Callable[[], object]] = {
        "plain evaluation": lambda: plain(count=args.grid**2, **given),
        "landscape": lambda: over_grid(args.grid, **given),
    }
    if args.also:
        ways |= {
            "batch norm recomputed": lambda: over_grid(args.grid, batch_norm="recomputed", **given),
            "three points at once": lambda: over_grid(args.grid, at_once=3, **given),
        }
    for way in ways.values():  # first calls are slow
        way() if device.type == "cuda" else None
    plain(model, loss_fn, batches, 2)
    times: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for i in range(args.rounds):
        for name, way in ways.items():
            times[name].append(seconds(way))
        print(f"round {i + 1} of {args.rounds}", flush=True)
    base = times["plain evaluation"]
    rates = {
        clock: {
            name: statistics.median(p[clock] / t[clock] for p, t in zip(base, mine))
            for name, mine in times.items()
        }
        for clock in ("wall", "cpu")
    }
    print(f"\n{environment(device)['hardware']}, torch {torch.__version__}; {args.samples} images")
    for name, mine in times.items():
        each = statistics.median(t["wall"] for t in mine) / args.grid**2
        by_clock = f"{rates['wall'][name]:.3f} ({rates['cpu'][name]:.3f} by the processor)"
        print(f"{name:<34}{each * 1e3:9.1f} ms a point, {by_clock} of the plain rate")
    kept = rates["wall"]["landscape"] >= LEAST
    print(f"at least {LEAST} promised: {'kept' if kept else 'MISSED'}")
    whole = None
    if args.whole:
        whole = seconds(lambda: over_grid(args.whole, **given))["wall"]
        print(f"{args.whole} × {args.whole} points: {whole:.1f} s")
    if args.out:
        asked = {name: value for name, value in vars(args).items() if name != "out"}
        result = {**environment(device), **asked, "rates": rates, "seconds": times,
                  "whole_seconds": whole}  # fmt: skip
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
