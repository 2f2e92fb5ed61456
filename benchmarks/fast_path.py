"""Time of a captured training step on a GPU: SGD, SAM, CR-SAM, in sequence and on two streams.

Whole steps as `crsam train` takes them: bf16 autocast, channels-last, compiled, one CUDA graph.
All contestants live in one process; rounds of 50 steps of each, in turn; medians over the rounds.

    PYTHONPATH=src python benchmarks/fast_path.py --out results/fast_path_h200.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim import SGD

import crsam
from crsam.lab.data.augment import make_augment
from crsam.lab.data.batches import Batch, Batches, Feed
from crsam.lab.data.images import Held
from crsam.lab.experiment.environment import environment
from crsam.lab.models import make_model
from crsam.lab.train.captured import CapturedStep
from crsam.lab.train.evaluate import evaluate
from crsam.lab.train.tally import Tally

CONTESTANTS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "sgd": ("sgd", False, {}),
    "sam": ("sam", False, {"rho": 0.1}),
    "crsam log, in sequence": ("crsam", False, {"rho": 0.1}),
    "crsam log, at once": ("crsam", True, {"rho": 0.1}),
    "crsam linear, at once": ("crsam", True, {"rho": 0.1, "form": "linear"}),
}


def build(name: str, model_name: str, compile: bool) -> CapturedStep:
    method, parallel, options = CONTESTANTS[name]
    torch.manual_seed(0)
    model = make_model(model_name, 10).cuda().to(memory_format=torch.channels_last)
    optimizer: Any = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    if method != "sgd":
        optimizer = crsam.make(method, optimizer, model=model, **options)
    return CapturedStep(
        model,
        optimizer,
        autocast=torch.bfloat16,
        parallel=parallel,
        compile=compile,
        share=model_name,
        channels_last=True,
    )


def a_batch(size: int) -> Batch:
    x = torch.randn(size, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    return Batch(x, torch.randint(10, (size,), device="cuda"))


def milliseconds(step: CapturedStep, batch: Batch, count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        step(batch)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def some_images(number: int) -> tuple[Held, Feed]:
    images = Held(
        torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8, device="cuda"),
        torch.randint(10, (number,), device="cuda"),
    )
    return images, Feed((0.49, 0.48, 0.45), (0.25, 0.24, 0.26), 10, make_augment("basic"))


def an_epoch(step: CapturedStep, batch_size: int, times_over: int) -> float:
    """Seconds of an epoch of 50,000 images, flipped and cropped on the GPU, metrics kept."""
    images, feed = some_images(50000)
    batches, tally, times = Batches(images, feed, batch_size), Tally(), []
    for epoch in range(times_over):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for batch in batches.epoch(epoch):
            loss, right = step(batch)
            report = getattr(step._captured.optimizer, "report", {})
            tally.add({**report, "loss": loss, "accuracy": right})
        tally.means()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def evaluations(model_name: str) -> dict[str, float]:
    """Milliseconds to evaluate 10,000 images, as they are and compiled; seconds to compile."""
    images, feed = some_images(10000)
    model = make_model(model_name, 10).cuda().to(memory_format=torch.channels_last)
    found: dict[str, float] = {}
    for name, judged in {"plain": model, "compiled": torch.compile(model)}.items():
        times = []
        for _ in range(8):
            start = time.perf_counter()
            evaluate(judged, images, feed, autocast=torch.bfloat16)  # reads a number: waits
            times.append(time.perf_counter() - start)
        found[name] = 1e3 * statistics.median(times[1:])
    return {**found, "seconds_to_compile": times[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=3, help="to take the median of; 0: none")
    parser.add_argument("--only", nargs="*", default=list(CONTESTANTS))
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--all-algorithms", action="store_true", help="let cuDNN try all it has")
    parser.add_argument("--profile", action="store_true", help="only: kernels of the first one")
    parser.add_argument("--inductor", nargs="*", default=[], help="options such as key=true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    for word in args.inductor:
        key, _, value = word.partition("=")
        parts = key.split(".")
        target = torch._inductor.config
        for part in parts[:-1]:
            target = getattr(target, part)
        setattr(target, parts[-1], json.loads(value))
    if args.all_algorithms:
        torch.backends.cudnn.benchmark_limit = 0
    steps, peaks, epochs = {}, {}, {}
    batch = a_batch(args.batch)
    for name in args.only:
        torch.cuda.reset_peak_memory_stats()
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        steps[name] = build(name, args.model, not args.no_compile)
        for _ in range(6):
            steps[name](batch)
        torch.cuda.synchronize()
        peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
        spent = time.perf_counter() - start
        print(f"{name}: ready after {spent:.1f} s", steps[name]._captured.milliseconds, flush=True)
    if args.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(5):
                steps[args.only[0]](batch)
            torch.cuda.synchronize()
        rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
        print(f"{sum(row.count for row in rows) / 5:.0f} kernels a step")
        for row in rows[:45]:
            print(f"{row.self_device_time_total / 5:9.1f} us {row.count / 5:6.1f}x {row.key[:110]}")
        return
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.rounds):
        for name, step in steps.items():
            times[name].append(milliseconds(step, batch, 50))
    for name, step in steps.items():
        epochs[name] = an_epoch(step, args.batch, args.epochs) if args.epochs else float("nan")
    medians = {name: statistics.median(t) for name, t in times.items()}
    print(f"\n{environment('cuda')['hardware']}, torch {torch.__version__}, {args.model}, "
          f"batch {args.batch}, {args.inductor}")  # fmt: skip
    print(f"{'':28}{'ms':>8}{'of sgd':>8}{'of sam':>8}{'s/epoch':>9}{'MiB':>8}")
    first, sam = medians[args.only[0]], medians.get("sam", float("nan"))
    for name, ms in medians.items():
        print(f"{name:28}{ms:8.3f}{ms / first:8.3f}{ms / sam:8.3f}{epochs[name]:9.3f}"
              f"{peaks[name]:8.0f}", flush=True)  # fmt: skip
    evaluated = evaluations(args.model) if args.epochs and not args.no_compile else {}
    if evaluated:
        print("evaluation of 10,000 images:", {name: round(t, 1) for name, t in evaluated.items()})
    if args.out:
        asked = {key: value for key, value in vars(args).items() if key != "out"}
        result = {**environment("cuda"), **asked, "milliseconds": medians, "all": times,
                  "ways": {name: step._captured.milliseconds for name, step in steps.items()},
                  "seconds_per_epoch": epochs, "peak_mib": peaks,
                  "evaluation": evaluated}  # fmt: skip
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
