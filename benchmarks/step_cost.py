"""What a step costs: time in passes, memory in copies of the weights.

Time: a step of every method and of `pytorch_optimizer`'s SAM, as a multiple of one plain pass
(``zero_grad``, loss, ``backward``) of the same ResNet-18 on the same batch. Every round times each
contestant once, in shuffled order, and divides by the plain pass of that very round, so that a busy
machine slows both; what counts is the median over the rounds.

Memory: the peak of live tensors over a whole step, less that of a plain SGD step, in copies of the
weights. Once where the weights outweigh the activations, so that the peak is at the end of the
backward pass, beside a full set of gradients, and once the other way round.

    OMP_NUM_THREADS=1 python benchmarks/step_cost.py --out results/step_cost_cpu.json
    python benchmarks/step_cost.py --device cuda --out results/step_cost_cuda.json

When one method has changed, ``--only`` times it beside SAM and leaves the memory out:

    python benchmarks/step_cost.py --only rsam --rounds 12 --out results/step_cost_rsam_cpu.json

The medians of LookSAM and AESAM hide the steps at which they pay; their means do not.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contestants import (
    BASE,
    CRSAM_LINEAR,
    CRSAM_LOG,
    HAS_RIVAL,
    PLAIN,
    RIVAL,
    SAM,
    Contestant,
    batch_of,
    build,
    names,
)

from crsam.lab.experiment.environment import environment
from crsam.lab.experiment.live_memory import LiveStorages
from crsam.lab.models import ResNet

SEED = 0
"""Of weights, batch and the order within the rounds."""
SIZES = {"cpu": (32, 64), "cuda": (64, 128)}
"""Width and batch by device: a pass of 0.1 to 0.5 s on one CPU core; the paper's net on a GPU."""

MAX_PASSES = {SAM: 2.1, CRSAM_LOG: 3.1, CRSAM_LINEAR: 3.1}
MAX_COPIES = {SAM: 2.0, CRSAM_LOG: 4.0, CRSAM_LINEAR: 3.0}
ROUNDING = 0.01
"""Copies: the report's numbers and one tensor's scratch space are none."""

MEMORY_NETS = {
    "weights dominate": {"width": 64, "batch": 8, "image": 8},
    "activations dominate": {"width": 16, "batch": 64, "image": 32},
}
IN_MEMORY = [SAM, CRSAM_LOG, CRSAM_LINEAR, "gsam", "asam", "looksam", *([RIVAL] * HAS_RIVAL)]


def keep_freed_memory() -> None:
    """Has the C library keep what is freed for the next allocation, as the CUDA allocator does.

    Otherwise it gives large blocks back and gets them anew, here with 25,000 page faults a pass,
    more or fewer by the layout of the heap, which says nothing about a method.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        libc.mallopt(-4, 0)  # M_MMAP_MAX


def seconds(step: Any, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def time_steps(
    width: int, batch: int, rounds: int, device: torch.device, only: Sequence[str] = ()
) -> dict[str, list[float]]:
    """The seconds of each contestant's step in each round; of those in `only` and SAM, if given."""
    torch.manual_seed(SEED)
    net = ResNet(18, 10, width=width).to(device)
    x, y = batch_of(batch, 32, device)
    asked = [PLAIN, SAM, *only] if only else names()
    contestants = {name: build(name, net, x, y) for name in asked}
    for contestant in contestants.values():
        contestant.step()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order, shuffled = list(contestants), random.Random(SEED)
    for i in range(rounds):
        shuffled.shuffle(order)
        for name in order:
            times[name].append(seconds(contestants[name].step, device))
        print(f"round {i + 1} of {rounds}: a plain pass takes {times[PLAIN][-1]:.3f} s", flush=True)
    return times


def peak_of_step(build: Callable[[], Contestant], device: torch.device) -> int:
    """Bytes alive at the peak of one step, of the dearest kind and not the first.

    The count is absolute, so that what a method keeps from step to step is in it; whatever is to
    count must be born in `build` or later.
    """
    gc.collect()
    with LiveStorages() if device.type == "cpu" else nullcontext() as mode:
        contestant = build()
        for _ in range(contestant.period):
            contestant.step()
        if mode is None:
            torch.cuda.reset_peak_memory_stats(device)
        else:
            mode.peak = mode.live
        contestant.step()
        return torch.cuda.max_memory_allocated(device) if mode is None else mode.peak


def extra_memory(width: int, batch: int, image: int, device: torch.device) -> dict[str, Any]:
    """Peaks of a step beyond that of SGD, in copies of the weights, by contestant."""
    torch.manual_seed(SEED)
    net = ResNet(18, 10, width=width).to(device)
    x, y = batch_of(batch, image, device)
    one_copy = sum(p.numel() * p.element_size() for p in net.parameters())
    peaks = {
        name: peak_of_step(partial(build, name, net, x, y), device) for name in [BASE, *IN_MEMORY]
    }
    return {
        "weights_mb": one_copy / 1e6,
        "sgd_peak_mb": peaks[BASE] / 1e6,
        "copies": {name: (peaks[name] - peaks[BASE]) / one_copy for name in IN_MEMORY},
    }


def summary(values: list[float]) -> dict[str, float]:
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    rounded = {"median": median, "q1": q1, "q3": q3, "mean": np.mean(values), "stderr": error}
    return {name: round(float(value), 5) for name, value in rounded.items()}


def summarize_times(times: dict[str, list[float]]) -> dict[str, Any]:
    """By contestant: seconds, and passes (over the rounds' plain passes). And SAM by the rival."""
    rows = {
        name: {
            "seconds": summary(own),
            "passes": summary([a / b for a, b in zip(own, times[PLAIN])]),
        }
        for name, own in times.items()
    }
    against = summary([a / b for a, b in zip(times[SAM], times[RIVAL])]) if RIVAL in times else None
    return {"steps": rows, "sam_over_rival": against}


def verdict(value: float, bound: float | None) -> str:
    if bound is None:
        return ""
    return f"<= {bound:g} {'PASS' if value <= bound else 'FAIL'}"


def table_of_times(result: dict[str, Any]) -> list[str]:
    lines = [f"{'time':<24}{'ms':>9}{'passes':>9}{'quartiles':>17}{'mean':>8}  bound"]
    for name, row in result["steps"].items():
        p = row["passes"]
        quartiles = f"{p['q1']:.3f} … {p['q3']:.3f}"
        lines.append(
            f"{name:<24}{1e3 * row['seconds']['median']:>9.1f}{p['median']:>9.3f}{quartiles:>17}"
            f"{p['mean']:>8.3f}  {verdict(p['median'], MAX_PASSES.get(name))}"
        )
    r = result["sam_over_rival"]
    if r is not None:
        lines.append(f"our sam / {RIVAL}: median {r['median']:.3f}")
        lines[-1] += f", mean {r['mean']:.3f} ± {r['stderr']:.3f}"
        lines[-1] += f"; mean less 2 errors {verdict(r['mean'] - 2 * r['stderr'], 1.0)}"
    return lines


def table_of_memory(result: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"{'copies beyond SGD':<24}" + "".join(f"{label:>22}" for label in result) + "  bound"]
    for name in IN_MEMORY:
        copies = [setting["copies"][name] for setting in result.values()]
        lines.append(
            f"{name:<24}"
            + "".join(f"{c:>22.3f}" for c in copies)
            + f"  {verdict(max(copies) - ROUNDING, MAX_COPIES.get(name))}"
        )
    return lines + [
        f"{label}: width {s['width']}, batch {s['batch']}, images of {s['image']}×{s['image']}; "
        f"weights {s['weights_mb']:.1f} MB, peak of an SGD step {s['sgd_peak_mb']:.1f} MB"
        for label, s in result.items()
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=sorted(SIZES))
    parser.add_argument("--width", type=int, help="channels of the first stage, when timing")
    parser.add_argument("--batch", type=int, help="when timing")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument(
        "--default-malloc", action="store_true", help="let the C library give freed memory back"
    )
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    args = parser.parse_args()
    width, batch = SIZES[args.device]
    args.width, args.batch = args.width or width, args.batch or batch
    return args


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    if not args.default_malloc:
        keep_freed_memory()
    device = torch.device(args.device)
    memory = {
        label: {**sizes, **extra_memory(**sizes, device=device)}
        for label, sizes in MEMORY_NETS.items()
        if not args.only
    }
    timing = summarize_times(time_steps(args.width, args.batch, args.rounds, device, args.only))
    about = environment(device, "pytorch_optimizer")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        asked = {k: v for k, v in vars(args).items() if k != "out"}
        result = {**about, **asked, "seed": SEED, "time": timing, "memory": memory}
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"\n{about['hardware']}, {args.threads} CPU thread(s), torch {torch.__version__}; "
        f"ResNet-18 of width {args.width}, batch {args.batch}, medians of {args.rounds} rounds"
    )
    of_memory = ["", *table_of_memory(memory)] if memory else []
    print("\n".join([*table_of_times(timing), *of_memory]))


if __name__ == "__main__":
    main()
