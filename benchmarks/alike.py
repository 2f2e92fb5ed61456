"""Are a set's test images of the same kind as its training images?

How sharp both are: the mean square of second differences along rows, of pixels between 0 and 1. And
how well a small net does on them: trained on nine tenths of the training images, it is judged on
the other tenth and on the test images.

    python benchmarks/alike.py tiny_imagenet/resnet18 data.root=data/tiny-imagenet-32 \
        model.width=8 train.epochs=6 --seeds 2 --out results/alike_tiny_imagenet_cpu.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from crsam.lab.data import Images
from crsam.lab.experiment.environment import environment
from crsam.lab.experiment.recipe import flat
from crsam.lab.experiment.run import run
from crsam.lab.experiment.splits import build_data
from crsam.lab.experiment.toml import as_tables, load_recipe

SHOWN = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss")


def sharpness(images: Images) -> float:
    parts = torch.split(torch.arange(len(images)), 1000)
    total = sum(
        float((images.fetch(part).float() / 255).diff(n=2, dim=-1).square().mean()) * len(part)
        for part in parts
    )
    return total / len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    recipe = load_recipe(args.recipe, ["method=sgd", "data.validation=0.1", *args.overrides])
    splits = build_data(recipe, torch.device("cpu"))
    sharp = {name: sharpness(getattr(splits, name)) for name in ("train", "validation", "test")}
    runs = []
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            result = run(replace(recipe, seed=seed), folder)
        runs.append({"seed": seed, **{key: result[key] for key in SHOWN}})
    found = {"recipe": flat(as_tables(recipe)), "sharpness": sharp, "runs": runs}
    print(json.dumps({"sharpness": sharp, "runs": runs}, indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({**environment("cpu"), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
