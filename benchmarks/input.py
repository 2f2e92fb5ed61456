"""How fast photographs are decoded: ours beside torchvision's ImageFolder and DataLoader.

All draw random windows of whole photographs, scale them to a square of bytes and put them into
batches. Every round times all of them, one after the other, so that a busy machine slows all; what
counts is the median over the rounds of the ratio to torchvision's in the same round.

- ``ours``: folders, every JPEG decoded in full: the same work as torchvision's
- ``ours, draft``: JPEGs decoded smaller where that is enough, the default in training
- ``ours, zip`` and ``ours, tar``: the same files in one archive, decoded in full
- ``ours, threads``: the same function in threads of this process
- ``torchvision``: RandomResizedCrop, PILToTensor
- ``torchvision, floats``: RandomResizedCrop, flip, ToTensor, Normalize, as in most scripts; ours
  flips and normalises on the device

    python benchmarks/input.py data/imagenette --large 1500 --out results/input_cpu.json

A core's images a second are images by seconds of processor time, over all processes. Their start is
included in both. Needs torchvision. ``--large N`` makes N photographs of 500 × 375 out of those
given, much like ImageNet's, and N/10 of 2000 × 1500, as cameras take them, and times them too.
``--table FILE`` prints what is in a file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image

from crsam.lab.data import decoder
from crsam.lab.data.decoded import Decoded
from crsam.lab.data.decoder import View
from crsam.lab.data.images import Part
from crsam.lab.data.listing import Listing, list_archives, list_folder
from crsam.lab.experiment.environment import environment

BATCH = 64
LARGE, HUGE = (500, 375), (2000, 1500)
GRAIN = 9
"""Noise of an enlarged photograph, in grey levels: with it, JPEGs are about ImageNet's 110 kB."""

Contestant = Callable[[int], Iterator[torch.Tensor]]
"""Given the number of workers: the batches of all images."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path, help="a folder of folders of photographs")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=1500, help="how many are decoded at a time")
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="`photos` is a file that was written")
    given = parser.parse_args()
    if given.table:
        print(*table(json.loads(given.photos.read_text())["sets"]), sep="\n")
        return
    with tempfile.TemporaryDirectory() as place:
        sets = {"as given": linked(given.photos, Path(place) / "given", given.images)}
        if given.large:
            for size, count in ((LARGE, given.large), (HUGE, given.large // 10)):
                name = f"{size[0]} x {size[1]}"
                sets[name] = enlarged(given.photos, Path(place) / name, count, size)
        found = {
            name: measured(folder, given.size, given.workers, given.rounds)
            for name, folder in sets.items()
        }
    print(*table(found), sep="\n")
    if given.out:
        content = {
            **environment(torch.device("cpu")),
            "pillow": PIL.__version__,
            "torchvision": __import__("torchvision").__version__,
            "processor": platform.processor() or platform.machine(),
            "command": " ".join(["python", *sys.argv]),
            "batch": BATCH,
            "size": given.size,
            "rounds": given.rounds,
            "sets": found,
        }
        given.out.write_text(json.dumps(content, indent=1) + "\n")


def measured(folder: Path, size: int, workers: list[int], rounds: int) -> dict[str, Any]:
    """For each contestant and number of workers: images a second, in all and by core, and both as
    multiples of torchvision's in the same round.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    entrants = contestants(folder, size)
    speeds: dict[str, list[tuple[float, float]]] = {}
    for i in range(rounds):
        for count in workers:
            for name, batches in entrants.items():
                speeds.setdefault(f"{name}, {count}", []).append(timed(batches, count))
        print(f"{folder.name}: round {i + 1} of {rounds}", flush=True)
    rows: dict[str, Any] = {}
    for key, all_rounds in speeds.items():
        theirs = speeds[f"torchvision, {key.rsplit(', ', 1)[1]}"]
        rows[key] = {
            "images_per_second": round(statistics.median(s for s, _ in all_rounds), 1),
            "images_per_second_and_core": round(statistics.median(c for _, c in all_rounds), 1),
            "to_torchvision": median_ratio(all_rounds, theirs, 0),
            "to_torchvision_per_core": median_ratio(all_rounds, theirs, 1),
        }
    size_of_all = sum(path.stat().st_size for path in files)
    return {"images": len(files), "mean_kilobytes": size_of_all / len(files) / 1e3, "rows": rows}


def median_ratio(
    ours: list[tuple[float, float]], theirs: list[tuple[float, float]], i: int
) -> float:
    return round(statistics.median(a[i] / b[i] for a, b in zip(ours, theirs)), 3)


def timed(batches: Callable[[int], Iterator[torch.Tensor]], workers: int) -> tuple[float, float]:
    """Images a second, and images a second of processor time; the start of processes included."""
    used, began = processor_seconds(), time.perf_counter()
    total = sum(len(batch) for batch in batches(workers))
    return total / (time.perf_counter() - began), total / (processor_seconds() - used)


def processor_seconds() -> float:
    """Of this process and of those that it has seen the end of."""
    every = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in every)


def contestants(folder: Path, size: int) -> dict[str, Contestant]:
    plain = View(size, size, least=0.08, draft=False)
    listing = list_folder(folder)
    archives = [packed(folder, kind) for kind in ("zip", "tar")]
    return {
        "torchvision": partial(theirs, folder, size, False),
        "ours": partial(ours, listing, plain),
        "ours, draft": partial(ours, listing, plain._replace(draft=True)),
        "ours, zip": partial(ours, list_archives(archives[:1]), plain),
        "ours, tar": partial(ours, list_archives(archives[1:]), plain),
        "ours, threads": partial(threads, listing, plain),
        "torchvision, floats": partial(theirs, folder, size, True),
    }


def ours(listing: Listing, view: View, workers: int) -> Iterator[torch.Tensor]:
    images = Decoded(listing, listing.labels, view, workers=workers)
    for shown in images.stream(parts(len(images)), BATCH):
        yield shown.pixels


def parts(count: int) -> list[Part]:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return [Part(rows, rows) for rows in torch.split(order, BATCH)]


def threads(listing: Listing, view: View, workers: int) -> Iterator[torch.Tensor]:
    with ThreadPoolExecutor(workers) as pool:
        waiting = [
            [
                pool.submit(decoder.pixels, source, view, row)
                for source, row in zip(listing.sources(part.rows), part.rows.tolist())
            ]
            for part in parts(len(listing))
        ]
        for batch in waiting:
            joined = bytearray(b"".join(one.result() for one in batch))
            pixels = torch.frombuffer(joined, dtype=torch.uint8)
            pixels = pixels.view(-1, view.height, view.width, 3)
            yield pixels.permute(0, 3, 1, 2).contiguous()


def theirs(folder: Path, size: int, floats: bool, workers: int) -> Iterator[torch.Tensor]:
    from torchvision import datasets, transforms

    crop = transforms.RandomResizedCrop(size)
    rest = [transforms.PILToTensor()]
    if floats:
        scale = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        rest = [transforms.RandomHorizontalFlip(), transforms.ToTensor(), scale]
    images = datasets.ImageFolder(str(folder), transforms.Compose([crop, *rest]))
    loader = torch.utils.data.DataLoader(
        images, BATCH, shuffle=True, num_workers=workers, prefetch_factor=4
    )
    for pixels, _ in loader:
        yield pixels


def linked(source: Path, target: Path, count: int) -> Path:
    """So many of the photographs, of all classes alike."""
    for path in spread(source, count):
        there = target / path.parent.name / path.name
        there.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, there) if same_disk(path, target) else there.write_bytes(path.read_bytes())
    return target


def same_disk(a: Path, b: Path) -> bool:
    return a.stat().st_dev == b.stat().st_dev


def spread(source: Path, count: int) -> list[Path]:
    every = sorted(path for path in source.glob("*/*") if path.is_file())
    return every[:: max(1, len(every) // count)][:count]


def enlarged(source: Path, target: Path, count: int, size: tuple[int, int]) -> Path:
    """Photographs of another size, and of about as many bytes a pixel as others of that size."""
    draw = np.random.default_rng(0)
    for path in spread(source, count):
        image = Image.open(path).convert("RGB").resize(size, Image.Resampling.BICUBIC)
        grain = draw.normal(0, GRAIN, (size[1], size[0], 1))
        pixels = (np.asarray(image) + grain).clip(0, 255).astype(np.uint8)
        there = target / path.parent.name / path.name
        there.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(there, "JPEG", quality=92)
    return target


def packed(folder: Path, kind: str) -> Path:
    """All of a folder in one archive beside it."""
    target = folder.parent / f"{folder.name}.{kind}"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if kind == "zip":
        with zipfile.ZipFile(target, "w") as archive:
            for path in files:
                archive.write(path, path.relative_to(folder))
    else:
        with tarfile.open(target, "w") as tar:
            for path in files:
                tar.add(path, path.relative_to(folder))
    return target


COLUMNS = ("ours", "ours, zip", "ours, tar", "ours, draft", "ours, threads", "torchvision, floats")


def table(sets: dict[str, dict[str, Any]]) -> list[str]:
    """Images a second and core, and their ratio to torchvision's in the same round."""
    lines = [f"| photographs | processes | torchvision | {' | '.join(COLUMNS)} |"]
    lines.append("|---" * (3 + len(COLUMNS)) + "|")
    for name, found in sets.items():
        rows = found["rows"]
        for count in sorted({key.rsplit(", ", 1)[1] for key in rows}, key=int):
            theirs = rows[f"torchvision, {count}"]["images_per_second_and_core"]
            cells = [f"{name}, {found['mean_kilobytes']:.0f} kB", count, f"{theirs:,.0f}"]
            for column in COLUMNS:
                row = rows[f"{column}, {count}"]
                speed, ratio = row["images_per_second_and_core"], row["to_torchvision_per_core"]
                cells.append(f"{speed:,.0f} ({ratio:.2f})")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
