"""Time of a training step at ImageNet's sizes: SGD or AdamW, SAM and CR-SAM.

Whole steps as `crsam train` takes them, on random images: bf16 autocast, channels-last, compiled,
one CUDA graph where there is a GPU. Every row is timed alone, so that it has all the memory, and
written at once; what does not fit into memory is a row that says so. The rows that are in the file
already are not timed again.

    PYTHONPATH=src python benchmarks/imagenet_steps.py --out results/imagenet_steps_h200.json
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch

from crsam.lab.experiment.bench import bench
from crsam.lab.experiment.environment import environment
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.train.distributed import World, join

KEYS = ("model", "pixels", "batch", "method")
Row = dict[str, Any]


def timed(row: Row, overrides: list[str], world: World, rounds: int) -> Row:
    """The row with its figures, or with the reason why there are none."""
    recipe = f"imagenette/{row['model']}"
    size = [f"data.image_size={row['pixels']}", f"train.batch_size={row['batch']}"]
    words = ["data.name=random", *size, *overrides]
    try:
        (cost,) = bench(recipe, words, [row["method"]], world, rounds=rounds, naive=False)
    except torch.OutOfMemoryError:
        return {**row, "failed": "out of memory"}
    finally:
        gc.collect()  # graphs hold memory until then
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
    return {
        **row,
        "milliseconds": cost.milliseconds,
        "quartiles": cost.quartiles,
        "images_per_second": 1e3 * row["batch"] / cost.milliseconds,
        "peak_gib": cost.peak_mib / 1024,
        "share_of_matrix_products": cost.share,
        "captured": cost.captured,
    }


def table(rows: list[Row]) -> str:
    """The rows side by side, each beside the plain optimizer's."""
    lines = [
        "| model | pixels | batch | method | ms a step | of the base | images/s | GiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    base: dict[tuple[Any, ...], float] = {}
    for row in rows:
        cells = [str(row[key]) for key in KEYS]
        place = tuple(cells[:3])
        if "failed" in row:
            cells += [row["failed"], "", "", ""]
        else:
            ms = row["milliseconds"]
            if row["method"] in ("sgd", "adamw"):
                base[place] = ms
            ratio = f"{ms / base[place]:.2f}" if place in base else ""
            note = "" if row["captured"] else ", not captured"
            speed, memory = f"{row['images_per_second']:,.0f}", f"{row['peak_gib']:.1f}"
            cells += [f"{ms:.2f}{note}", ratio, speed, memory]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rows_of(file: Path | None, about: dict[str, Any]) -> list[Row]:
    """What has been timed already, on the same terms."""
    if file is None or not file.exists():
        return []
    content = json.loads(file.read_text())
    for key in ("overrides", "rounds", "hardware"):
        if content[key] != about[key]:
            here, there = about[key], content[key]
            raise SystemExit(f"{file} has {key} {there}, here it is {here}: give another --out")
    return content["rows"]


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the recipes")
    parser.add_argument("--models", type=words, default="resnet50,vit_s32", help="with commas")
    parser.add_argument("--pixels", type=numbers, default="160,224")
    parser.add_argument("--batches", type=numbers, default="128,512")
    parser.add_argument("--methods", type=words, default="base,sam,crsam")
    parser.add_argument("--rounds", type=int, default=5, help="medians are over these")
    parser.add_argument("--minutes", type=float, help="no row is begun when they are over")
    parser.add_argument("--out", type=Path, help="a JSON file, renewed after every row")
    parser.add_argument("--device", default="auto")
    args = parser.parse_intermixed_args()
    began = time.monotonic()
    places = itertools.product(args.models, args.pixels, args.batches, args.methods)
    with join(args.device) as world:
        about = {"overrides": args.overrides, "rounds": args.rounds, **environment(world.device)}
        rows = rows_of(args.out, about)
        last = None
        for model, pixels, batch, method in places:
            name = load_recipe(f"imagenette/{model}").with_method(method).method
            row = dict(zip(KEYS, (model, pixels, batch, name)))
            if any(all(old[key] == row[key] for key in KEYS) for old in rows):
                continue
            if args.minutes is not None and time.monotonic() - began > 60 * args.minutes:
                print("the minutes are over; the same command goes on from here")
                break
            if last not in (None, (model, pixels, batch)):
                torch.compiler.reset()  # or other sizes would be compiled as sizes that vary
            last = (model, pixels, batch)
            rows.append(timed(row, args.overrides, world, args.rounds))
            print(json.dumps(rows[-1]), flush=True)
            if args.out:
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    print(f"\n{about['hardware']}, torch {torch.__version__}, {args.rounds} rounds\n")
    print(table(rows))


if __name__ == "__main__":
    main()
