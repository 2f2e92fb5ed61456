"""Tiny ImageNet in each of its layouts: the very same images and labels."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crsam.errors import UserError
from crsam.lab.data import load, tiny_imagenet

CLASSES = ("n01", "n02", "n03")


def write_folders(root: Path, size: int = 32) -> Path:
    draw = np.random.default_rng(0)
    for split, each in (("train", 4), ("val", 2)):
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
            for i in range(each):
                pixels = draw.integers(256, size=(size, size, 3)).astype(np.uint8)
                stem = f"{name}_{i}" if split == "train" else f"val_{name}{i}"
                Image.fromarray(pixels).save(root / split / name / f"{stem}.JPEG")
    return root


def as_official(root: Path, target: Path) -> Path:
    """Training images one folder deeper, validation images in one, with a file of their labels."""
    lines = []
    (target / "val/images").mkdir(parents=True)
    (target / "test/images").mkdir(parents=True)
    for file in sorted((root / "train").rglob("*.JPEG")):
        folder = target / "train" / file.parent.name / "images"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)
    for file in sorted((root / "val").rglob("*.JPEG")):
        shutil.copy(file, target / "val/images")
        lines.append(f"{file.name}\t{file.parent.name}\t0\t0\t62\t62\n")
    shutil.copy(file, target / "test/images/test_0.JPEG")
    (target / "val/val_annotations.txt").write_text("".join(lines))
    return target


def zipped(folder: Path, target: Path, *names: str, above: str = "") -> Path:
    target.mkdir()
    for name in names:
        with zipfile.ZipFile(target / f"{name}.zip", "w") as archive:
            for file in sorted((folder / name if name != "all" else folder).rglob("*")):
                if file.is_file():
                    archive.write(file, above + file.relative_to(folder).as_posix())
    return target


def test_all_layouts_give_the_same_set(tmp_path: Path) -> None:
    folders = write_folders(tmp_path / "folders")
    official = as_official(folders, tmp_path / "official")
    roots = [
        folders,
        official,
        zipped(folders, tmp_path / "zips", "train", "val"),
        zipped(official, tmp_path / "zip", "all", above="tiny-imagenet-200/"),
    ]
    first, *others = (load("tiny_imagenet", root) for root in roots)
    assert first.train.shape == (3, 32, 32)
    assert first.classes == CLASSES
    assert first.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    every = torch.arange(12)
    for other in others:
        assert other.classes == first.classes
        assert torch.equal(other.train.labels, first.train.labels)
        assert torch.equal(other.train.fetch(every), first.train.fetch(every))
        order = other.test.labels.argsort(stable=True)
        assert torch.equal(other.test.labels[order], first.test.labels)
        assert torch.equal(other.test.fetch(order), first.test.fetch(every[:6]))


def test_larger_images_are_brought_to_32_pixels_unless_told_otherwise(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "large", size=64)
    assert load("tiny_imagenet", root).test.shape == (3, 32, 32)
    assert load("tiny_imagenet", root, image_size=64).test.shape == (3, 64, 64)


def test_what_is_missing_or_wrong_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must hold train/ and val/, or zip files"):
        load("tiny_imagenet", tmp_path / "nowhere")
    folders = write_folders(tmp_path / "folders")
    with pytest.raises(UserError, match="no images of val/"):
        load("tiny_imagenet", zipped(folders, tmp_path / "half", "train"))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "train.zip").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"train\.zip cannot be read"):
        load("tiny_imagenet", broken)
    official = as_official(folders, tmp_path / "official")
    (official / "val/val_annotations.txt").write_text("val_n010.JPEG\tn01\t0\n")
    with pytest.raises(UserError, match=r"val_n011\.JPEG has no line in val_annotations"):
        load("tiny_imagenet", official)
    shutil.copytree(folders / "val/n03", folders / "val/n04")
    with pytest.raises(UserError, match="n04"):
        load("tiny_imagenet", zipped(folders, tmp_path / "other", "train", "val"))


def test_labels_that_unpack_to_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_imagenet, "LARGEST_NOTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("val/val_annotations.txt", bytes(2 << 20))
    with pytest.raises(UserError, match=r"all\.zip: val/val_annotations\.txt has more than 1 MiB"):
        load("tiny_imagenet", tmp_path)
