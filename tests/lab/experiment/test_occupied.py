"""Runs are written into an empty folder or one of ours, not among somebody else's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crsam.errors import UserError
from crsam.lab.cli import app
from crsam.lab.experiment.comparison import compare
from crsam.lab.experiment.fair.conduct import conduct
from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.occupied import check_apart, check_free
from crsam.lab.experiment.run import run
from crsam.lab.experiment.sweep import sweep
from lab.data.photos import write_photos
from lab.experiment.runs import tiny

STUDY = """
[study]
seeds = [0]
[study.contestants.SGD]
method = "base"
[study.contestants.SAM]
method = "sam"
"""


def study(folder: Path, fresh: bool = False) -> object:
    file = folder.parent / "mine.toml"
    file.write_text(STUDY)
    return conduct(load_study(file, ["train.epochs=1", "model.width=4"]), folder, fresh=fresh)


def swept(folder: Path) -> object:
    pytest.importorskip("optuna")
    return sweep(tiny("sweep.ranges.optimizer.lr={low=0.01, high=0.1}", "sweep.trials=1"), folder)


STRATEGIES: dict[str, Callable[[Path], object]] = {
    "train": lambda folder: run(tiny("train.epochs=1"), folder, lines=False),
    "train --fresh": lambda folder: run(tiny("train.epochs=1"), folder, lines=False, fresh=True),
    "compare": lambda folder: compare(tiny("train.epochs=1"), ["sgd", "sam"], 1, folder),
    "study": study,
    "study --fresh": lambda folder: study(folder, fresh=True),
    "sweep": swept,
}


def content(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("way", STRATEGIES)
def test_a_folder_of_photographs_is_refused_and_stays_as_it_is(way: str, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", train=1, val=1)
    (photos / "final").mkdir()  # as a stage of a study is called, which --fresh removes
    (photos / "final" / "best.jpg").write_bytes(b"mine")
    before = content(photos)
    with pytest.raises(UserError) as caught:
        STRATEGIES[way](photos)
    assert str(caught.value) == (
        f"{photos} holds what crsam has not written (final, train, val): give a new or an empty "
        "folder, such as --out runs/photos"
    )
    assert content(photos) == before


@pytest.mark.parametrize("way", ["train", "compare", "study", "sweep"])
def test_a_folder_of_ours_an_empty_one_and_one_with_notes_are_taken(
    way: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.txt").write_text("as a shell opens it before the run begins")
    (folder / ".DS_Store").touch()
    STRATEGIES[way](folder)
    STRATEGIES[way](folder)
    (folder / "cat.jpg").write_bytes(b"put there later")
    STRATEGIES[way](folder)


@pytest.mark.parametrize(
    "left",
    [
        ".lock",
        "recipe.toml",
        "sgd/seed0/.lock",
        "sam/seed1/recipe.toml",
        "sam/sweep/sweep.toml",
        "choose/sam/rho-0.1/seed0/.study",
        "final/sam/seed0/recipe.toml",
    ],
)
def test_what_a_killed_run_leaves_is_ours(left: str, tmp_path: Path) -> None:
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).touch()
    (tmp_path / "recipe.toml.tmp").touch()
    (tmp_path / "metrics.jsonl").touch()
    check_free(tmp_path)


def test_a_run_below_others_is_fine_and_many_names_are_counted(tmp_path: Path) -> None:
    for name in "abcde":
        (tmp_path / name).mkdir()
    check_free(tmp_path / "new")
    check_free(tmp_path / "a")
    with pytest.raises(UserError, match=r"\(a, b, c and 2 more\)"):
        check_free(tmp_path)


@pytest.mark.parametrize("below", ["", "sgd/seed0"])
@pytest.mark.parametrize("command", ["train", "compare", "study", "sweep"])
def test_a_file_in_the_way_is_named(command: str, below: str, tmp_path: Path) -> None:
    photo = tmp_path / "000.jpg"
    photo.write_bytes(b"mine")
    if command == "sweep":
        pytest.importorskip("optuna")
    source = {"study": "digits", "sweep": "digits_sweep"}.get(command, "digits")
    done = CliRunner().invoke(app, [command, source, "--out", str(photo / below)])
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith(f"{photo} is a file, so {photo / below} cannot be a fol")
    assert photo.read_bytes() == b"mine"


@pytest.mark.parametrize("out", ["", "new", "ant/new", "split/train/new", "split/val/ant/new"])
def test_a_run_among_the_classes_of_its_images_is_refused(tmp_path: Path, out: str) -> None:
    """The next run would take it for a class."""
    photos = write_photos(tmp_path / "split", train=2, val=1)
    root = photos if "split" in out else photos / "train"
    folder = root / out.removeprefix("split/")
    before = content(photos)
    words = ["data.name=folder", f"data.root={root}"]
    with pytest.raises(UserError, match=r"outside|holds what crsam has not"):
        run(tiny(*words), folder, lines=False)
    assert content(photos) == before
    assert out == "" or not folder.exists()


def test_a_run_may_lie_beside_the_splits(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", train=2, val=1)
    check_apart(photos / "runs", photos)
    check_apart(tmp_path / "runs", photos / "train")
    check_apart(tmp_path / "runs", tmp_path / "nowhere")
