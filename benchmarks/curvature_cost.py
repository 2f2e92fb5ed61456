"""What a Hessian trace costs: time a probe beside PyHessian and curvlinops, and memory.

Time: Hutchinson's trace of a narrow ResNet-18 over a loader of four batches, as each package does
it, in seconds a probe and as a multiple of one plain pass over the four batches (forward and
backward). Every round times each contestant once, in shuffled order; what counts is the median
over the rounds of the quotients within a round. PyHessian is timed with fewer probes, since each
costs it the same. On a CPU there are two tables, since the allocator matters: as it comes, the C
library gives large blocks back and gets them anew, page by page; kept, it is as on a GPU.

Memory: the peak of live tensors during our trace, as the number of probes and of batches grows,
beside that of a training step (SGD on one batch) and of the others' traces.

    OMP_NUM_THREADS=1 python benchmarks/curvature_cost.py --out results/curvature_cost_cpu.json

The others are optional: ``pip install pyhessian``; ``pip install --no-deps curvlinops-for-pytorch``
and what it then misses.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import random
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from step_cost import keep_freed_memory, seconds, summary, verdict
from torch import Tensor, nn
from torch.nn import functional as F

from crsam import curvature
from crsam.lab.experiment.environment import environment
from crsam.lab.experiment.live_memory import LiveStorages
from crsam.lab.models import ResNet

SEED = 0
OURS, PYHESSIAN, CURVLINOPS, PLAIN = "crsam", "PyHessian", "curvlinops", "plain pass"
PYHESSIAN_PROBES = 10
MAX_SHARE = {PYHESSIAN: 0.75, CURVLINOPS: 0.5}
"""Our time at most, by theirs."""
PACKAGES = {PYHESSIAN: "pyhessian", CURVLINOPS: "curvlinops"}

Batches = list[tuple[Tensor, Tensor]]
Run = Callable[[], object]


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def net(width: int, device: torch.device) -> nn.Module:
    """In evaluation mode, which PyHessian would put it into."""
    torch.manual_seed(SEED)
    return ResNet(18, 10, width=width).eval().to(device)


def data(num_batches: int, size: int, device: torch.device) -> Batches:
    g = torch.Generator().manual_seed(SEED)
    return [
        (
            torch.randn(size, 3, 32, 32, generator=g).to(device),
            torch.randint(10, (size,), generator=g).to(device),
        )
        for _ in range(num_batches)
    ]


def plain_pass(model: nn.Module, batches: Batches) -> Run:
    def run() -> None:
        for batch in batches:
            model.zero_grad()
            loss_fn(model, batch).backward()
        model.zero_grad()

    return run


def ours(model: nn.Module, batches: Batches, num_probes: int) -> Run:
    return partial(curvature.hessian_trace, model, loss_fn, batches, num_probes=num_probes)


def pyhessian(model: nn.Module, batches: Batches, num_probes: int) -> Run:
    from pyhessian import hessian

    cuda = batches[0][0].is_cuda
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operator = hessian(model, nn.CrossEntropyLoss(), dataloader=batches, cuda=cuda)

    def run() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backward with create_graph
            return operator.trace(maxIter=num_probes, tol=-math.inf)  # no early stop

    return run


def curvlinops(model: nn.Module, batches: Batches, num_probes: int) -> Run:
    from curvlinops import HessianLinearOperator, hutchinson_trace

    params = [p for p in model.parameters() if p.requires_grad]
    operator = HessianLinearOperator(
        model, nn.CrossEntropyLoss(), params, batches, check_deterministic=False
    )
    return partial(hutchinson_trace, operator, num_probes)


MAKERS = {OURS: ours, PYHESSIAN: pyhessian, CURVLINOPS: curvlinops}


def contestants() -> list[str]:
    return [name for name in MAKERS if name == OURS or importlib.util.find_spec(PACKAGES[name])]


def time_traces(args: argparse.Namespace, device: torch.device) -> dict[str, list[float]]:
    """Seconds a probe of each contestant, and of a plain pass, in each round."""
    batches = data(args.batches, args.batch, device)
    model = net(args.width, device)
    probes = dict.fromkeys(contestants(), args.probes) | {PYHESSIAN: PYHESSIAN_PROBES}
    runs = {name: MAKERS[name](model, batches, probes[name]) for name in contestants()}
    runs[PLAIN] = plain_pass(model, batches)
    for name in contestants():
        MAKERS[name](model, batches[:1], 2)()  # warm up
    times: dict[str, list[float]] = {name: [] for name in runs}
    order, shuffled = list(runs), random.Random(SEED)
    for i in range(args.rounds):
        shuffled.shuffle(order)
        for name in order:
            times[name].append(seconds(runs[name], device) / probes.get(name, 1))
        print(f"round {i + 1} of {args.rounds}: {times[OURS][-1]:.3f} s a probe", flush=True)
    return times


def peak_of(build: Callable[[], Run], device: torch.device) -> float:
    """Megabytes of tensors alive at the peak, the model and its data included."""
    gc.collect()
    with LiveStorages() if device.type == "cpu" else nullcontext() as mode:
        run = build()
        if mode is None:
            torch.cuda.reset_peak_memory_stats(device)
        run()
        peak = torch.cuda.max_memory_allocated(device) if mode is None else mode.peak
    return peak / 1e6


def training_step(model: nn.Module, batches: Batches) -> Run:
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        loss_fn(model, batches[0]).backward()
        opt.step()

    return run


def memory(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    def measured(make: Callable[[nn.Module, Batches], Run], num_batches: int) -> float:
        def build() -> Run:
            return make(net(args.width, device), data(num_batches, args.batch, device))

        return round(peak_of(build, device), 2)

    def part(num_batches: int, num_probes: int) -> Callable[[nn.Module, Batches], Run]:
        def make(model: nn.Module, batches: Batches) -> Run:
            run = ours(model, batches[:num_batches], num_probes)
            # The data are part of the peak: all are held, however few of them are used.
            return lambda held=batches: run()

        return make

    held = args.batches
    return {
        "training_step": measured(training_step, held),
        "ours_by_probes": {n: measured(part(1, n), held) for n in (2, 8, 32)},
        "ours_by_batches": {n: measured(part(n, 2), held) for n in (1, 2, held)},
        "others": {
            name: {
                n: measured(lambda m, b, n=n, name=name: MAKERS[name](m, b[:1], n), held)
                for n in (2, 8)
            }
            for name in contestants()
            if name != OURS
        },
    }


def summarize(times: dict[str, list[float]]) -> dict[str, Any]:
    """By contestant: seconds a probe, in passes, and our time by theirs; medians and quartiles."""
    return {
        name: {
            "seconds_a_probe": summary(own),
            "passes": summary([a / b for a, b in zip(own, times[PLAIN])]),
            "ours_by_theirs": summary([a / b for a, b in zip(times[OURS], own)]),
        }
        for name, own in times.items()
        if name != PLAIN
    }


def table(result: dict[str, Any]) -> list[str]:
    lines = []
    for allocator, rows in result["time"].items():
        lines += ["", f"allocator: {allocator}"]
        lines.append(
            f"{'':<12}{'s/probe':>9}{'passes':>9}{'ours/theirs':>13}{'quartiles':>17}  bound"
        )
        for name, row in rows.items():
            share = row["ours_by_theirs"]
            quartiles = f"{share['q1']:.3f} … {share['q3']:.3f}"
            lines.append(
                f"{name:<12}{row['seconds_a_probe']['median']:>9.3f}{row['passes']['median']:>9.2f}"
                f"{share['median']:>13.3f}{quartiles:>17}  "
                + verdict(share["median"], MAX_SHARE.get(name))
            )
    held = result["memory_mb"]
    lines += ["", f"peak of a training step on one batch: {held['training_step']} MB"]
    lines += [f"our trace, {n} probes: {mb} MB" for n, mb in held["ours_by_probes"].items()]
    lines += [f"our trace, {n} batches: {mb} MB" for n, mb in held["ours_by_batches"].items()]
    for name, by_probes in held["others"].items():
        lines += [f"{name}, {n} probes: {mb} MB" for n, mb in by_probes.items()]
    return lines


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--probes", type=int, default=100, help="of a trace, when timing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    about = environment(device, "pyhessian", "curvlinops-for-pytorch")
    asked = {name: value for name, value in vars(args).items() if name != "out"}
    result = {**about, **asked, "seed": SEED, "memory_mb": memory(args, device), "time": {}}
    result["time"]["as it comes"] = summarize(time_traces(args, device))
    if device.type == "cpu":
        keep_freed_memory()
        result["time"]["freed memory kept"] = summarize(time_traces(args, device))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"\n{about['hardware']}, {args.threads} CPU thread(s), torch {torch.__version__}; "
        f"ResNet-18 of width {args.width}, {args.batches} batches of {args.batch}, "
        f"{args.probes} probes ({PYHESSIAN_PROBES} of PyHessian), medians of {args.rounds} rounds"
    )
    print("\n".join(table(result)))


if __name__ == "__main__":
    main()
