"""Images in folders, held or decoded whenever they are fetched."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data import Held, decoded, folder, load, split, with_wrong_labels
from crsam.lab.data.decoded import Decoded
from crsam.lab.data.folder import read_folder
from crsam.lab.data.images import Images, Part


def noise(width: int = 12, height: int = 10, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(256, size=(height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def write(path: Path, image: Image.Image | None = None, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or noise()).save(path, **how)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes, photographs of several sizes, in several formats."""
    seed = 0
    for half, count in (("train", 3), ("val", 2)):
        for name in ("cat", "ant", "Bee"):
            for i, suffix in zip(range(count), ("jpg", "PNG", "JPEG")):
                seed += 1
                width, height = 12 + 5 * (seed % 4), 10 + 7 * (seed % 3)
                write(tmp_path / half / name / f"{i}.{suffix}", noise(width, height, seed))
    return tmp_path


def fetched(images: Images) -> Tensor:
    return images.fetch(torch.arange(len(images)))


def pixels_of(path: Path) -> Tensor:
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_classes_and_files_are_in_the_order_of_their_names(root: Path) -> None:
    dataset = load("folder", root, image_size=8)
    assert dataset.classes == ("Bee", "ant", "cat")
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.train.shape == dataset.test.shape == (3, 8, 8)
    lazy = read_folder(root, image_size=8, hold=False)
    assert isinstance(lazy.train, Decoded)
    assert list(lazy.train.listing.names)[:4] == [
        "Bee/0.jpg",
        "Bee/1.PNG",
        "Bee/2.JPEG",
        "ant/0.jpg",
    ]


def test_decoded_images_are_the_held_ones_byte_for_byte(root: Path) -> None:
    held, decoded = (read_folder(root, image_size=9, hold=hold) for hold in (True, False))
    for a, b in ((held.train, decoded.train), (held.test, decoded.test)):
        assert isinstance(a, Held)
        assert isinstance(b, Decoded)
        assert torch.equal(fetched(a), fetched(b))
        assert torch.equal(fetched(b), fetched(b))
        assert torch.equal(a.labels, b.labels)
        assert a.shape == b.shape
        some = torch.tensor([3, 0, 3])
        assert torch.equal(a.fetch(some), b.fetch(some))


def test_parts_and_labels_of_decoded_images_are_those_of_held_ones(root: Path) -> None:
    held, decoded = (read_folder(root, image_size=8, hold=hold).train for hold in (True, False))
    mask = torch.arange(9) % 2 == 0
    for change in (
        lambda images: images.part(torch.tensor([8, 2, 5])).part(torch.tensor([2, 0])),
        lambda images: images.part(mask).part(torch.tensor([-1])),
        lambda images: images.with_labels(torch.arange(9) + 40).part(torch.tensor([4])),
        lambda images: split(images, 1 / 3)[1],
        lambda images: with_wrong_labels(images, 0.5, 3),
        lambda images: images.to(torch.device("cpu")),
        lambda images: pickle.loads(pickle.dumps(images)),
        lambda images: images.part(torch.tensor([], dtype=torch.long)),
    ):
        a, b = change(held), change(decoded)
        assert torch.equal(fetched(a), fetched(b))
        assert torch.equal(a.labels, b.labels)
    assert decoded.to(torch.device("meta")).device.type == "meta"
    with pytest.raises(ValueError, match="9 images need labels"):
        decoded.with_labels(torch.arange(8))


def test_images_are_held_if_training_and_test_set_fit_together(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes = 15 * 3 * 8 * 8
    for limit, kind in ((num_bytes, Held), (num_bytes - 1, Decoded)):
        monkeypatch.setattr(folder, "HOLD_LIMIT", limit)
        dataset = read_folder(root, image_size=8)
        assert type(dataset.train) is type(dataset.test) is kind
    assert type(read_folder(root, image_size=8, hold=True).train) is Held


def test_more_images_than_wait_at_a_time_are_all_decoded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = fetched(read_folder(root, image_size=8).train)
    monkeypatch.setattr(decoded, "CHUNK", 2)
    assert torch.equal(fetched(read_folder(root, image_size=8).train), once)


def test_images_of_one_size_are_left_as_they_are(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / half / "x" / f"{i}.png", noise(7, 5, seed=i))
        for half in ("train", "val")
        for i in range(2)
    ]
    dataset = read_folder(tmp_path)
    assert dataset.train.shape == (3, 5, 7)
    assert torch.equal(fetched(dataset.train), torch.stack([pixels_of(p) for p in paths[:2]]))


def test_images_of_several_sizes_need_image_size(root: Path) -> None:
    message = error_of(lambda: read_folder(root))
    assert "pixels where others have" in message
    assert "give image_size" in message
    assert str(root / "train") in message


def test_images_that_are_not_held_need_image_size(root: Path) -> None:
    assert "image_size must be given" in error_of(lambda: read_folder(root, hold=False))


@pytest.mark.parametrize("image_size", [0, -1, 8.0, True])
def test_image_size_is_a_whole_number(root: Path, image_size: Any) -> None:
    assert "whole number" in error_of(lambda: read_folder(root, image_size=image_size))


def test_an_image_of_the_size_asked_for_is_not_changed(tmp_path: Path) -> None:
    paths = [write(tmp_path / half / "x" / "0.png", noise(8, 8)) for half in ("train", "val")]
    assert torch.equal(fetched(read_folder(tmp_path, image_size=8).train)[0], pixels_of(paths[0]))


@pytest.mark.parametrize("size", [(72, 24), (24, 72), (24, 24), (40, 24), (3, 5)], ids=str)
def test_the_short_side_is_scaled_and_the_middle_is_cut_out(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    paths = [write(tmp_path / half / "x" / "0.png", noise(*size)) for half in ("train", "val")]
    short = min(size)
    # Large enough for the long side, and for what is cut off it, to be whole numbers.
    side = {(3, 5): 6, (40, 24): 12}.get(size, 8)
    scaled = (size[0] * side // short, size[1] * side // short)
    whole = Image.open(paths[0]).resize(scaled, Image.Resampling.BILINEAR)
    left, top = ((length - side) // 2 for length in scaled)
    expected = np.array(whole)[top : top + side, left : left + side]
    seen = fetched(read_folder(tmp_path, image_size=side).train)[0]
    assert torch.equal(seen, torch.from_numpy(expected).permute(2, 0, 1))


def test_scaling_down_averages(tmp_path: Path) -> None:
    checkers = np.indices((64, 64)).sum(0) % 2 * 255
    for half in ("train", "val"):
        write(tmp_path / half / "x" / "0.png", Image.fromarray(checkers.astype(np.uint8)))
    seen = fetched(read_folder(tmp_path, image_size=8).train).double()
    assert (seen - 127.5).abs().max() < 8


@pytest.mark.parametrize(
    "suffix", ["jpg", "jpeg", "png", "bmp", "webp", "ppm", "gif", "JPG", "Gif"]
)
def test_every_format_is_read_in_colour(tmp_path: Path, suffix: str) -> None:
    plain = Image.new("RGB", (8, 8), (200, 100, 50))
    for half in ("train", "val"):
        write(tmp_path / half / "x" / f"0.{suffix}", plain)
    seen = fetched(read_folder(tmp_path).train)[0].double()
    assert (seen - torch.tensor([200, 100, 50]).view(3, 1, 1)).abs().max() <= 4


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_other_colour_models_become_rgb(tmp_path: Path, mode: str) -> None:
    image = noise(8, 8).convert(mode)
    for half in ("train", "val"):
        write(tmp_path / half / "x" / ("0.jpg" if mode == "CMYK" else "0.png"), image)
    assert read_folder(tmp_path).train.shape == (3, 8, 8)


def test_transparent_palettes_are_read_without_a_warning(tmp_path: Path) -> None:
    for half in ("train", "val"):
        image = noise(8, 8).convert("P")
        write(tmp_path / half / "x" / "0.png", image, transparency=bytes([0, 128, 255]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_folder(tmp_path)


def test_deep_pixels_are_left_out_rather_than_clipped(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = Image.fromarray(np.full((8, 8), 40_000, np.uint16))
    path = write(root / "train" / "ant" / "deep.png", deep)
    read_folder(root, image_size=8)
    told = capsys.readouterr().err
    assert told.startswith(f"{path} cannot be read as an image: more than 8 bits a pixel")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    raw = write(path, noise(60, 60)).read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def no_image(path: Path) -> None:
    path.write_text("<html>not found</html>")


@pytest.mark.parametrize("damage", [empty, truncated, no_image])
@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("half", ["train", "val"])
def test_an_image_that_cannot_be_read_is_named_once_and_the_next_one_shown(
    root: Path,
    damage: Callable[[Path], None],
    suffix: str,
    half: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = root / half / "ant" / f"zzz.{suffix}"  # the last of its class: the next is a cat
    damage(path)
    at = 6 if half == "train" else 4
    whole = read_folder(root, image_size=8)
    told = capsys.readouterr().err
    assert told.startswith(f"{path} cannot be read as an image: ")
    assert [len(broken) for broken in whole.broken] == [half == "train", half == "val"]
    lazy = read_folder(root, image_size=8, hold=False)
    for dataset in (whole, lazy):
        images = dataset.train if half == "train" else dataset.test
        for _ in range(2):
            (shown,) = images.stream([Part(torch.arange(len(images)))], len(images))
        assert torch.equal(shown.pixels[at], shown.pixels[at + 1])
        assert images.labels[shown.rows][at] == 2
    assert capsys.readouterr().err == told


def test_a_picture_that_unpacks_to_a_huge_one_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "train" / "ant" / "huge.png", Image.new("L", (200, 200)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    assert len(read_folder(root, image_size=8).broken[0]) == 1


def test_too_many_images_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    for half in ("train", "val"):
        for i in range(30):
            write(tmp_path / half / "x" / f"{i:02}.png")
    for i in range(0, 20, 2):
        no_image(tmp_path / "train" / "x" / f"{i:02}.png")
    assert len(read_folder(tmp_path, image_size=8).broken[0]) == 10
    no_image(tmp_path / "train" / "x" / "20.png")
    message = error_of(lambda: read_folder(tmp_path, image_size=8))
    assert message.startswith(f"11 of 30 images cannot be read, the last of them {tmp_path}")


def test_a_set_of_which_nothing_can_be_read_is_an_error(tmp_path: Path) -> None:
    for half in ("train", "val"):
        for i in range(3):
            (tmp_path / half / "x").mkdir(parents=True, exist_ok=True)
            no_image(tmp_path / half / "x" / f"{i}.jpg")
    for image_size in (8, None):
        message = error_of(lambda size=image_size: read_folder(tmp_path, image_size=size))
        assert "cannot be read as an image, nor can" in message


def test_hidden_files_and_other_files_are_ignored(root: Path) -> None:
    before = load("folder", root, image_size=8)
    for name in (
        "train/.DS_Store", "train/notes.txt", "train/ant/.0.jpg", "train/ant/._1.PNG",
        "train/ant/list.csv", "val/annotations.txt",
    ):  # fmt: skip
        (root / name).write_text("no image")
    (root / "train" / ".cache").mkdir()
    (root / "train" / "ant" / ".thumbs").mkdir()
    after = load("folder", root, image_size=8)
    assert torch.equal(fetched(after.train), fetched(before.train))
    assert after.classes == before.classes


def test_test_serves_where_there_is_no_val(root: Path) -> None:
    (root / "val").rename(root / "test")
    assert len(read_folder(root, image_size=8).test) == 6
    write(root / "val" / "ant" / "0.png")
    assert "val has no folder for the class 'Bee' and 1 more" in error_of(
        lambda: read_folder(root, image_size=8)
    )


def plain(folder: Path, classes: dict[str, int]) -> Path:
    for c, (name, count) in enumerate(classes.items()):
        for i in range(count):
            write(folder / name / f"{name}{i}.png", noise(8, 8, 100 * c + i))
    return folder


def shown(images: Images) -> set[bytes]:
    return {each.numpy().tobytes() for each in fetched(images)}


@pytest.mark.parametrize("hold", [True, False])
def test_folders_of_classes_alone_are_parted_by_the_names_of_images(
    hold: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = plain(tmp_path, {"car": 10, "train": 5, "van": 2})  # trains are a class like any other
    (root / "values.zip").write_bytes(b"")  # and this is no split
    both = read_folder(root, image_size=8, hold=hold)
    assert both.classes == ("car", "train", "van")
    assert both.train.labels.bincount().tolist() == [8, 4, 1]
    assert both.test.labels.bincount().tolist() == [2, 1, 1]
    train, test = shown(both.train), shown(both.test)
    assert (len(train), len(test), len(train & test)) == (13, 4, 0)
    names = sorted((f"car/car{i}.png" for i in range(10)), key=lambda n: zlib.crc32(n.encode()))
    assert {pixels_of(root / name).numpy().tobytes() for name in names[:2]} < test
    said = capfd.readouterr().err
    assert f"{root} is not parted into train and val: 4 of 17 images" in said
    again = read_folder(root, image_size=8, hold=hold)
    assert (shown(again.train), shown(again.test)) == (train, test)
    for i in range(10, 15):
        write(root / "car" / f"car{i}.png", noise(8, 8, i + 200))
    more = read_folder(root, image_size=8, hold=hold)
    assert len(more.test) == 5
    assert len(shown(more.test) & train) <= 1  # names decide, so few change sides


def test_labels_of_parted_folders_are_those_of_their_images(tmp_path: Path) -> None:
    root = plain(tmp_path, {"ant": 6, "bee": 4})
    for part in (read_folder(root, image_size=8).train, read_folder(root, image_size=8).test):
        for pixels, label in zip(fetched(part), part.labels):
            owner = ("ant", "bee")[label]
            assert any(torch.equal(pixels, pixels_of(p)) for p in (root / owner).iterdir())


def test_a_class_of_one_image_cannot_be_parted(tmp_path: Path) -> None:
    root = plain(tmp_path, {"ant": 6, "bee": 1})
    message = error_of(lambda: read_folder(root, image_size=8))
    assert f"{root / 'bee'} holds one image: too few to part" in message


@pytest.mark.parametrize(
    "classes",
    [
        {"train": 5, "test": 2},  # without labels
        {"train": 5, "val": 2},
        {"cat": 5, "dog": 5, "test": 3},
        {"train": 5},
        {"samples": 5},
    ],
)
def test_what_may_be_another_layout_is_not_parted(tmp_path: Path, classes: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"/CLASS"):
        read_folder(plain(tmp_path, classes), image_size=8)


def test_folders_of_images_beside_splits_are_left_alone(root: Path) -> None:
    plain(root, {"samples": 3, "screenshots": 3})
    assert read_folder(root, image_size=8).classes == ("Bee", "ant", "cat")
    (root / "val").rename(root / "test")
    assert read_folder(root, image_size=8).classes == ("Bee", "ant", "cat")
    shutil.rmtree(root / "test")
    assert f"there is no folder {root / 'val'}" in error_of(lambda: read_folder(root))
    stray = write(root / "train" / "stray.png")
    assert f"{stray} must lie in the folder of its class" in error_of(lambda: read_folder(root))


def test_packed_splits_beside_folders_of_images_are_not_overlooked(tmp_path: Path) -> None:
    plain(tmp_path, {"samples": 3, "screenshots": 3})
    (tmp_path / "train.tar.gz").write_bytes(b"")
    message = error_of(lambda: read_folder(tmp_path, image_size=8))
    assert "train.tar.gz cannot be read in parts" in message


def test_a_folder_that_may_not_be_read_is_named(root: Path, monkeypatch: Any) -> None:
    scandir = os.scandir

    def refusing(folder: Any) -> Any:
        if os.fspath(folder).endswith("cat"):
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    message = error_of(lambda: read_folder(root))
    assert f"cannot read {root / 'train' / 'cat'}: Permission denied" in message


@pytest.mark.parametrize("half", ["train", "val"])
def test_a_missing_half_is_named(root: Path, half: str) -> None:
    (root / half).rename(root / "elsewhere")
    message = error_of(lambda: read_folder(root, image_size=8))
    assert f"there is no folder {root / half}" in message
    assert (f"or from {root}/CLASS, two classes or more" in message) == (half == "train")


@pytest.mark.parametrize(("half", "other"), [("train", "val"), ("val", "train")])
def test_a_class_that_only_one_half_has_is_named(root: Path, half: str, other: str) -> None:
    write(root / half / "dog" / "0.png")
    message = error_of(lambda: read_folder(root, image_size=8))
    assert f"{root / other} has no folder for the class 'dog' of {root / half}" in message


def test_a_class_without_images_is_named(root: Path) -> None:
    for half in ("train", "val"):
        (root / half / "dog").mkdir()
    assert f"{root / 'train' / 'dog'} holds no images" in error_of(lambda: read_folder(root))


def test_folders_without_classes_are_named(tmp_path: Path) -> None:
    for half in ("train", "val"):
        (tmp_path / half).mkdir()
    assert f"{tmp_path / 'train'} has no folders of classes" in error_of(
        lambda: read_folder(tmp_path)
    )


def test_an_image_outside_of_a_class_is_refused(root: Path) -> None:
    path = write(root / "val" / "stray.jpg")
    assert f"{path} must lie in the folder of its class" in error_of(lambda: read_folder(root))


def test_folders_within_a_class_are_refused(root: Path) -> None:
    path = write(root / "train" / "ant" / "images" / "0.jpg")
    assert f"{path.parent} is a folder in the folder of a class" in error_of(
        lambda: read_folder(root)
    )


def test_without_pillow_the_error_says_what_to_install(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert "pip install pillow" in error_of(lambda: read_folder(root))


def _fetch_in_child(images: Images, queue: Any) -> None:
    queue.put(int(fetched(images).sum()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_decodes_too(root: Path) -> None:
    images = read_folder(root, image_size=8, hold=False).train
    expected = int(fetched(images).sum())  # the pool of this process has its threads now
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_fetch_in_child, args=(images, queue))
    child.start()
    try:
        assert queue.get(timeout=20) == expected
    finally:
        child.kill()
        child.join()
        queue.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_images_are_fetched_to_the_gpu(root: Path) -> None:
    images = read_folder(root, image_size=8, hold=False).train
    there = images.to(torch.device("cuda"))
    indices = torch.tensor([4, 0])
    assert there.fetch(indices.cuda()).device.type == "cuda"
    assert torch.equal(there.fetch(indices.cuda()).cpu(), images.fetch(indices))
    assert torch.equal(there.part(indices.cuda()).labels.cpu(), images.labels[indices])


def test_a_root_that_is_not_there_is_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nowhere$"):
        read_folder(tmp_path / "nowhere", image_size=8)


def test_files_that_are_no_images_by_their_names_are_counted(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "train" / "ant" / "notes.txt").write_text("no image")
    (root / "train" / "ant" / "x.avif").write_text("of no ending that is read")
    read_folder(root, image_size=8)
    said = capsys.readouterr().err
    assert "train: 2 files are left out, such as ant/notes.txt: images end in jpg" in said
