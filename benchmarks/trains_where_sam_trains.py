"""Does CR-SAM train wherever SAM trains?

Small nets with and without batch norm on scikit-learn's digits, clean and with 30 % wrong labels,
ρ from 0.05 to 0.3, SGD with and without momentum: SAM and CR-SAM at the same ρ and learning rate,
the log form with the library's defaults, the linear one with a bound of 0.5. A run has *collapsed*
if its accuracy is below 50 % (guessing: 10 %). The claim fails where CR-SAM collapses in a seed in
which SAM does not.

    python benchmarks/trains_where_sam_trains.py --out results/trains_where_sam_trains.json

384 runs of 40 epochs: a quarter of an hour on two cores. ``--table FILE`` prints the table of an
earlier result without running anything.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from digits import NETS, digits, train

import crsam
from crsam.lab.experiment.environment import environment

Methods = Mapping[str, tuple[str, Mapping[str, Any]]]
METHODS: Methods = {
    "SAM": ("sam", {}),
    "CR-SAM log": ("crsam", {}),
    "CR-SAM linear": ("crsam", {"form": "linear", "alpha": 0.5, "beta": 0.1, "trust": 0.5}),
}
RHOS = (0.05, 0.1, 0.2, 0.3)
COLLAPSED = 50.0


class Run(NamedTuple):
    net: str
    noise: float
    momentum: float
    rho: float
    seed: int
    method: str


def accuracy_of(run: Run, epochs: int, method: tuple[str, Mapping[str, Any]]) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    model = NETS[run.net]()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=run.momentum, weight_decay=5e-4)
    name, hyper = method
    opt = crsam.make(name, base, rho=run.rho, model=model, **hyper)
    return train(model, opt, digits(run.noise, run.seed), epochs, seed=run.seed)


def _call(job: tuple[Run, int, Any]) -> tuple[Run, float]:
    return job[0], accuracy_of(*job)


def battery(methods: Methods, epochs: int, seeds: int, workers: int) -> Iterator[dict[str, Any]]:
    """Every run of these methods, with its accuracy, as they are done."""
    grid = itertools.product(NETS, (0.0, 0.3), (0.0, 0.9), RHOS, range(seeds), methods)
    runs = [Run(*values) for values in grid]
    jobs = [(run, epochs, methods[run.method]) for run in runs]
    with multiprocessing.Pool(workers) as pool:
        for k, (run, accuracy) in enumerate(pool.imap(_call, jobs), start=1):
            print(f"[{k}/{len(runs)}] {run}: {accuracy:.1f}", flush=True)
            yield {**run._asdict(), "accuracy": round(accuracy, 2)}


def table(result: dict[str, Any]) -> str:
    """Mean accuracy of each cell as Markdown; a collapse in any seed is marked ✗."""
    cells: dict[tuple[Any, ...], list[float]] = {}
    for *key, _, method, accuracy in (tuple(r.values()) for r in result["runs"]):
        cells.setdefault((*key, method), []).append(accuracy)
    rows = ["| net | wrong labels | momentum | ρ | " + " | ".join(METHODS) + " |"]
    rows.append("|---|---|---|---|" + "---|" * len(METHODS))
    for net, noise, momentum, rho in dict.fromkeys(key[:4] for key in cells):
        row = [net, f"{noise:.0%}", str(momentum), str(rho)]
        for method in METHODS:
            got = cells[net, noise, momentum, rho, method]
            mark = " ✗" if min(got) < COLLAPSED else ""
            row.append(f"{sum(got) / len(got):.1f}{mark}")
        rows.append("| " + " | ".join(row) + " |")
    return "\n".join(rows)


def broken_claims(result: dict[str, Any]) -> list[str]:
    """Every run of CR-SAM that collapsed where SAM with the same seed did not."""
    accuracies = {tuple(r.values())[:-1]: r["accuracy"] for r in result["runs"]}
    return [
        f"{key}: {accuracy:.1f}"
        for key, accuracy in accuracies.items()
        if accuracy < COLLAPSED <= accuracies[(*key[:-1], "SAM")]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of this result and stop")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(args.table.read_text())))
        return
    done = list(battery(METHODS, args.epochs, args.seeds, args.workers))
    result = {**environment(), "epochs": args.epochs, "collapsed_below": COLLAPSED, "runs": done}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(table(result))
    broken = broken_claims(result)
    print("\n".join(broken) or "CR-SAM trained wherever SAM did.")


if __name__ == "__main__":
    main()
