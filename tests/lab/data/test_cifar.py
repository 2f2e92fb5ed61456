"""CIFAR's files in all their dialects, and files that only pretend."""

from __future__ import annotations

import pickle
import re
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crsam.errors import UserError
from crsam.lab.data import load
from crsam.lab.data.cifar import CIFAR10, CIFAR100, Layout, read_cifar
from lab.data.cifar_files import Dump, batch, expected, python2, python3, write_cifar

DIALECTS = {
    "python 2, as official": python2,
    "protocol 4": python3(4),
    "protocol 5": python3(5),
    "protocol 4, text": python3(4, as_bytes=False),
}


@pytest.mark.parametrize("dump", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=["10", "100"])
def test_every_dialect_gives_the_images_in_the_order_of_the_files(
    tmp_path: Path, layout: Layout, dump: Dump
) -> None:
    write_cifar(tmp_path / layout.archive.folder, layout, dump=dump)
    dataset = read_cifar(layout, tmp_path)
    count = len(layout.train)
    for images, seeds in ((dataset.train, list(range(count))), (dataset.test, [count])):
        pixels, labels = expected(layout, seeds)
        assert torch.equal(images.fetch(torch.arange(len(images))), pixels)
        assert images.labels.tolist() == labels
        assert images.labels.dtype == torch.int64
    assert dataset.classes == tuple(f"class {i}" for i in range(layout.num_classes))


def test_numpys_former_module_names_are_read_in_protocol_4_too(tmp_path: Path) -> None:
    def old_names(content: dict[str, Any]) -> bytes:
        raw = python3(4)(content)
        assert raw.count(b"numpy._core.multiarray") == ("data" in content)
        raw = raw.replace(b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray")
        (length,) = struct.unpack("<Q", raw[3:11])  # of the frame, which is a byte shorter now
        return raw[:3] + struct.pack("<Q", length - ("data" in content)) + raw[11:]

    write_cifar(tmp_path / CIFAR10.archive.folder, each=1, dump=old_names)
    pixels, _ = expected(CIFAR10, [5], each=1)
    assert torch.equal(read_cifar(CIFAR10, tmp_path).test.fetch(torch.tensor([0])), pixels)


@pytest.mark.parametrize("name", ["cifar10", "CIFAR-100"])
def test_root_may_be_the_folder_itself(tmp_path: Path, name: str) -> None:
    layout = CIFAR100 if "100" in name else CIFAR10
    write_cifar(tmp_path / "mine", layout)
    dataset = load(name, tmp_path / "mine")
    assert (len(dataset.train), len(dataset.test)) == (4 * len(layout.train), 4)
    assert (dataset.mean, dataset.std) == (layout.mean, layout.std)


@pytest.mark.skipif(
    not Path("data/cifar-10-batches-py").is_dir(), reason="needs the real files in data/"
)
def test_mean_and_std_are_those_of_all_training_pixels() -> None:
    images = load("cifar10").train.images  # type: ignore[attr-defined]
    for channel in range(3):
        pixels = images[:, channel].double() / 255
        assert pixels.mean().item() == pytest.approx(CIFAR10.mean[channel], abs=5e-5)
        assert pixels.std().item() == pytest.approx(CIFAR10.std[channel], abs=5e-5)


def test_without_files_the_error_says_where_it_looked_and_how_to_get_them(tmp_path: Path) -> None:
    message = error_of(lambda: load("cifar10", tmp_path))
    for part in (
        str(tmp_path / "cifar-10-batches-py"),
        "download",
        "www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    ):
        assert part in message


def test_missing_batches_are_named(tmp_path: Path) -> None:
    folder = tmp_path / CIFAR10.archive.folder
    write_cifar(folder)
    (folder / "data_batch_3").unlink()
    (folder / "test_batch").unlink()
    assert "lacks data_batch_3, test_batch" in error_of(lambda: read_cifar(CIFAR10, tmp_path))


def test_the_unpickler_does_not_need_numpy() -> None:
    source = Path(read_cifar.__code__.co_filename).read_text()
    assert not re.search(r"import numpy|from numpy", source)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in batch().items() if name != key}


def with_array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {**batch(), "data": array}


TAMPERED: dict[str, tuple[Any, str]] = {
    "no images": (without("data"), "it has no 'data'"),
    "no labels": (without("labels"), "it has no 'labels'"),
    "one image too many": (with_array(np.zeros((5, 3072), np.uint8)), "4 labels for 5 images"),
    "one label too many": ({**batch(), "labels": [0] * 5}, "5 labels for 4 images"),
    "other size": (with_array(np.zeros((4, 3071), np.uint8)), r"(N, 3072), got (4, 3071)"),
    "other rank": (with_array(np.zeros((4, 3, 32, 32), np.uint8)), "got (4, 3, 32, 32)"),
    "none at all": ({**with_array(np.zeros((0, 3072), np.uint8)), "labels": []}, "got (0, 3072)"),
    "columns first": (with_array(np.zeros((4, 3072), np.uint8, order="F")), "by columns"),
    "floats": (with_array(np.zeros((4, 3072), np.float32)), "array of type 'f4'"),
    "signed": (with_array(np.zeros((4, 3072), np.int8)), "array of type 'i1'"),
    "objects": (with_array(np.full((4, 3072), None)), "array of type 'O8'"),
    "lists of pixels": ({**batch(), "data": [[0] * 3072] * 4}, "must be an array of bytes"),
    "label too large": ({**batch(), "labels": [0, 1, 2, 10]}, "from 0 to 9, got 10"),
    "label negative": ({**batch(), "labels": [0, -1, 2, 3]}, "from 0 to 9, got -1"),
    "label no number": ({**batch(), "labels": [0, "1", 2, 3]}, "from 0 to 9, got"),
    "label no whole number": ({**batch(), "labels": [0, 1.0, 2, 3]}, "from 0 to 9, got 1.0"),
    "label of many digits": ({**batch(), "labels": [0, 1, 2, 10**5000]}, "from 0 to 9, got"),
    "labels no list": ({**batch(), "labels": "0123"}, "'labels' must be a list"),
    "no dictionary": ([1, 2, 3], "must hold a dictionary, got [1, 2, 3]"),
}


@pytest.mark.parametrize(("content", "why"), TAMPERED.values(), ids=TAMPERED)
@pytest.mark.parametrize("protocol", [4, 5])
def test_tampered_files_are_refused_with_what_is_wrong(
    tmp_path: Path, content: Any, why: str, protocol: int
) -> None:
    assert why in error_with_batch(tmp_path, python3(protocol)(content))


@pytest.mark.parametrize("made", [b")\x81", b")R"], ids=["new", "called"])
def test_an_array_without_content_is_refused(tmp_path: Path, made: bytes) -> None:
    raw = b"\x80\x02}(U\x04datacnumpy\nndarray\n" + made + b"U\x06labels]u."
    assert "(N, 3072), got (0,)" in error_with_batch(tmp_path, raw)


@pytest.mark.parametrize("names", [["class"] * 9, ["class"] * 11, [3] * 10, "names"])
def test_class_names_must_be_as_many_as_classes(tmp_path: Path, names: Any) -> None:
    folder = tmp_path / CIFAR10.archive.folder
    write_cifar(folder)
    (folder / "batches.meta").write_bytes(python3(4)({"label_names": names}))
    message = error_of(lambda: read_cifar(CIFAR10, tmp_path))
    assert "batches.meta is not a CIFAR-10 file: its 'label_names' must be" in message


class Runs:
    """Is pickled as a call."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def test_a_file_that_runs_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    raw = pickle.dumps({b"data": Runs(Path.touch, trace), **batch()}, 4)
    message = error_with_batch(tmp_path, raw)
    assert "it wants to run code" in message
    assert not trace.exists()
    opens = f"open({str(trace)!r}, 'w')"
    for call in (Runs(eval, opens), Runs(np.load, "x"), Runs(getattr, 1, "x")):
        assert "it wants to run code" in error_with_batch(tmp_path, pickle.dumps(call, 2))
    assert not trace.exists()


def test_codes_of_the_extension_registry_are_refused(tmp_path: Path) -> None:
    assert "copyreg's registry" in error_with_batch(tmp_path, b"\x80\x02\x82\x01.")


@pytest.mark.parametrize(
    "build",
    [
        b"cnumpy\nndarray\nN}U\x05shapeK\x01s\x86b.",
        b"cnumpy\ndtype\nN}U\x0c__setstate__Ns\x86b.",
        b"cnumpy.core.multiarray\n_reconstruct\n}U\x05shapeK\x01sb.",
    ],
)
def test_a_file_cannot_change_what_later_files_are_read_with(tmp_path: Path, build: bytes) -> None:
    assert "damaged" in error_with_batch(tmp_path, b"\x80\x02" + build)
    write_cifar(tmp_path / "good", dump=python2)
    assert len(read_cifar(CIFAR10, tmp_path / "good").train) == 20


BOMBS = {
    "memo": b"\x80\x02Nr\xff\xff\xff\x03.",
    "memo as text": b"Np67108863\n.",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 36) + b"x.",
    "byte array": b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b"x.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 36) + b"N.",
    "number": b"\x80\x02\x8b\xff\xff\xff\x7fx.",
    "shape that repeats a text": b"\x80\x02cnumpy\nndarray\n)R(K\x01U\x01xJ\x00\x00\x00\x40\x86"
    b"cnumpy\ndtype\nU\x02u1\x85R\x89U\x01xtb.",
}


@pytest.mark.parametrize("raw", BOMBS.values(), ids=BOMBS)
def test_a_tiny_file_does_not_take_much_memory(tmp_path: Path, raw: bytes) -> None:
    tracemalloc.start()
    try:
        assert "is not a CIFAR-10 file" in error_with_batch(tmp_path, raw)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dump", DIALECTS.values(), ids=DIALECTS)
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path, dump: Dump) -> None:
    raw = dump(batch(each=1))
    for end in [*range(0, len(raw), 61), len(raw) - 1]:
        assert "cut off or damaged" in error_with_batch(tmp_path, raw[:end])


@settings(max_examples=150, deadline=None)
@given(
    dump=st.sampled_from([python2, python3(4), python3(5)]),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, dump: Dump, changes: list[tuple[int, int]]
) -> None:
    content = batch(each=1)
    content["data"] = content["data"] * 0 + 46  # full stops, which end a pickle
    raw = bytearray(dump(content))
    around = [i for i in range(len(raw)) if raw[i : i + 4] != b"...."]
    for place, byte in changes:
        raw[around[place % len(around)]] = byte
    folder = tmp_path_factory.mktemp("damaged")
    write_cifar(folder / CIFAR10.archive.folder, each=1)
    (folder / CIFAR10.archive.folder / "data_batch_1").write_bytes(raw)
    with suppress(UserError):
        assert len(read_cifar(CIFAR10, folder).train) == 5


def error_with_batch(root: Path, raw: bytes) -> str:
    """The message where one of the batches is this; says which one, and what to do."""
    folder = root / CIFAR10.archive.folder
    if not folder.exists():
        write_cifar(folder)
    (folder / "data_batch_2").write_bytes(raw)
    message = error_of(lambda: read_cifar(CIFAR10, root))
    assert message.startswith(f"{folder / 'data_batch_2'} is not a CIFAR-10 file: ")
    assert f"delete {folder} and get it again" in message
    return message


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)
