"""Damaged checkpoints: nothing takes their values, and a run goes on from the one before."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import torch

from crsam.errors import UserError
from crsam.lab.cli import main
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.restore import last_whole
from crsam.lab.experiment.run import run
from crsam.lab.train import checkpoint
from crsam.lab.train.distributed import World
from lab.experiment.runs import assert_same, tiny
from two_ranks import found_by_two_ranks


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    run(tiny(), folder, lines=False)
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def flip(file: Path) -> None:
    """Flips one bit in the largest tensor."""
    weights = torch.load(file, weights_only=True)["training"]["model"]
    largest = max(weights.values(), key=torch.Tensor.numel)
    raw = bytearray(file.read_bytes())
    raw[raw.index(largest.numpy().tobytes()) + 2] ^= 0x40
    file.write_bytes(raw)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


damages = pytest.mark.parametrize("damage", [flip, cut, Path.unlink])


def test_the_last_two_checkpoints_are_kept(place: Path) -> None:
    steps = [
        checkpoint.load(place / name)["training"]["step"]
        for name in ("checkpoint.previous.pt", "checkpoint.pt")
    ]
    assert steps == [10, 15]


@damages
def test_a_run_goes_on_from_the_one_before_and_says_so(
    damage: object, place: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "result.json").unlink()
    damage(place / "checkpoint.pt")  # type: ignore[operator]
    run(tiny(), place, lines=False)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "checkpoint.pt is " in said[0]
    assert said[0].endswith(
        f". The run goes on from the checkpoint before it, {place / 'checkpoint.previous.pt'}"
    )
    assert_same(place, trained)
    assert checkpoint.load(place / "checkpoint.previous.pt")["training"]["step"] == 10


def test_a_damaged_checkpoint_never_takes_the_place_of_the_one_before(place: Path) -> None:
    """Or a kill while the next one is written would leave no whole one."""
    (place / "result.json").unlink()
    flip(place / "checkpoint.pt")

    def killed(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crsam.lab.experiment.run.fit", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tiny(), place, lines=False)
    assert checkpoint.load(place / "checkpoint.pt")["training"]["step"] == 10


def test_two_damaged_ones_are_one_error_and_fresh_starts_over(place: Path) -> None:
    (place / "result.json").unlink()
    flip(place / "checkpoint.pt")
    cut(place / "checkpoint.previous.pt")
    newest, before = r"checkpoint\.pt is damaged: the checksum", r"previous\.pt is damaged"
    with pytest.raises(UserError, match=f"{newest}.*; .*{before}.*; --fresh starts") as caught:
        run(tiny(), place, lines=False)
    assert "\n" not in str(caught.value)
    assert run(tiny(), place, lines=False, fresh=True)["steps"] == 15


def test_an_old_folder_with_one_checkpoint_is_read_and_goes_on(place: Path, trained: Path) -> None:
    (place / "checkpoint.previous.pt").rename(place / "checkpoint.pt")
    (place / "result.json").unlink()
    run(tiny(), place, lines=False)
    assert_same(place, trained)
    (place / "result.json").unlink()
    (place / "checkpoint.previous.pt").unlink()
    flip(place / "checkpoint.pt")
    with pytest.raises(UserError, match="does not match; --fresh starts the run over"):
        run(tiny(), place, lines=False)


COMMANDS = {
    "evaluate": ["evaluate", "RUN"],
    "measure": ["measure", "RUN", "--metrics", "loss"],
    "landscape": ["landscape", "RUN", "--points", "3"],
    "init": ["train", "digits", "train.epochs=1", "model.width=8", "init=RUN", "--out", "OTHER"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_commands_refuse_a_damaged_checkpoint_in_one_line(
    words: list[str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = json.loads((place / "result.json").read_text())
    flip(place / "checkpoint.pt")
    words = [w.replace("RUN", str(place)).replace("OTHER", str(place.parent / "o")) for w in words]
    monkeypatch.setattr("sys.argv", ["crsam", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "checkpoint.pt is damaged: the checksum of data/" in line
    assert "opy the file again" in line
    if words[0] != "train":
        delete = f"delete {place / 'result.json'} and give its train command again"
        assert delete in line
        (place / "result.json").unlink()
        after = run(tiny(), place, lines=False)  # what the message says to do
        assert {k: after[k] for k in ("test_loss", "steps")} == {
            k: before[k] for k in ("test_loss", "steps")
        }


def test_nothing_is_left_where_checkpoints_are_removed(place: Path) -> None:
    RunFolder(place).remove_checkpoints()
    assert not list(place.glob("checkpoint*"))
    assert not RunFolder(place).has_checkpoint


def _read(rank: int, folder: Path) -> dict[str, object]:
    if rank == 1:  # as on a machine whose copy of the file is damaged
        flip(folder / "run/checkpoint.pt")
        (folder / "flipped").touch()
    while not (folder / "flipped").exists():
        time.sleep(0.01)
    world = World(torch.device("cpu"), rank, 2)
    if rank == 0:
        shutil.copytree(folder / "run", folder / "other")
        shutil.copy(folder / "whole.pt", folder / "other/checkpoint.pt")
    file, state = last_whole(RunFolder(folder / ("other" if rank == 0 else "run")), world)
    return {"file": file.name, "step": state["training"]["step"]}


def test_all_processes_go_on_from_the_same_checkpoint(place: Path) -> None:
    shutil.copy(place / "checkpoint.pt", place.parent / "whole.pt")
    for found in found_by_two_ranks(_read, place.parent):
        assert found == {"file": "checkpoint.previous.pt", "step": 10}
