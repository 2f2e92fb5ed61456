"""How many images a second one core corrupts, beside the package ``imagecorruptions-imaug``.

    OMP_NUM_THREADS=1 python benchmarks/corruptions.py --out results/corruptions_cpu.json
    python benchmarks/corruptions.py --table results/corruptions_cpu.json

Processor time, which neighbours on the machine do not change much, of the mean over the five
severities; medians over rounds, in which all take turns. Freed memory is kept, for both, as in the
workers of ``crsam corrupt``. Files are not read or written. The package
is timed where it is installed (pip install imagecorruptions-imaug); it has no constants for 32
pixels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from crsam.lab.experiment.environment import environment
from crsam.lab.robustness import corrupt, corruptions
from crsam.lab.robustness.constants import SEVERITIES
from crsam.lab.robustness.workers import keep_freed_memory

SIDES = {"32 px": 32, "160 px": 160, "224 px": 224}
THEIRS = "package, 224 px"


def photo(side: int) -> np.ndarray:
    """Smooth noise with edges: as good as a photograph for all but the coders of JPEG."""
    draws = np.random.default_rng(0)
    small = Image.fromarray(draws.integers(0, 256, (side // 8, side // 8, 3)).astype(np.uint8))
    return np.asarray(small.resize((side, side), Image.Resampling.BICUBIC))


def seconds(work: Callable[[int], object], enough: float = 0.2) -> float:
    """Processor time of one image."""
    began, count = time.process_time(), 0
    while time.process_time() - began < enough:
        for severity in SEVERITIES:
            work(severity)
        count += len(SEVERITIES)
    return (time.process_time() - began) / count


def work_of(name: str) -> dict[str, Callable[[int], object]]:
    found: dict[str, Callable[[int], object]] = {}
    for label, side in SIDES.items():
        image, kind = photo(side), "cifar" if side == 32 else "imagenet"
        found[label] = lambda s, x=image, k=kind: corrupt(x, name, s, constants=k)
    if find_spec("imagecorruptions"):
        import imagecorruptions

        image = photo(224)
        found[THEIRS] = lambda s: imagecorruptions.corrupt(image, severity=s, corruption_name=name)
    return found


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Images a second, by corruption."""
    rates = {}
    for name in corruptions():
        work = work_of(name)
        for each in work.values():
            each(1)  # panes of ice, kernels, numba
        times = {label: [] for label in work}
        for _ in range(rounds):
            for label, each in work.items():
                times[label].append(seconds(each))
        rates[name] = {label: 1 / statistics.median(found) for label, found in times.items()}
        print(name, {label: round(rate) for label, rate in rates[name].items()}, flush=True)
    return rates


def table(result: dict) -> str:
    rates, labels = result["rates"], list(result["rates"]["fog"])
    lines = ["| corruption | " + " | ".join(labels) + " |", "|---|" + "---|" * len(labels)]
    for name, found in rates.items():
        lines.append(f"| {name} | " + " | ".join(f"{found[k]:,.0f}" for k in labels) + " |")
    means = [1 / statistics.fmean(1 / found[k] for found in rates.values()) for k in labels]
    lines.append("| **all 15** | " + " | ".join(f"**{mean:,.0f}**" for mean in means) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.table.read_text())))
        return
    keep_freed_memory()
    about = environment("cpu", "numpy", "scipy", "pillow", "imagecorruptions-imaug")
    result = {**about, "rounds": asked.rounds, "rates": measure(asked.rounds)}
    print(table(result))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
