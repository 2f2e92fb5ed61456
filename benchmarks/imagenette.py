"""ResNet-50 and ViT-S/32 on Imagenette: SGD or AdamW, SAM, R-SAM and CR-SAM, two seeds each.

Two studies that come with the package, one after the other in one process: equal epochs, one ρ,
clean accuracy after the last epoch. Where the minutes are over, or at Ctrl-C, the same command
goes on. Every run's checkpoint stays in its folder, to be evaluated on corrupted images.

    PYTHONPATH=src python benchmarks/imagenette.py --data data/imagenette-160 --minutes 9.5
    PYTHONPATH=src python benchmarks/imagenette.py --data … train.epochs=20    # any key of a recipe
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from crsam.experiment.fair.conduct import conduct
from crsam.experiment.fair.file import load_study
from crsam.experiment.fair.show import show_verdict
from crsam.train.distributed import join

STUDIES = ("imagenette_resnet50", "imagenette_vit_s32")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of both studies")
    parser.add_argument("--data", default="data/imagenette-160", help="holds train/ and val/")
    parser.add_argument("--study", action="append", choices=STUDIES, help="only this one")
    parser.add_argument("--out", type=Path, default=Path("runs/studies"), help="for the runs")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="for small JSON files"
    )
    parser.add_argument("--minutes", type=float, help="of both together")
    parser.add_argument("--device", default="auto")
    args = parser.parse_intermixed_args()
    began, done = time.monotonic(), []
    args.results.mkdir(parents=True, exist_ok=True)
    with join(args.device) as world:
        for name in args.study or STUDIES:
            study = load_study(name, [f"data.root={args.data}", *args.overrides])
            spent = (time.monotonic() - began) / 60
            left = None if args.minutes is None else max(0.0, args.minutes - spent)
            summary = args.results / f"{name}.json"
            done.append(conduct(study, args.out / name, world, minutes=left, summary=summary))
    for progress in done:
        print(f"\n{progress.study.name}, {progress.study.recipe.train.epochs} epochs")
        show_verdict(progress)
    print("\nModels to evaluate on other images:")
    for progress in done:
        for job in progress.of("final"):
            if job.result is not None:
                print(args.out / progress.study.name / job.place)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes; results are in {args.results}")


if __name__ == "__main__":
    main()
