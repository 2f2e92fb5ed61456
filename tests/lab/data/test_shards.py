"""Images in archives: the very ones of the folders, and what is wrong with an archive is told."""

from __future__ import annotations

import os
import shutil
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from crsam.errors import UserError
from crsam.lab.data import decoder, remembered
from crsam.lab.data.augment import Inception
from crsam.lab.data.decoded import Decoded
from crsam.lab.data.folder import read_folder
from crsam.lab.data.images import Dataset, Part
from crsam.lab.data.shards import _number
from lab.data.photos import CLASSES, tar_of_tars, tarred, write_photos, zipped


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("folders"))


def shards(folders: Path, root: Path) -> None:
    """A class in several shards, and several classes in a shard."""
    for half in ("train", "val"):
        files = sorted((folders / half).rglob("*.jpg"))
        for number in range(3):
            part = root / "parts" / half / str(number)
            for file in files[number::3]:
                (part / file.parent.name).mkdir(parents=True, exist_ok=True)
                shutil.copy(file, part / file.parent.name)
            tarred(part, root / f"{half}-{number:04}.tar")
    shutil.rmtree(root / "parts")


def one_of(pack: Callable[..., Path], suffix: str, **how: object) -> Callable[[Path, Path], None]:
    def layout(folders: Path, root: Path) -> None:
        for half in ("train", "val"):
            pack(folders / half, root / f"{half}.{suffix}", **how)

    return layout


def by_class(folders: Path, root: Path) -> None:
    for half in ("train", "val"):
        for name in CLASSES:
            tarred(folders / half / name, root / half / f"{name}.tar")


def mixed(folders: Path, root: Path) -> None:
    tar_of_tars(folders / "train", root / "train.tar")
    shutil.copytree(folders / "val", root / "test")


LAYOUTS = {
    "tar": one_of(tarred, "tar"),
    "old tar": one_of(tarred, "tar", style=tarfile.USTAR_FORMAT),
    "gnu tar": one_of(tarred, "tar", style=tarfile.GNU_FORMAT, above="./"),
    "long names": one_of(tarred, "tar", above=f"{'long' * 40}/"),
    "long gnu names": one_of(tarred, "tar", above=f"{'ü' * 70}/", style=tarfile.GNU_FORMAT),
    "folder entries": one_of(tarred, "tar", above="train/", folders=True),
    "zip": one_of(zipped, "zip"),
    "deflated": one_of(zipped, "zip", above="any/", method=zipfile.ZIP_DEFLATED),
    "shards": shards,
    "a tar a class": by_class,
    "tar of tars": mixed,
}


def shown(dataset: Dataset) -> list[torch.Tensor]:
    """Random windows of the training images, and the middles of all."""
    assert isinstance(dataset.train, Decoded)
    rows = torch.arange(len(dataset.train))
    parts = [Part(rows, rows + 5), Part(rows)]
    return [*(s.pixels for s in dataset.train.stream(parts, len(rows))),
            dataset.test.fetch(torch.arange(len(dataset.test)))]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_archives_give_what_the_folders_give_bit_for_bit(
    layout: str, folders: Path, tmp_path: Path
) -> None:
    LAYOUTS[layout](folders, tmp_path)
    ours, theirs = (
        read_folder(root, image_size=16, windows=Inception()) for root in (tmp_path, folders)
    )
    assert ours.classes == theirs.classes == CLASSES
    for a, b in ((ours.train, theirs.train), (ours.test, theirs.test)):
        assert torch.equal(a.labels, b.labels)
    for x, y in zip(shown(ours), shown(theirs)):
        assert torch.equal(x, y)


def error_of(root: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_folder(root, image_size=8)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tar_file_that_ends_within_an_image_tells_which(folders: Path, tmp_path: Path) -> None:
    LAYOUTS["tar"](folders, tmp_path)
    file = tmp_path / "train.tar"
    with tarfile.open(file) as archive:
        member = archive.getmembers()[5]
    file.write_bytes(file.read_bytes()[: member.offset_data + member.size - 1])
    assert error_of(tmp_path) == f"{file} is cut off: it ends within {member.name}"


def test_links_are_not_taken_for_images(folders: Path, tmp_path: Path) -> None:
    LAYOUTS["tar"](folders, tmp_path)
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        with tarfile.open(tmp_path / "train.tar", "w") as archive:
            info = tarfile.TarInfo("ant/link.jpg")
            info.type, info.linkname = kind, "ant/0.jpg"
            archive.addfile(info)
        assert "ant/link.jpg is a link: pack the images themselves" in error_of(tmp_path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_an_archive_that_is_cut_off_is_named(
    suffix: str, share: float, folders: Path, tmp_path: Path
) -> None:
    LAYOUTS[suffix](folders, tmp_path)
    file = tmp_path / f"train.{suffix}"
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content.rstrip(b"\0")))])
    message = error_of(tmp_path)
    assert str(file) in message
    assert "cut off" in message


def test_a_tar_file_that_ends_between_two_members_is_cut_off_too(
    folders: Path, tmp_path: Path
) -> None:
    LAYOUTS["tar"](folders, tmp_path)
    file = tmp_path / "train.tar"
    with tarfile.open(file) as archive:
        last = archive.getmembers()[-1]
    file.write_bytes(file.read_bytes()[: last.offset])
    assert error_of(tmp_path) == f"{file} is cut off: it has no end mark"


def test_an_archive_that_was_cut_after_it_was_listed_is_told_by_its_images(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LAYOUTS["tar"](folders, tmp_path)
    images = read_folder(tmp_path, image_size=8, hold=False).train
    file = tmp_path / "train.tar"
    with tarfile.open(file) as archive:
        last = archive.getmembers()[-1]
    file.write_bytes(file.read_bytes()[: last.offset_data + 10])
    images.fetch(torch.arange(len(images)))
    told = capsys.readouterr().err
    assert f"{file}:{last.name} cannot be read as an image: the archive ends before it" in told


def test_a_long_list_is_remembered_until_the_archive_changes(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "SLOW", 0.0)
    file = tarred(folders / "train", tmp_path / "train.tar")
    first = list(remembered.remembered(file))
    assert [str(member.name) for member in first][-1] == "Bee/0.jpg"
    listed: list[Path] = []
    real = remembered.members
    monkeypatch.setattr(remembered, "members", lambda path: (listed.append(path), real(path))[1])
    assert list(remembered.remembered(file)) == first
    assert listed == []
    tarred(folders / "val", file)
    assert len(list(remembered.remembered(file))) == 6
    remembered.cache_file(file).write_text("[[")
    assert len(list(remembered.remembered(file))) == 6
    assert len(listed) == 2
    os.utime(file, ns=(0, 0))  # of the same size, but another
    list(remembered.remembered(file))
    assert len(listed) == 3


def test_what_is_no_archive_is_named(folders: Path, tmp_path: Path) -> None:
    for suffix, words in (("tar", "is no tar file, or damaged at byte 0"), ("zip", "cut off")):
        root = tmp_path / suffix
        root.mkdir()
        (root / f"train.{suffix}").write_bytes(b"no archive at all" * 100)
        assert words in error_of(root)
    (tmp_path / "train.tar.gz").write_bytes(b"")
    assert "train.tar.gz cannot be read in parts: make it a .tar or .zip" in error_of(tmp_path)


def test_a_class_without_images_is_named(folders: Path, tmp_path: Path) -> None:
    for half in ("train", "val"):
        shutil.copytree(folders / half, tmp_path / "all" / half)
        (tmp_path / "all" / half / "dog").mkdir()
        tarred(tmp_path / "all" / half, tmp_path / f"{half}.tar", above="x/", folders=True)
    assert f"{tmp_path / 'train.tar'}: dog holds no images" in error_of(tmp_path)


def test_an_image_that_is_there_twice_is_named(folders: Path, tmp_path: Path) -> None:
    for name in ("train-0.tar", "train-1.tar"):
        tarred(folders / "train", tmp_path / name)
    message = error_of(tmp_path)
    assert "the image Bee/0.jpg is there twice" in message
    assert "train-0.tar" in message
    assert "train-1.tar" in message


def test_members_of_another_layout_are_named(folders: Path, tmp_path: Path) -> None:
    tarred(folders / "train", tmp_path / "train.tar", above="too/deep/")
    assert "too/deep/cat/3.jpg must be CLASS/NAME" in error_of(tmp_path)
    tarred(folders / "train" / "cat", tmp_path / "train.tar")
    assert "3.jpg must be CLASS/NAME" in error_of(tmp_path)


def test_members_beyond_eight_gigabytes_are_measured_right() -> None:
    for size in (0, 10_333, 8 * 2**30 - 1, 8 * 2**30, 2**40 + 5):
        info = tarfile.TarInfo("x.jpg")
        info.size = size
        assert _number(info.tobuf(tarfile.GNU_FORMAT)[124:136]) == size


def test_archives_of_other_things_are_not_taken(folders: Path, tmp_path: Path) -> None:
    LAYOUTS["tar"](folders, tmp_path)
    tarred(folders / "val", tmp_path / "training_notes.tar")
    assert len(read_folder(tmp_path, image_size=8).train) == 12
    unpacked = shutil.copytree(folders, tmp_path / "unpacked")
    tarred(folders / "val", unpacked / "train" / "notes.tar")
    assert len(read_folder(unpacked, image_size=8).train) == 12


def test_an_archive_that_took_the_place_of_another_is_read(folders: Path, tmp_path: Path) -> None:
    def first() -> torch.Tensor:
        return read_folder(tmp_path, image_size=8, hold=False, workers=0).train.fetch(
            torch.tensor([0])
        )

    for half in ("train", "val"):
        tarred(folders / half, tmp_path / f"{half}.tar")
    before = first()
    other = tmp_path / "others"
    write_photos(other)
    for file in (other / "train").rglob("*.jpg"):
        Image.new("RGB", (40, 30), "red").save(file)
    tarred(other / "train", tmp_path / "new")
    os.replace(tmp_path / "new", tmp_path / "train.tar")
    after = first()
    assert not torch.equal(before, after)
    assert after[0, 0].min() > 200


def one_member(size: bytes, pax: dict[str, str] | None = None) -> bytes:
    """A tar file of one image whose header has this field as its size."""
    info = tarfile.TarInfo("ant/0.jpg")
    info.size = 512
    info.pax_headers = pax or {}
    content = bytearray(info.tobuf(tarfile.PAX_FORMAT))
    header = content[-512:]
    header[124:136] = size.ljust(12, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[-512:] = header
    return bytes(content) + b"x" * 512 + bytes(1024)


SIZES = {
    "negative octal": one_member(b"-1000"),
    "negative base-256": one_member((-1024).to_bytes(12, "big", signed=True)),
    "a folder's mark": one_member(b"-1"),
    "no digits": one_member(b"0x200"),
    "unknown base": one_member(b"\xc0" + bytes(11)),
    "negative pax": one_member(b"00000001000", {"size": "-1024"}),
    "pax without digits": one_member(b"00000001000", {"size": "many"}),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_no_number_of_bytes_is_refused(name: str, tmp_path: Path) -> None:
    """A negative size moved the reader back to the same header, again and again."""
    file = tmp_path / "train.tar"
    file.write_bytes(SIZES[name])
    message = error_of(tmp_path)
    assert message.startswith(f"{file} is damaged at byte ")
    assert message.endswith("the size of ant/0.jpg is not a number of bytes")


@pytest.mark.parametrize("size", [b"77777777777", b"\x80" + b"\xff" * 11])
def test_a_member_beyond_the_end_of_the_file_is_refused(size: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.tar").write_bytes(one_member(size))
    assert error_of(tmp_path).endswith("train.tar is cut off: it ends within ant/0.jpg")


@pytest.mark.parametrize("line", [b"0 path=a\n", b"-5 path=a\n", b"x path=a\n", b"99 path=a\n"])
def test_a_pax_header_that_makes_no_sense_is_refused(line: bytes, tmp_path: Path) -> None:
    content = bytearray(one_member(b"00000001000", {"path": "ant/0.jpg", "comment": "x" * 99}))
    content[512 : 512 + len(line)] = line
    (tmp_path / "train.tar").write_bytes(content)
    assert "train.tar is damaged at byte 512: its pax header" in error_of(tmp_path)


def test_a_name_as_long_as_a_file_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2 << 20
    (tmp_path / "train.tar").write_bytes(info.tobuf() + b"a" * info.size + bytes(1024))
    assert "it has a name of 2,097,152 bytes" in error_of(tmp_path)


def test_tar_files_deep_within_one_another_are_refused(tmp_path: Path) -> None:
    content = one_member(b"00000001000")
    for _ in range(40):
        info = tarfile.TarInfo("a.tar")
        info.size = len(content)
        content = info.tobuf() + content.ljust(-(-len(content) // 512) * 512, b"\0") + bytes(1024)
    (tmp_path / "train.tar").write_bytes(content)
    assert "more than 8 tar files within one another" in error_of(tmp_path)


def with_bomb(folders: Path, root: Path, size: int, lie: bool) -> None:
    """Two zip files, of which one has a member ``ant/bomb.jpg`` of so many zeros."""
    LAYOUTS["deflated"](folders, root)
    with zipfile.ZipFile(root / "train.zip", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("any/ant/bomb.jpg", bytes(size))
    if lie:  # in the header of the member and in the list at the end
        content = (root / "train.zip").read_bytes()
        assert content.count(struct.pack("<I", size)) == 2
        content = content.replace(struct.pack("<I", size), struct.pack("<I", 1000))
        (root / "train.zip").write_bytes(content)


@pytest.mark.parametrize("lie", [False, True], ids=["honest", "lies"])
def test_a_zip_bomb_is_not_unpacked_and_named(
    lie: bool,
    folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(decoder, "LARGEST", 1 << 20)
    with_bomb(folders, tmp_path, 64 << 20, lie)
    images = read_folder(tmp_path, image_size=8, hold=False, workers=0).train
    tracemalloc.start()
    images.fetch(torch.arange(len(images)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    told = capsys.readouterr().err
    assert f"{tmp_path / 'train.zip'}:any/ant/bomb.jpg cannot be read as an image: " in told
    assert "it has more than 1 MiB, the most that an image may have" in told


def test_a_file_or_a_member_of_a_tar_file_that_is_no_image_by_its_size_is_named(
    folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(decoder, "LARGEST", 1 << 20)
    unpacked = shutil.copytree(folders, tmp_path / "unpacked")
    with (unpacked / "train/ant/big.jpg").open("wb") as file:
        file.truncate(64 << 20)
    packed = tmp_path / "packed"
    packed.mkdir()
    LAYOUTS["tar"](unpacked, packed)
    for root in (unpacked, packed):
        images = read_folder(root, image_size=8, hold=False, workers=0).train
        images.fetch(torch.arange(len(images)))
        assert "ant/big.jpg cannot be read as an image: it has more" in capsys.readouterr().err


def test_a_pipe_among_the_photographs_is_named_and_does_not_hang(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpacked = shutil.copytree(folders, tmp_path / "unpacked")
    os.mkfifo(unpacked / "train/ant/pipe.jpg")
    images = read_folder(unpacked, image_size=8, hold=False, workers=0).train
    images.fetch(torch.arange(len(images)))
    assert "pipe.jpg cannot be read as an image: it is not a regular" in capsys.readouterr().err
