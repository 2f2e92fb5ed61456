"""Which of CR-SAM's two precautions keeps it training: the bound, the warm-up of ρ, or both?

The battery of ``trains_where_sam_trains.py``, both forms with and without either, beside SAM with
and without the same warm-up. The guard of the log form, which leaves out what has no logarithm,
stays. A run has collapsed if its accuracy is below 50 % (guessing: 10 %).

    python benchmarks/what_keeps_it_training.py --out results/what_keeps_it_training.json

640 runs of 40 epochs: 45 minutes on two busy cores. ``--table FILE`` prints the table of an earlier
result without running anything.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from trains_where_sam_trains import COLLAPSED, RHOS, Methods, battery

from crsam.lab.experiment.environment import environment

FORMS = {"log": {"form": "log"}, "linear": {"form": "linear", "alpha": 0.5, "beta": 0.1}}
BOUNDS = {"log": 0.1, "linear": 0.5}


def methods() -> Methods:
    """SAM, and both forms, with and without what keeps them training."""
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "SAM": ("sam", {}),
        "SAM, warm-up": ("sam", {"warmup": 200}),
    }
    for form, options in FORMS.items():
        for bounded in (True, False):
            for warm in (True, False):
                words = ["bound"] * bounded + ["warm-up"] * warm or ["neither"]
                more = {"trust": BOUNDS[form] if bounded else None, "warmup": 200 if warm else 0}
                found[f"{form}, {' and '.join(words)}"] = "crsam", {**options, **more}
    return found


def table(result: dict[str, Any]) -> str:
    """How many runs collapsed, by net and ρ, as Markdown."""
    runs = result["runs"]
    names = list(dict.fromkeys(run["method"] for run in runs))
    head = ["", "without batch norm: ρ = " + str(RHOS[0]), *map(str, RHOS[1:])]
    head += ["with batch norm: ρ = " + str(RHOS[0]), *map(str, RHOS[1:]), "in all"]
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name in names:
        own = [run for run in runs if run["method"] == name]
        cells = []
        for norm in (False, True):
            for rho in RHOS:
                of = [r for r in own if ("batch norm" in r["net"]) == norm and r["rho"] == rho]
                cells.append(f"{_collapsed(of)} of {len(of)}")
        rows.append(f"| {name} | {' | '.join(cells)} | {_collapsed(own)} of {len(own)} |")
    return "\n".join(rows)


def _collapsed(runs: list[dict[str, Any]]) -> int:
    return sum(run["accuracy"] < COLLAPSED for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of this result and stop")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(args.table.read_text())))
        return
    runs = list(battery(methods(), args.epochs, args.seeds, args.workers))
    result = {**environment(), "epochs": args.epochs, "collapsed_below": COLLAPSED, "runs": runs}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
