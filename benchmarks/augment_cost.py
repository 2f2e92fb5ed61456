"""What augmentation costs: its time on a batch as a share of a step of CR-SAM.

A step is three passes (``zero_grad``, loss, ``backward``) of ResNet-18 on 128 images of 32 × 32;
one is timed and taken three times. Every round times the pass and each augmentation, the median of
ten calls, so that a busy machine slows both; what counts is the median over the rounds.

    OMP_NUM_THREADS=1 python benchmarks/augment_cost.py

On one core of an AMD EPYC, torch 2.13.0: 0.01 % for basic, 0.10 % for AutoAugment, of 16 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from crsam.lab.data.augment import augmentations, make_augment
from crsam.lab.experiment.environment import environment
from crsam.lab.models import ResNet

SEED = 0
PASSES = 3
"""Of a step of CR-SAM."""
CALLS = 10
MAX_SHARE = {"basic": 0.05, "autoaugment": 0.20}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def time_rounds(width: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of a pass, under ``"pass"``, and of each augmentation, in each round."""
    g = torch.Generator().manual_seed(SEED)
    torch.manual_seed(SEED)
    net = ResNet(18, 10, width=width)
    images = torch.randint(256, (batch, 3, 32, 32), dtype=torch.uint8, generator=g)
    x, y = images / 255, torch.randint(10, (batch,), generator=g)

    def one_pass() -> None:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()

    augments = {name: make_augment(name) for name in augmentations() if name != "none"}
    one_pass()
    times: dict[str, list[float]] = {"pass": [], **{name: [] for name in augments}}
    for i in range(rounds):
        times["pass"].append(seconds(one_pass))
        for name, augment in augments.items():
            calls = [seconds(lambda a=augment: a(images, g)) for _ in range(CALLS)]
            times[name].append(statistics.median(calls))
        print(f"round {i + 1} of {rounds}: a pass takes {times['pass'][-1]:.2f} s", flush=True)
    return times


def shares_of_a_step(times: dict[str, list[float]]) -> dict[str, float]:
    """The median over the rounds, by augmentation."""
    return {
        name: statistics.median(a / (PASSES * b) for a, b in zip(times[name], times["pass"]))
        for name in times
        if name != "pass"
    }


def table(times: dict[str, list[float]]) -> list[str]:
    lines = [f"{'augmentation':<14}{'ms':>8}{'of a step':>12}  bound"]
    for name, share in shares_of_a_step(times).items():
        most = MAX_SHARE.get(name)
        verdict = "" if most is None else f"{most:.0%}: {'kept' if share < most else 'MISSED'}"
        lines.append(
            f"{name:<14}{statistics.median(times[name]) * 1e3:>8.1f}{share:>12.3%}  {verdict}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    times = time_rounds(args.width, args.batch, args.rounds)
    print(
        f"\n{environment()['hardware']}, {args.threads} thread(s), torch {torch.__version__}; "
        f"ResNet-18 of width {args.width}, batch {args.batch}, medians of {args.rounds} rounds; "
        f"a step of {PASSES} passes takes {PASSES * statistics.median(times['pass']):.2f} s"
    )
    print("\n".join(table(times)))
    if args.out:
        asked = {name: value for name, value in vars(args).items() if name != "out"}
        result = {**environment(), **asked, "shares": shares_of_a_step(times), "seconds": times}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
