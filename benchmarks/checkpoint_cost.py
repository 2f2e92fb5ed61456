"""What does it cost to verify the checksums of a checkpoint? ResNet-18 with momentum, on a CPU.

A checked load takes no longer than the unchecked load before it. Its share is 0.74 on the clock and
0.98 of the processors' time, or 0.77 and 0.99 with the first step after it. The file has 89 MB.
Verifying takes 18 ms of processor time, and mapping the file saves a copy of the weights. A save
verifies nothing. (Medians of 40 rounds, 2 cores of an AMD EPYC, torch 2.13, a load of 3 from other
programs. An earlier run had 0.96 and 0.98. Fresh processes have the same ratios.)

Run it: ``python benchmarks/checkpoint_cost.py --out results/checkpoint_cost_cpu.json``. Each round
takes all ways one after another, with the file in the page cache. "unchecked" is the load before
checksums were verified: torch copies the file into memory, and the optimizer keeps these tensors.
"checked" is the load of today: the file is mapped, two threads verify it, and the optimizer gets
copies. "first step" adds a step of SGD, which writes to all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from crsam.lab.experiment.environment import environment
from crsam.lab.models import make_model
from crsam.lab.train import checkpoint
from crsam.lab.train.loop import Training

PARTS = ("read", "resumed", "first step")
Times = list[tuple[float, float]]


def made() -> Training:
    """A model and its optimizer after a step, with gradients for the next one."""
    torch.manual_seed(0)
    model = make_model("resnet18", 10, in_channels=1)  # of digits
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    return Training(model, optimizer, step=1)


def now() -> tuple[float, float]:
    """The time on the clock and that of all processors, in milliseconds."""
    return 1e3 * time.perf_counter(), 1e3 * time.process_time()


def resume(training: Training, file: Path, checks: bool) -> list[tuple[float, float]]:
    """Returns the times at the begin and after each of `PARTS`."""
    training.optimizer.state.clear()
    times = [now()]
    if checks:
        state = checkpoint.load(file)
        times.append(now())
        training.load_state_dict(state["training"])
    else:
        state = torch.load(file, weights_only=True)
        times.append(now())
        training.model.load_state_dict(state["training"]["model"])
        training.optimizer.load_state_dict(state["training"]["optimizer"])
        training.tally.load_state_dict(state["training"]["tally"])
    del state
    times.append(now())
    training.optimizer.step()
    return [*times, now()]


def median(times: Times) -> dict[str, float]:
    """Of the time on the clock and of that of all processors."""
    clock, processors = zip(*times, strict=True)
    return {
        "clock": round(statistics.median(clock), 2),
        "processors": round(statistics.median(processors), 2),
    }


def measure(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the median milliseconds of each way."""
    training, file = made(), folder / "checkpoint.pt"
    state = {"training": training.state_dict()}
    saves: dict[str, Callable[[], None]] = {
        "save, one kept": lambda: checkpoint.save(file, state),
        "save, two kept": lambda: checkpoint.save(file, state, keep=folder / "previous.pt"),
    }
    found: dict[str, Times] = {}
    for _ in range(rounds):
        for name, save in saves.items():
            begun = now()
            save()
            found.setdefault(name, []).append((now()[0] - begun[0], now()[1] - begun[1]))
        for checks in (False, True):
            begun, *ends = resume(training, file, checks)
            for part, end in zip(PARTS, ends, strict=True):
                name = f"{part}, {'checked' if checks else 'unchecked'}"
                found.setdefault(name, []).append((end[0] - begun[0], end[1] - begun[1]))
    return {"megabytes": {"file": file.stat().st_size / 1e6}} | {
        name: median(times) for name, times in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), args.rounds)
    megabytes = found.pop("megabytes")["file"]
    load = os.getloadavg()[0]
    print(f"{megabytes:.0f} MB, {os.cpu_count()} cores, load {load:.1f}, {args.rounds} rounds")
    for name, each in found.items():
        print(f"{name:22}{each['clock']:8.1f} ms{each['processors']:8.1f} ms of processors")
    ratios = {
        part: {
            kind: round(found[f"{part}, checked"][kind] / found[f"{part}, unchecked"][kind], 3)
            for kind in ("clock", "processors")
        }
        for part in PARTS
    }
    print("checked / unchecked:", ratios)
    if args.out is not None:
        about = {
            "command": " ".join(["python", *sys.argv]),
            **environment("cpu"),
            "rounds": args.rounds,
            "load": round(load, 1),
            "megabytes": round(megabytes, 1),
        }
        result = {**about, "milliseconds": found, "checked / unchecked": ratios}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
