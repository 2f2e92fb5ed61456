"""What does it cost to verify the checksums of a checkpoint? ResNet-18 with momentum, on a CPU.

Verifying 89 MB takes 18 ms of processor time: 17 ms without it, 35 ms with it, beside 95 ms for a
save, which verifies nothing (medians of 25 rounds, 2 cores of an AMD EPYC, torch 2.13). The machine
was busy (load 10), so times on the clock say little: repeat the measurement on an idle one.

Run it: ``python benchmarks/checkpoint_cost.py``. A load is `crsam.lab.train.checkpoint.load`, from
the page cache. "restored" is what `crsam evaluate` does before its first image: data, model, load.
All are measured one after another in each round. A second core computes most checksums while torch
reads, so both the time on the clock and the time of all processors are shown.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from crsam.lab import _torch_files
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.restore import restored
from crsam.lab.experiment.toml import load_recipe, to_toml
from crsam.lab.models import make_model
from crsam.lab.train import checkpoint
from crsam.lab.train.distributed import World

ROUNDS = 15


def write_run(folder: Path, recipe: Recipe) -> dict[str, object]:
    """Writes a run's folder with a checkpoint, and returns the state in it."""
    torch.manual_seed(0)
    model = make_model("resnet18", 10, in_channels=1)  # of digits
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    training = {"step": 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state: dict[str, object] = {"training": {**training, "average": None}}
    (folder / "recipe.toml").write_text(to_toml(recipe))
    checkpoint.save(folder / "checkpoint.pt", state)
    return state


def unchecked() -> contextlib.AbstractContextManager[object]:
    """Within, a file is read as it was before its checksums were verified."""

    def read(path: Path, device: torch.device | str = "cpu") -> object:
        return torch.load(path, map_location=device, weights_only=True)

    return mock.patch.object(_torch_files, "read", read)


def forget(file: Path) -> None:
    """Drops a file from the page cache. It is then read from the disk, as after a restart."""
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(file: Path, ways: dict[str, Callable[[], object]]) -> dict[str, tuple[float, float]]:
    """Returns the median milliseconds of each way: on the clock, and of all processors."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            if name.startswith("from the disk"):
                forget(file)
            begun, used = time.perf_counter(), time.process_time()
            way()
            now = time.perf_counter() - begun, time.process_time() - used
            found[name].append((1e3 * now[0], 1e3 * now[1]))
    return {
        name: (statistics.median(c for c, _ in each), statistics.median(p for _, p in each))
        for name, each in found.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = load_recipe("digits", ['model={name="resnet18"}'])
        state = write_run(folder, recipe)
        place = RunFolder(folder)
        file, before = place.checkpoint_file, place.previous_file

        def without(way: Callable[[], object]) -> Callable[[], object]:
            def read() -> object:
                with unchecked():
                    return way()

            return read

        def load() -> object:
            return checkpoint.load(file)

        def restore() -> object:
            return restored(folder, World())

        found = measure(
            file,
            {
                "save, one checkpoint kept": lambda: checkpoint.save(file, state),
                "save, two kept": lambda: checkpoint.save(file, state, keep=before),
                "load, unchecked": without(load),
                "load, checked": load,
                "from the disk, unchecked": without(load),
                "from the disk, checked": load,
                "restored, unchecked": without(restore),
                "restored, checked": restore,
            },
        )
        load_now = os.getloadavg()[0]
        print(f"{file.stat().st_size / 1e6:.0f} MB, {os.cpu_count()} cores, load {load_now:.1f}")
        for name, (clock, used) in found.items():
            print(f"{name:28}{clock:8.1f} ms{used:8.1f} ms of processors")


if __name__ == "__main__":
    main()
