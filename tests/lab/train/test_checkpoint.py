"""Files that are whole or not there."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from crsam import _files
from crsam.errors import UserError
from crsam.lab._torch_files import Damaged
from crsam.lab.train import checkpoint
from crsam.lab.train.loop import Training


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    state = {"step": 3, "weights": torch.arange(4.0), "groups": [{"lr": 0.1, "none": None}]}
    checkpoint.save(tmp_path / "c.pt", state)
    loaded = checkpoint.load(tmp_path / "c.pt")
    assert torch.equal(loaded.pop("weights"), state.pop("weights"))  # type: ignore[arg-type]
    assert loaded == state
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "c.pt"
    _files.write(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if call == "fsync" else Path, call, full)
    with pytest.raises(UserError, match=r"cannot write .*c\.pt: No space left.*is whole"):
        _files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.pt"
    _files.write(path, b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _files.write(path, b"new")
    assert path.read_bytes() == b"old"


def test_what_is_not_json_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    assert _files.read_json(file) is None
    file.write_text('{"a": 1}')
    assert _files.read_json(file) == {"a": 1}
    for content, said in (("{", "not JSON"), ("[1]", "no object"), (b"\xff", "not JSON")):
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(UserError, match=rf"a\.json .*{said}"):
            _files.read_json(file)
    with pytest.raises(UserError, match="cannot read"):
        _files.read_json(tmp_path)


def test_a_checkpoint_that_is_not_whole_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    checkpoint.save(path, {"weights": torch.randn(1000)})
    whole = path.read_bytes()
    cut = [whole[:num] for num in (0, 3, 100, len(whole) // 2, len(whole) - 1)]
    for content in (*cut, b"not a checkpoint", whole + b"more"):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=r"c\.pt is damaged") as caught:
            checkpoint.load(path)
        assert "\n" not in str(caught.value)


def test_a_checkpoint_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    for content in (pickle.dumps(Evil(), protocol=2), None):
        path = tmp_path / "evil.pt"
        if content is None:
            torch.save({"x": Evil()}, path)
        else:
            path.write_bytes(content)
        with pytest.raises(UserError):
            checkpoint.load(path)
    assert not (tmp_path / "ran").exists()


def test_a_missing_or_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        checkpoint.load(tmp_path / "none.pt")
    torch.save(torch.zeros(2), tmp_path / "tensor.pt")
    with pytest.raises(UserError, match="holds a Tensor"):
        checkpoint.load(tmp_path / "tensor.pt")


def test_the_file_that_was_there_is_kept_under_another_name(tmp_path: Path) -> None:
    path, before = tmp_path / "c.pt", tmp_path / "c.previous.pt"
    for content, kept in ((b"1", None), (b"2", b"1"), (b"3", b"2")):
        _files.write(path, content, keep=before)
        assert path.read_bytes() == content
        assert (before.read_bytes() if before.exists() else None) == kept
    before.unlink()
    before.hardlink_to(path)  # as after a kill between the two renames
    _files.write(path, b"4", keep=before)
    assert (path.read_bytes(), before.read_bytes()) == (b"4", b"3")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.previous.pt", "c.pt"]


def test_checksums_are_written_where_a_user_has_turned_them_off(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.serialization.set_crc32_options(False)
    try:
        checkpoint.save(path, {"weights": torch.ones(1000)})
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(True)
    raw = bytearray(path.read_bytes())
    raw[raw.index(torch.ones(9).numpy().tobytes()) + 9] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Damaged):
        checkpoint.load(path)


def test_a_training_holds_on_to_nothing_of_the_file(tmp_path: Path) -> None:
    """Its large tensors are mapped while it is loaded."""

    def training() -> Training:
        model = nn.Linear(300, 300)
        return Training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    first, path = training(), tmp_path / "c.pt"
    for p in first.model.parameters():
        p.grad = torch.ones_like(p)
    first.optimizer.step()
    checkpoint.save(path, first.state_dict())
    second = training()
    second.load_state_dict(checkpoint.load(path))
    with path.open("r+b") as file:  # as no program of ours does
        file.write(bytes(path.stat().st_size))
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
        momenta = [t.optimizer.state[p]["momentum_buffer"] for t, p in ((first, a), (second, b))]
        assert torch.equal(*momenta)
