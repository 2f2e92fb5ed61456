"""Damage in a file of `torch.save`: found, or in bytes that hold no value."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from crsam.errors import UserError
from crsam.lab import _torch_files
from crsam.lab._torch_files import Damaged, read

STATE: dict[str, Any] = {
    "weight": torch.arange(5.0),
    "zeros": torch.zeros(40),
    "step": 3,
    "none": [1.5, None],
    "nothing": torch.empty(0),
}


def is_same(state: dict[str, Any]) -> bool:
    return str(state) == str(STATE) and all(
        value.dtype == STATE[name].dtype
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    )


def take(path: Path, raw: bytes) -> bool:
    """Whether the file is found to be damaged. If not, its values must be the right ones."""
    path.write_bytes(raw)
    try:
        state = read(path)
    except Damaged as error:
        return "\n" not in str(error)
    assert is_same(state)
    return False


@pytest.mark.parametrize("small", [0, 1 << 16], ids=["second thread", "before"])
def test_a_flipped_bit_is_found_or_changes_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(_torch_files, "_SMALL", small)  # which members torch may read unchecked
    path = tmp_path / "c.pt"
    torch.save(STATE, path)
    whole = path.read_bytes()
    directory = whole.index(b"PK\1\2")  # from here on each bit steers what torch reads
    draw = random.Random(0)
    bits = [8 * place + draw.randrange(8) for place in range(len(whole))]
    found = {}
    for bit in bits if small else bits[:: len(bits) // 200]:
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        found[bit // 8] = take(path, bytes(raw))
    for value in (STATE["weight"], STATE["zeros"]):
        begin = whole.index(value.numpy().tobytes())
        assert all(found.get(place, True) for place in range(begin, begin + 4 * len(value)))
    ends = {place for place in found if place >= directory}
    assert sum(found[place] for place in ends) > 0.9 * len(ends)


def test_a_tensor_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    """torch would return memory that nobody has written to."""
    path = tmp_path / "c.pt"
    torch.save(STATE, path)
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"c/data/0") - 46 + 38] ^= 0x10  # the external attributes of its entry
    assert take(path, bytes(raw))


def test_a_file_that_was_cut_is_damaged_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.save(STATE, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        assert take(path, whole[:length])
    assert not take(path, whole)


def test_damage_of_a_large_tensor_is_found_while_torch_reads(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.save({"small": torch.ones(3), "large": torch.ones(3 << 20)}, path)
    assert read(path)["large"].sum() == 3 << 20
    whole = path.read_bytes()
    for place in (len(whole) // 3, len(whole) // 2, len(whole) - 100_000):
        raw = bytearray(whole)
        raw[place] ^= 1
        path.write_bytes(raw)
        with pytest.raises(Damaged, match=r"c\.pt is damaged: the checksum of data/1 in it"):
            read(path)


def test_a_file_that_a_training_replaces_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, newer = tmp_path / "c.pt", tmp_path / "newer.pt"
    torch.save({"step": 1}, path)
    torch.save({"step": 2}, newer)
    check = _torch_files._check

    def replace(*args: Any) -> None:
        if newer.exists():
            newer.replace(path)
        check(*args)

    monkeypatch.setattr(_torch_files, "_check", replace)
    assert read(path) == {"step": 1}
    assert read(path) == {"step": 2}


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_file_that_cannot_be_mapped_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    path = tmp_path / "c.pt"
    torch.save({"large": torch.ones(3 << 20)}, path)
    load = torch.load

    def without_mappings(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mmap"):
            raise error("unable to mmap")
        return load(*args, **kwargs)

    monkeypatch.setattr(torch, "load", without_mappings)
    assert read(path)["large"].sum() == 3 << 20


def test_writing_to_what_was_read_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.save({"large": torch.ones(3 << 20)}, path)
    whole = path.read_bytes()
    read(path)["large"].zero_()
    assert path.read_bytes() == whole


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.pt")
    with pytest.raises(UserError, match=r"c\.pt: it is a pipe"):
        read(tmp_path / "c.pt")
