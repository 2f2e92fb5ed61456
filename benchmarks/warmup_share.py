"""How long must ρ rise in a short training: a tenth of its steps, or a fifth?

Small nets without batch norm on scikit-learn's digits with 30 % wrong labels, ρ = 0.2 and 0.3, both
forms of CR-SAM with their bound, SGD with and without momentum. These are the settings in which
``what_keeps_it_training.py`` found that CR-SAM collapses without a warm-up. A run has collapsed if
its accuracy is below 50 % (guessing: 10 %).

    nice python benchmarks/warmup_share.py --out results/warmup_share.json

``--table FILE`` prints the table of an earlier result without running anything.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from trains_where_sam_trains import COLLAPSED, Run, accuracy_of

from crsam.lab.experiment.environment import environment

STEPS_AN_EPOCH = 23
FORMS = {
    "log": {"form": "log", "trust": 0.1},
    "linear": {"form": "linear", "alpha": 0.5, "beta": 0.1, "trust": 0.5},
}
SHARES = {"a tenth": 0.1, "a fifth": 0.2, "200 steps": None}
"""Of the steps of a training; None is CR-SAM's own default, whatever the length."""


def runs(epochs: list[int], seeds: int) -> list[dict[str, Any]]:
    """Trains every net in every setting."""
    grid = list(
        itertools.product(
            epochs, range(seeds), ("conv", "MLP"), (0.0, 0.9), (0.2, 0.3), FORMS, SHARES
        )
    )
    found = []
    for k, (length, seed, net, momentum, rho, form, share) in enumerate(grid, start=1):
        part = SHARES[share]
        warmup = 200 if part is None else int(part * length * STEPS_AN_EPOCH)
        run = Run(net, 0.3, momentum, rho, seed, f"CR-SAM {form}")
        accuracy = accuracy_of(run, length, ("crsam", {**FORMS[form], "warmup": warmup}))
        told = {"epochs": length, "share": share, "warmup": warmup}
        found.append({**run._asdict(), **told, "accuracy": round(accuracy, 2)})
        print(f"[{k}/{len(grid)}] {found[-1]}", flush=True)
    return found


def table(result: dict[str, Any]) -> str:
    """How many runs collapsed, by length, warm-up and form, as Markdown."""
    rows = ["| epochs | steps | warm-up | log | linear |", "|---|---|---|---|---|"]
    for length, share in itertools.product(result["epochs"], SHARES):
        of = [r for r in result["runs"] if (r["epochs"], r["share"]) == (length, share)]
        cells = []
        for form in FORMS:
            mine = [r["accuracy"] for r in of if r["method"] == f"CR-SAM {form}"]
            cells.append(f"{sum(a < COLLAPSED for a in mine)} of {len(mine)}")
        warmup = share if SHARES[share] is None else f"{share}: {of[0]['warmup']} steps"
        rows.append(f"| {length} | {STEPS_AN_EPOCH * length} | {warmup} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of this result and stop")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(args.table.read_text())))
        return
    origin = environment()  # before anyone edits the files
    result = {**origin, "epochs": args.epochs, "collapsed_below": COLLAPSED}
    result["runs"] = runs(args.epochs, args.seeds)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
