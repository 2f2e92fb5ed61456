"""Runs on photographs that are decoded as they go: on any number of processes, stopped, resumed."""

from __future__ import annotations

import json
import shutil
from itertools import chain
from pathlib import Path

import pytest
import torch

from crsam.errors import UserError
from crsam.lab.data.augment import Flip, Inception
from crsam.lab.data.decoded import Decoded
from crsam.lab.data.images import Held
from crsam.lab.experiment.build import build
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.run import run
from crsam.lab.experiment.splits import loaded
from crsam.lab.train.distributed import World
from lab.data.photos import write_photos
from lab.experiment.programs.photos import recipe
from lab.experiment.test_ranks import torchrun

HERE = Path(__file__).parent
NUM_IMAGES, PER_EPOCH, STOP = 36, 6, 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), train=NUM_IMAGES // 3)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["training"]["model"]


def trained(root: Path, folder: Path, log: Path, ranks: int, stop: int = 0) -> list[list[int]]:
    """The images of each step, over all processes, in the order of their shares."""
    log.mkdir()
    words = [str(HERE / "programs/photos.py"), str(root), str(folder), str(log), str(stop)]
    ended = torchrun(*words, num=ranks)
    assert ended.returncode == 0, ended.stderr
    each = [json.loads((log / f"{rank}.json").read_text()) for rank in range(ranks)]
    return [[*chain(*parts)] for parts in zip(*each, strict=True)]


@pytest.fixture(scope="module")
def undisturbed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    run(recipe(root), folder, lines=False)
    return folder


@pytest.fixture(scope="module")
def stopped(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A run on two processes that was stopped within its first epoch."""
    place = tmp_path_factory.mktemp("stopped")
    return place / "run", trained(root, place / "run", place / "log", ranks=2, stop=STOP)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_on_two_processes_goes_on_on_another_number(
    ranks: int,
    root: Path,
    undisturbed: Path,
    stopped: tuple[Path, list[list[int]]],
    tmp_path: Path,
) -> None:
    before, first = stopped
    assert len(first) == STOP
    folder = shutil.copytree(before, tmp_path / "run")
    steps = first + trained(root, folder, tmp_path / "log", ranks)
    assert len(steps) == 2 * PER_EPOCH
    for epoch in range(2):
        images = chain(*steps[epoch * PER_EPOCH : (epoch + 1) * PER_EPOCH])
        assert sorted(images) == list(range(NUM_IMAGES))
    ours, theirs = RunFolder(folder).metrics(), RunFolder(undisturbed).metrics()
    assert [line["kind"] for line in ours] == [line["kind"] for line in theirs]
    for a, b in zip(ours, theirs):
        numbers = {k: v for k, v in b.items() if k != "kind"}
        assert {k: a[k] for k in numbers} == pytest.approx(numbers, abs=1e-9)
    for name, value in weights(undisturbed).items():
        torch.testing.assert_close(weights(folder)[name], value, rtol=0, atol=1e-9)


def test_another_number_of_workers_is_no_other_run(root: Path, undisturbed: Path) -> None:
    done = run(recipe(root, "data.workers=0"), undisturbed, lines=False)
    assert done["steps"] == 2 * PER_EPOCH
    with pytest.raises(UserError, match=r"another recipe \(data.draft"):
        run(recipe(root, "data.draft=false"), undisturbed, lines=False)


def test_images_may_move_but_not_change(root: Path, undisturbed: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(root, tmp_path / "moved")
    done = run(recipe(root), undisturbed, lines=False)
    assert run(recipe(moved), undisturbed, lines=False) == done
    half = shutil.copytree(undisturbed, tmp_path / "half")
    (half / "result.json").unlink()  # then it goes on from the checkpoint
    kept = {file: file.read_bytes() for file in half.iterdir() if file.name != ".lock"}
    (moved / "train/ant/0.jpg").unlink()
    loaded.cache_clear()
    renamed = shutil.copytree(root, tmp_path / "renamed")
    for split in ("train", "val"):
        (renamed / split / "ant").rename(renamed / split / "bee")
    for folder in (undisturbed, half):
        with pytest.raises(UserError, match=r"36 train images there, 35 here"):
            run(recipe(moved), folder, lines=False)
        with pytest.raises(UserError, match=r"'ant' only there, 'bee' only here"):
            run(recipe(renamed), folder, lines=False)
        with pytest.raises(UserError, match="nowhere"):
            run(recipe(tmp_path / "nowhere"), folder, lines=False)
    assert {file: file.read_bytes() for file in kept} == kept


def test_a_run_tells_how_long_it_waited_and_what_it_could_not_read(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = shutil.copytree(root, tmp_path / "photos")
    bad = [photos / "train/ant/3.jpg", photos / "val/cat/1.jpg"]
    for path in bad:
        path.write_bytes(path.read_bytes()[:100])
    done = run(recipe(photos), tmp_path / "run", lines=False)
    told = capsys.readouterr().err
    assert [told.count(f"{path} cannot be read as an image") for path in bad] == [1, 1]
    assert "2 images could not be read; others were shown in place of them" in told
    assert done["broken_images"] == 2
    lines = [m for m in RunFolder(tmp_path / "run").metrics() if m["kind"] == "data"]
    assert [(line["epoch"], line["broken_images"]) for line in lines] == [(1, 2), (2, 2)]
    assert 0 < done["data_wait"] < 1


def test_inception_means_windows_of_whole_photographs_unless_images_are_held(root: Path) -> None:
    parts = build(recipe(root, "augment.least=0.5", "augment.flip_share=0.25"), World())
    images = parts.splits.train
    assert isinstance(images, Decoded)
    assert (images.view.least, images.view.middle) == (0.5, 0.875)
    assert parts.splits.feed.augment == Flip(0.25)
    assert isinstance(parts.splits.test, Held)
    held = build(recipe(root, "data.hold=true"), World()).splits
    assert isinstance(held.train, Held)
    assert held.feed.augment == Inception()
    basic = build(recipe(root, "augment=basic"), World()).splits
    assert isinstance(basic.train, Held)
    with pytest.raises(UserError, match=r"data\.image_size must be given"):
        build(recipe(root, "data.image_size=none"), World())


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.workers=-1", "data.workers must be at least 0, got -1"),
        ("data.middle=0", "data.middle must be above 0 and at most 1, got 0"),
        ("augment.least=2", "augment: least must be a number between 0 and 1, got 2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(override: str, words: str, root: Path) -> None:
    with pytest.raises(UserError, match=words):
        build(recipe(root, override), World())


def test_sets_that_are_not_decoded_take_no_workers() -> None:
    with pytest.raises(UserError, match="workers = 2 makes no sense for the dataset 'digits'"):
        build(recipe("data", "data.name=digits", "data.image_size=none", "augment=none",
                     "data.workers=2"), World())  # fmt: skip
