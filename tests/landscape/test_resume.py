"""A landscape that was killed, stopped or broken off goes on to the identical array."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import problems
from crsam import landscape
from crsam.errors import UserError
from crsam.landscape import file as landscape_file
from crsam.landscape.surface import Surface
from landscape.test_surface import data, losses_and_right

HERE = Path(__file__).parent
X = [-1.0, 0.0, 0.3, 1.0]


def whole(path: Path | None = None, loss_fn: Any = losses_and_right, **options: Any) -> Surface:
    given = {"x": X, "about": {"kind": "filter"}, **options}
    return landscape.surface(problems.conv_net(), loss_fn, data(5, 9), file=path, **given)


def same(one: Surface, other: Surface) -> None:
    for name, array in vars(one).items():
        np.testing.assert_array_equal(array, getattr(other, name))


@pytest.mark.parametrize("moment", ["point 9", "write 3", "rename 3"])
def test_a_killed_landscape_ends_identical(moment: str, tmp_path: Path) -> None:
    path = tmp_path / "landscape.npz"
    command = [sys.executable, HERE / "programs/killed.py", *moment.split(), path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    there, about = landscape.load(path)
    assert 0 < np.isnan(there.loss).sum() < 16
    assert about["complete"] is False
    calls = 0

    def counted(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return losses_and_right(model, batch)

    same(whole(path, counted), whole())
    assert calls == 2 * (np.isnan(there.loss).sum() + 1)  # two batches a point, one looked at again
    found, about = landscape.load(path)
    same(found, whole())
    assert about["complete"] is True
    assert about["kind"] == "filter"


def test_what_was_done_is_kept_after_an_exception_and_a_stop(tmp_path: Path) -> None:
    calls = 0

    def failing(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise RuntimeError("out of memory")
        return losses_and_right(model, batch)

    path = tmp_path / "a.npz"
    with pytest.raises(RuntimeError, match="out of memory"):
        whole(path, failing)
    assert np.isnan(landscape.load(path)[0].loss).sum() == 13
    stopped = whole(path, stop=lambda: True)
    assert np.isnan(stopped.loss).sum() == 12
    assert not stopped.complete
    same(whole(path), whole())
    assert os.listdir(tmp_path) == ["a.npz"]


def test_several_at_once_go_on_in_the_same_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    whole(path, stop=lambda: True, at_once=3)
    same(whole(path, at_once=3), whole(at_once=3))


def test_another_landscape_in_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    whole(path)
    before = path.read_bytes()
    with pytest.raises(UserError, match='kind: "filter" there, "line" here'):
        whole(path, about={"kind": "line"}, seed=1)
    with pytest.raises(UserError, match=r"points: \[4, 4\] there, \[4\] here"):
        whole(path, directions=1)
    for options in ({"seed": 1}, {"x": [0, 1, 2, 3]}, {"batch_norm": "recomputed"}):
        with pytest.raises(UserError, match=r"a\.npz holds another landscape \(of other weights"):
            whole(path, **options)
    model = problems.conv_net()
    for batches in (data(5), data(9, 5)):
        with pytest.raises(UserError, match="of other weights"):
            landscape.surface(
                model, losses_and_right, batches, x=X, file=path, about={"kind": "filter"}
            )
    with torch.no_grad():
        model[1].running_mean += 1  # not a weight, but the loss depends on it
    with pytest.raises(UserError, match="of other weights"):
        landscape.surface(
            model, losses_and_right, data(5, 9), x=X, file=path, about={"kind": "filter"}
        )
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04half"])
def test_a_broken_file_is_told_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.npz is not a landscape"):
        whole(path)
    assert path.read_bytes() == content


def test_flipped_bits_are_told_or_harmless(tmp_path: Path) -> None:
    path, draw = tmp_path / "a.npz", np.random.default_rng(0)
    whole(path)
    content, told = path.read_bytes(), 0
    for _ in range(200):
        broken = bytearray(content)
        for place in draw.integers(len(broken), size=3):
            broken[place] ^= 1 << int(draw.integers(8))
        path.write_bytes(broken)
        try:
            landscape.load(path)
        except UserError as error:
            told += "a.npz is not a landscape" in str(error)
    assert told > 100


def test_arrays_that_do_not_fit_are_told(tmp_path: Path) -> None:
    for arrays in (
        {"x": [0.0, 1.0], "loss": [1.0]},
        {"x": [0.0, 1.0], "y": [0.0], "loss": [1.0, 2.0]},
        {"loss": [1.0]},
    ):
        np.savez(tmp_path / "a.npz", about=np.array("{}"), **arrays)
        with pytest.raises(UserError, match="is not a landscape"):
            landscape.load(tmp_path / "a.npz")


def test_a_file_has_the_arrays_that_were_agreed_on(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    whole(path, about={"kind": "filter", "of": ["ä/seed0"]})
    with np.load(path, allow_pickle=False) as arrays:
        assert set(arrays.files) == {"x", "y", "loss", "accuracy", "about"}
        assert arrays["loss"].shape == arrays["accuracy"].shape == (4, 4)
        assert arrays["about"].shape == ()
        about = json.loads(str(arrays["about"]))
    assert about["of"] == ["ä/seed0"]
    assert about["complete"] is True


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*No such file"):
        whole(tmp_path / "nowhere/a.npz")


def test_it_is_written_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    real = landscape_file.save

    def counted(path: Path, surface: Surface, about: Any) -> None:
        writes.append(int(np.isnan(surface.loss).sum()))
        real(path, surface, about)

    monkeypatch.setattr(landscape_file, "save", counted)
    whole(tmp_path / "a.npz")
    assert writes == [0]
    monkeypatch.setattr(landscape_file, "EVERY", -1.0)
    whole(tmp_path / "b.npz")
    assert writes[1:] == list(range(15, -1, -1))
