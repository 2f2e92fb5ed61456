"""Fine-tuning: a net that knows the digits 0 to 5 learns 6 to 9 from a few images of each.

    python examples/finetune_digits.py            # seconds on one core

Handwritten digits are written to two folders of images, one folder a class, as your own photos
would be. A net is trained on the first six classes; then the other four are learned from eight
images each, from drawn weights and from that net's (``init=``, a smaller learning rate for all but
the new last layer). Accuracy is on test images of the four classes, over paired seeds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits

from crsam.lab.experiment.run import run
from crsam.lab.experiment.toml import load_recipe

COMMON = ["data.image_size=8", "augment=none", "model=digits_conv", "schedule.warmup=0"]


def write_digits(folder: Path, digits: range, num_train: int) -> None:
    """``folder/train/DIGIT/*.png`` with so many images of each; the rest go to ``folder/val``."""
    raw = load_digits()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(0)).tolist()
    for digit in digits:
        rows = [i for i in order if raw.target[i] == digit]
        for num, i in enumerate(rows):
            place = folder / ("train" if num < num_train else "val") / str(digit)
            place.mkdir(parents=True, exist_ok=True)
            pixels = (raw.images[i] * (255 / 16)).astype("uint8")
            Image.fromarray(pixels).save(place / f"{i}.png")


def train(data: Path, out: Path, *words: str) -> float:
    """One run; the accuracy on the test images, in per cent."""
    recipe = load_recipe("folder", [*COMMON, f"data.root={data}", *words])
    return run(recipe, out, lines=False)["test_accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_digits(folder / "many", range(6), num_train=140)
        write_digits(folder / "few", range(6, 10), num_train=8)
        found: dict[str, list[float]] = {"drawn": [], "fine-tuned": []}
        for seed in range(args.seeds):
            size = [f"seed={seed}", f"train.epochs={args.epochs}"]
            known = folder / f"known{seed}"
            train(folder / "many", known, *size)
            few = [*size, "train.batch_size=8"]
            starts = {"drawn": [], "fine-tuned": [f"init={known}", "train.backbone_lr=0.3"]}
            for name, start in starts.items():
                found[name].append(train(folder / "few", folder / name / str(seed), *few, *start))
    print(f"\n6, 7, 8 and 9 from 8 images each, CR-SAM, {args.seeds} seeds")
    for name, accuracies in found.items():
        each = "  ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        print(f"{name:11} {statistics.mean(accuracies):5.1f} %   ({each})")


if __name__ == "__main__":
    main()
