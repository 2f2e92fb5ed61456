"""What a step costs where Python decides: small nets on one core of a CPU.

    python benchmarks/small_nets.py [--rounds 30] [--json results/small_nets_cpu.json]

Rows: one forward and backward pass, a step of SGD, SAM of pytorch_optimizer (if it is installed),
our SAM and our CR-SAM. All are timed one after another in each round. The columns are the median
over the rounds, what a step takes beside its passes and the step of SGD, the ratio to the SAM of
pytorch_optimizer, and the quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import crsam
from crsam.lab.experiment.environment import environment

NETS = {"3 layers": 3, "20 layers": 20}
BATCH, WIDTH, STEPS = 32, 32, 60


def net(layers: int) -> nn.Module:
    torch.manual_seed(0)
    inner = [part for _ in range(layers - 1) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(WIDTH, 10))


def contestants(layers: int) -> dict[str, Callable[[], object]]:
    """One step of each, on a net of its own."""
    x, y = torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,))
    found: dict[str, Callable[[], object]] = {}

    def plain(model: nn.Module) -> Callable[[], torch.Tensor]:
        def closure() -> torch.Tensor:
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return closure

    def sgd(model: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    found["pass"] = plain(net(layers))
    model = net(layers)
    base, closure = sgd(model), plain(model)

    def sgd_step() -> None:
        closure()
        base.step()

    found["SGD"] = sgd_step
    try:
        from pytorch_optimizer import SAM as TheirSAM  # noqa: N811
    except ImportError:
        pass
    else:
        model = net(layers)
        theirs = TheirSAM(model.parameters(), torch.optim.SGD, lr=1e-3, momentum=0.9)
        their_closure = plain(model)

        def their_step() -> None:
            their_closure()
            theirs.step(their_closure)

        found["pytorch_optimizer SAM"] = their_step
    for name in ("SAM", "CRSAM"):
        model = net(layers)
        ours = crsam.make(name, sgd(model), model=model)
        own = plain(model)
        found[name] = lambda ours=ours, own=own: ours.step(own)
    return found


def measure(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Microseconds of a step of each, in each round."""
    for step in steps.values():
        for _ in range(STEPS):
            step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            begun = time.thread_time()
            for _ in range(STEPS):
                step()
            found[name].append(1e6 * (time.thread_time() - begun) / STEPS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = {}
    for title, layers in NETS.items():
        times = measure(contestants(layers), options.rounds)
        medians = {name: statistics.median(each) for name, each in times.items()}
        one, sgd = medians["pass"], medians["SGD"] - medians["pass"]
        theirs = medians.get("pytorch_optimizer SAM")
        print(f"\n{title}, width {WIDTH}, batch {BATCH}: microseconds a step, median of rounds")
        rows = {}
        for name, value in medians.items():
            passes = {"pass": 1, "SGD": 1, "CRSAM": 3}.get(name, 2)
            rows[name] = {
                "microseconds": round(value, 1),
                "beside": round(value - passes * one - (sgd if name != "pass" else 0), 1),
                "against_pytorch_optimizer": None if theirs is None else round(value / theirs, 3),
                "quartiles": [round(q, 1) for q in statistics.quantiles(times[name], n=4)[::2]],
            }
            print(f"{name:24}" + "".join(f"{each!s:>20}" for each in rows[name].values()))
        table[title] = rows
    if options.json is not None:
        command = f"python benchmarks/small_nets.py --rounds {options.rounds} --json {options.json}"
        about = {"command": command, "threads": 1, "seed": 0, "rounds": options.rounds}
        found = {**about, **environment("cpu", "pytorch_optimizer"), "rows": table}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
