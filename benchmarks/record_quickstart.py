"""The figures of ``examples/quickstart.py`` that the README quotes, with where they were measured.

python benchmarks/record_quickstart.py --out results/quickstart.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from environment import environment

sys.path.append(str(Path(__file__).parents[1] / "examples"))

from quickstart import compare


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    accuracies, seconds = compare(args.seeds, args.epochs)
    rounded = {method: [round(a, 2) for a in got] for method, got in accuracies.items()}
    times = {method: sum(got) / sum(seconds["SGD"]) for method, got in seconds.items()}
    result = {
        **environment("cpu", "scikit-learn"),
        "seeds": args.seeds,
        "epochs": args.epochs,
        "accuracy": rounded,
        "time_over_sgd": {method: round(time, 2) for method, time in times.items()},
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
