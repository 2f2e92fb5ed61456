"""Corrupted copies: their layouts, and that they are the same however they came about."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crsam.errors import UserError
from crsam.lab.data.cifar import CIFAR10, CIFAR100, read_cifar
from crsam.lab.robustness import copy_folder, corrupt
from crsam.lab.robustness.constants import NAMES, SEVERITIES
from crsam.lab.robustness.copy import corrupt_set
from crsam.lab.robustness.layouts import find_arrays, find_corrupted
from crsam.lab.robustness.settings import Settings
from lab.data.cifar_files import write_cifar
from lab.robustness.photos import photo

SOME = ["gaussian_noise", "contrast"]


def photos(root: Path, split: str = "val", side: int = 40) -> Path:
    """Two classes of three photos, two kinds of files."""
    for c, label in enumerate(("cat", "dog")):
        folder = root / split / label
        folder.mkdir(parents=True)
        for k in range(3):
            file = folder / (f"{k}.png" if k else f"{k}.JPEG")
            Image.fromarray(photo(10 * c + k, side)).save(file)
    return root


def content(root: Path) -> dict[str, bytes]:
    files = [file for file in root.rglob("*") if file.is_file()]
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


def test_a_folder_is_copied_in_the_layout_of_imagenet_c(tmp_path: Path) -> None:
    root, dest = photos(tmp_path / "photos"), tmp_path / "c"
    (root / "train/cat").mkdir(parents=True)
    done = corrupt_set(root, dest, Settings(format="png"), workers=1)
    assert (done.written, done.there, done.unreadable) == (15 * 5 * 6, 0, ())
    found = find_corrupted(dest)
    assert found.missing == ()
    assert set(found.cells) == {(name, severity) for name in NAMES for severity in SEVERITIES}
    for files in found.cells.values():
        assert {label: len(paths) for label, paths in files.items()} == {"cat": 3, "dog": 3}
    with Image.open(root / "val/dog/1.png") as image, Image.open(dest / "fog/2/dog/1.png") as fog:
        expected = corrupt(np.asarray(image), "fog", 2, key="dog/1.png")
        assert np.array_equal(np.asarray(fog), expected)
    plain = corrupt_set(
        root / "val", tmp_path / "plain", Settings(format="png"), names=SOME, workers=1
    )
    assert plain.written == 2 * 5 * 6
    copied = content(tmp_path / "plain")
    del copied["corrupt.json"]  # it says of what it is a copy
    assert copied.items() <= content(dest).items()


def test_folders_of_classes_alone_are_copied_with_a_word_of_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = photos(tmp_path / "photos")
    corrupt_set(root / "val", tmp_path / "a", names=SOME, severities=[1], workers=1)
    assert "trains on" not in capsys.readouterr().err
    (root / "val").rename(tmp_path / "mine")
    corrupt_set(tmp_path / "mine", tmp_path / "b", names=SOME, severities=[1], workers=1)
    assert "mine has no folder val or test: all of its images are copied" in capsys.readouterr().err


def test_jpeg_keeps_names_and_is_of_quality_85(tmp_path: Path) -> None:
    root, dest = photos(tmp_path / "photos"), tmp_path / "c"
    corrupt_set(root, dest, names=SOME, severities=[1], workers=1)
    assert sorted(os.listdir(dest / "contrast/1/cat")) == ["0.JPEG", "1.jpg", "2.jpg"]
    corrupt_set(root, tmp_path / "low", Settings(quality=20), names=SOME, severities=[1])
    with (
        Image.open(dest / "contrast/1/cat/1.jpg") as fine,
        Image.open(tmp_path / "low/contrast/1/cat/1.jpg") as coarse,
    ):
        assert fine.format == "JPEG"
        # Standard tables at quality 85: 16 becomes (16 · 30 + 50) / 100.
        assert fine.quantization[0][0] == 5
        assert coarse.quantization[0][0] == 40


def test_a_crop_is_the_middle_of_eight_sevenths(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    (root / "val/wide").mkdir(parents=True)
    stripes = np.zeros((64, 128, 3), np.uint8)
    stripes[:, 40:88] = 255
    Image.fromarray(stripes).save(root / "val/wide/0.png")
    corrupt_set(
        root, tmp_path / "c", Settings(crop=28, format="png"), names=["contrast"], severities=[1]
    )
    with Image.open(tmp_path / "c/contrast/1/wide/0.png") as found:
        assert found.size == (28, 28)
        row = np.asarray(found)[14, :, 0].astype(int)
    # 128 × 64 becomes 64 × 32, of which columns 18 to 46 are left; the white ones are 20 to 44.
    assert row[:2].max() < row[3:25].min()
    assert row[26:].max() < row[3:25].min()


def test_a_copy_goes_on_where_it_was_and_workers_change_nothing(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos")
    corrupt_set(root, tmp_path / "one", names=SOME, workers=1)
    corrupt_set(root, tmp_path / "two", names=SOME, workers=2)
    whole = content(tmp_path / "one")
    assert content(tmp_path / "two") == whole
    for lost in ("contrast/3/dog/1.jpg", "gaussian_noise/5/cat/0.JPEG"):
        (tmp_path / "one" / lost).unlink()
    kept = tmp_path / "one/contrast/1/cat/1.jpg"
    kept.write_bytes(b"not touched")
    done = corrupt_set(root, tmp_path / "one", names=SOME, workers=1)
    assert (done.written, done.there) == (2, 58)
    assert kept.read_bytes() == b"not touched"
    kept.write_bytes(whole["contrast/1/cat/1.jpg"])
    assert content(tmp_path / "one") == whole
    # More images of a class are more images, not others.
    fewer = corrupt_set(root, tmp_path / "few", names=SOME, images_per_class=1, workers=1)
    assert fewer.written == 20
    corrupt_set(root, tmp_path / "few", names=SOME, workers=1)
    assert content(tmp_path / "few") == whole


def test_one_folder_holds_one_copy(tmp_path: Path) -> None:
    root, dest = photos(tmp_path / "photos"), tmp_path / "c"
    corrupt_set(root, dest, names=["contrast"], severities=[1])
    with pytest.raises(UserError, match=r"other settings \(seed 0 there, 1 here\)"):
        corrupt_set(root, dest, Settings(seed=1), names=["contrast"])
    with pytest.raises(UserError, match="not empty, and was not made by crsam corrupt"):
        corrupt_set(root, root, names=["contrast"])
    with pytest.raises(UserError, match=r"other settings \(source '.*photos' there, '.*others'"):
        corrupt_set(photos(tmp_path / "others"), dest, names=["contrast"], severities=[1])
    assert json.loads((dest / "corrupt.json").read_text())["constants"] == "imagenet"


def test_a_copy_that_was_broken_off_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, dest = photos(tmp_path / "photos"), tmp_path / "c"
    real, taken = copy_folder._corrupt_file, []

    def until_the_fifth(*args: Any, **kwargs: Any) -> Any:
        taken.append(args)
        if len(taken) == 5:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(copy_folder, "_corrupt_file", until_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        corrupt_set(root, dest, names=SOME, workers=1)
    with pytest.raises(UserError, match="broken off at 4 of 6 images"):
        find_corrupted(dest)
    corrupt_set(root, dest, names=SOME, workers=1)
    assert find_corrupted(dest).num_images == 6


def test_what_is_no_image_is_named_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = photos(tmp_path / "photos")
    (root / "val/cat/bad.png").write_text("nothing")
    (root / "val/cat/notes.txt").write_text("no image by its name")
    Image.fromarray(np.full((8, 8), 30000, np.uint16)).save(root / "val/cat/deep.png")
    Image.new("RGB", (1, 50)).save(root / "val/cat/thin.png")
    done = corrupt_set(root, tmp_path / "c", names=["contrast"], severities=[1, 2])
    assert (done.written, done.there, len(done.unreadable)) == (12, 0, 3)
    said = capsys.readouterr().err
    assert "1 file is left out, such as cat/notes.txt: images end in jpg" in said
    assert "cat/bad.png cannot be read as an image" in said
    assert "cat/deep.png cannot be read as an image: more than 8 bits" in said
    assert "cat/thin.png is too small, 1 × 50 pixels" in said
    assert find_corrupted(tmp_path / "c").num_images == 6


def test_bad_requests_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    root, dest = photos(tmp_path / "photos"), tmp_path / "c"
    with pytest.raises(UserError, match="unknown corruption 'frogs'"):
        corrupt_set(root, dest, names=["frogs"])
    with pytest.raises(UserError, match="from 1 to 5, got 0"):
        corrupt_set(root, dest, severities=[0])
    with pytest.raises(UserError, match="there is no folder"):
        corrupt_set(tmp_path / "nowhere", dest)
    with pytest.raises(UserError, match="holds no photographs of frost"):
        corrupt_set(root, dest, Settings(frost=str(root)))
    with pytest.raises(UserError, match=r"holds no images: they are looked for in .*/CLASS"):
        corrupt_set(root / "val/cat", dest)
    Image.fromarray(photo()).save(root / "val/cat/1.jpg")
    with pytest.raises(UserError, match=r"1\.png and .*1\.jpg would both be 1\.jpg"):
        corrupt_set(root, dest)
    assert not dest.exists()


def test_frost_may_be_photographs(tmp_path: Path) -> None:
    root, frost = photos(tmp_path / "photos"), tmp_path / "frost"
    frost.mkdir()
    with pytest.raises(UserError, match="holds no photographs of frost"):
        corrupt_set(root, tmp_path / "none", Settings(frost=str(frost)), names=["frost"])
    Image.new("RGB", (90, 80), (200, 100, 0)).save(frost / "orange.png")
    settings = Settings(frost=str(frost), format="png")
    corrupt_set(root, tmp_path / "c", settings, names=["frost"], severities=[3])
    with (
        Image.open(root / "val/cat/1.png") as image,
        Image.open(tmp_path / "c/frost/3/cat/1.png") as found,
    ):
        expected = np.clip(0.7 * np.asarray(image) + 0.7 * np.array([200, 100, 0]), 0, 255)
        assert np.abs(np.asarray(found) - expected).max() <= 1


@pytest.mark.parametrize(("layout", "num_classes"), [(CIFAR10, 10), (CIFAR100, 100)])
def test_cifar_is_copied_in_the_layout_of_cifar_10_c(
    tmp_path: Path, layout: object, num_classes: int
) -> None:
    layout = {10: CIFAR10, 100: CIFAR100}[num_classes]
    write_cifar(tmp_path / "data" / layout.archive.folder, layout, each=6)
    dest = tmp_path / "c"
    done = corrupt_set(tmp_path / "data", dest, names=SOME, workers=1)
    assert done.written == 2 * 5 * 6
    test = read_cifar(layout, tmp_path / "data").test
    found = find_arrays(dest)
    assert found.labels.tolist() == test.labels.tolist()
    assert set(found.missing) == set(NAMES) - set(SOME)
    original = test.fetch(test.labels.new_tensor([4]))[0].permute(1, 2, 0).numpy()
    for severity in SEVERITIES:
        expected = corrupt(original, "contrast", severity, key="4", constants="cifar")
        assert np.array_equal(found.cells["contrast", severity][4], expected)
    stored = np.load(dest / "contrast.npy")
    assert (stored.shape, stored.dtype) == ((30, 32, 32, 3), np.uint8)
    assert np.load(dest / "labels.npy").dtype == np.uint8
    again = corrupt_set(tmp_path / "data", dest, names=[*SOME, "fog"], workers=1)
    assert (again.written, again.there) == (30, 60)
    with pytest.raises(UserError, match="hold all five severities"):
        corrupt_set(tmp_path / "data", dest, severities=[1, 2])


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``crsam corrupt`` at work on large photos, with two workers, into ``tmp_path/c``."""
    root, dest = photos(tmp_path / "photos", side=500), tmp_path / "c"
    words = ["corrupt", str(root), str(dest), "--workers", "2"]
    words += ["--corruptions", "gaussian_noise,zoom_blur"]
    command = [sys.executable, "-m", "crsam", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not list(dest.glob("gaussian_noise/1/*/*.jpg")):
            time.sleep(0.02)
            assert process.poll() is None
        yield process
        process.kill()


def test_the_command_stops_cleanly_and_goes_on(
    tmp_path: Path, started: subprocess.Popen[str]
) -> None:
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130, said
    assert "the same command goes on from here" in said
    assert "Traceback" not in said
    root, dest = tmp_path / "photos", tmp_path / "c"
    again = corrupt_set(root, dest, names=["gaussian_noise"], workers=1)
    assert again.there > 0
    corrupt_set(root, tmp_path / "at_once", names=["gaussian_noise"], workers=1)
    assert content(tmp_path / "at_once").items() <= content(dest).items()
    assert not [file for file in dest.rglob(".*") if file.is_file()]


def test_workers_end_with_the_process_that_started_them(started: subprocess.Popen[str]) -> None:
    workers = _children(started.pid)
    assert workers
    started.kill()
    started.wait()
    for _ in range(200):
        if not any(map(_alive, workers)):
            return
        time.sleep(0.05)
    pytest.fail("workers go on without their parent")


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
