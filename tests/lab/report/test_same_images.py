"""Runs on different photographs are not averaged; runs on the same ones are, wherever they lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from crsam.errors import UserError
from crsam.lab.data.folder import read_folder
from crsam.lab.experiment.fair.conduct import conduct
from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.run import run
from crsam.lab.experiment.splits import loaded
from crsam.lab.experiment.sweep import sweep
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.report.groups import differing, grouped, reference_of
from crsam.lab.report.page.content import content_of
from crsam.lab.report.runs import read_runs
from crsam.lab.report.studies import read_studies
from lab.data.photos import photo, tar_of_tars, tarred, write_photos, zipped
from lab.report.folders import make_run

OPTIONS = ("data.name=folder", "data.image_size=8", "model.width=4", "train.epochs=1",
           "train.batch_size=6", "augment=none")  # fmt: skip
STUDY = """
[study]
seeds = [{seed}]
[study.contestants.SGD]
method = "base"
[study.contestants.SAM]
method = "sam"
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", train=2, val=1)


@pytest.fixture
def others(photos: Path, tmp_path: Path) -> Path:
    """Of the same classes and names of files."""
    other = shutil.copytree(photos, tmp_path / "others")
    for number, file in enumerate(sorted(other.rglob("*.jpg"))):
        photo(100 + number).save(file)
    return other


def recipe(root: Path, *overrides: str) -> Recipe:
    loaded.cache_clear()  # the files of a test change, which those of a run do not
    return load_recipe("digits", [*OPTIONS, f"data.root={root}", *overrides])


def forget(folder: Path) -> None:
    """The run as an earlier version left it, without a fingerprint."""
    file = folder / "data.json"
    said = json.loads(file.read_text())
    del said["fingerprint"]
    file.write_text(json.dumps(said))


def sizes(folder: Path) -> list[int]:
    return [len(group.runs) for group in grouped(read_runs([folder]))]


def test_runs_on_different_photographs_are_kept_apart(
    photos: Path, others: Path, tmp_path: Path
) -> None:
    for name, root in (("a", photos), ("b", others)):
        for seed in (0, 1):
            run(recipe(root, f"seed={seed}"), tmp_path / f"runs/{name}{seed}", lines=False)
    groups = grouped(read_runs([tmp_path / "runs"]))
    assert [[one.name for one in group.runs] for group in groups] == [["a0", "a1"], ["b0", "b1"]]
    assert differing(groups) == {"data.root": [str(photos), str(others)]}
    assert [reference_of(group, groups) for group in groups] == [None, None]
    rows = content_of(read_runs([tmp_path / "runs"]))["summary"]["rows"]
    assert [row["cells"][0]["num"] for row in rows] == [2, 2]


def test_runs_on_the_same_photographs_at_other_places_are_one_experiment(
    photos: Path, tmp_path: Path
) -> None:
    run(recipe(photos), tmp_path / "runs/a", lines=False)
    photos = photos.rename(tmp_path / "moved")
    run(recipe(photos, "seed=1"), tmp_path / "runs/b", lines=False)
    assert sizes(tmp_path / "runs") == [2]


def test_other_photographs_at_the_same_place_are_another_experiment(
    photos: Path, others: Path, tmp_path: Path
) -> None:
    run(recipe(photos), tmp_path / "runs/a", lines=False)
    shutil.rmtree(photos)
    others.rename(photos)
    run(recipe(photos, "seed=1"), tmp_path / "runs/b", lines=False)
    groups = grouped(read_runs([tmp_path / "runs"]))
    assert [len(group.runs) for group in groups] == [1, 1]
    assert "other images" in groups[1].label


def test_runs_without_a_fingerprint_go_by_their_root(
    photos: Path, others: Path, tmp_path: Path
) -> None:
    for name, root, seed in (("a", photos, 0), ("b", photos, 1), ("c", others, 2)):
        run(recipe(root, f"seed={seed}"), tmp_path / f"runs/{name}", lines=False)
    forget(tmp_path / "runs/b")
    assert sizes(tmp_path / "runs") == [2, 1]
    forget(tmp_path / "runs/a")
    forget(tmp_path / "runs/c")
    assert sizes(tmp_path / "runs") == [2, 1]


@pytest.mark.parametrize("name", ["digits", "cifar10", "cifar100", "tiny_imagenet", "random"])
def test_the_root_of_a_set_that_its_name_fixes_does_not_matter(name: str, tmp_path: Path) -> None:
    for seed, root in enumerate(("here", "there")):
        make_run(tmp_path / root, "sam", seed, f"data.name={name}", f"data.root={root}",
                 "data.label_noise=0")  # fmt: skip
    assert sizes(tmp_path) == [2]


def test_a_run_goes_on_with_its_images_at_another_place_and_not_with_others(
    photos: Path, others: Path, tmp_path: Path
) -> None:
    done = run(recipe(photos), tmp_path / "run", lines=False)
    moved = shutil.copytree(photos, tmp_path / "moved")
    assert run(recipe(moved), tmp_path / "run", lines=False) == done
    half = shutil.copytree(tmp_path / "run", tmp_path / "half")
    (half / "result.json").unlink()
    for folder in (tmp_path / "run", half):
        with pytest.raises(UserError, match=r"on other images \(files of other names or contents"):
            run(recipe(others), folder, lines=False)
    assert run(recipe(moved), half, lines=False)["steps"] == done["steps"]


def study(folder: Path, root: Path, seed: int = 0) -> None:
    loaded.cache_clear()
    file = folder.parent / "photos.toml"
    file.write_text(STUDY.format(seed=seed))
    conduct(load_study(file, [*OPTIONS, f"data.root={root}"]), folder)


def test_a_study_of_other_photographs_is_another_study(
    photos: Path, others: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(photos, tmp_path / "moved")
    study(tmp_path / "a", photos)
    study(tmp_path / "a", moved)
    with pytest.raises(UserError, match="on other images"):
        study(tmp_path / "a", others)
    study(tmp_path / "b", moved, seed=1)
    study(tmp_path / "c", others, seed=2)
    found, problems = read_studies([tmp_path / name for name in "abc"])
    assert problems == []
    assert [sorted(one.accuracies) for each in found for one in each.final] == [[0, 1]] * 2 + [
        [2]
    ] * 2


def test_a_sweep_does_not_go_on_with_other_photographs(
    photos: Path, others: Path, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    ranges = (
        "sweep.ranges.optimizer.lr={low=0.01, high=0.1}",
        "data.validation=0.5",
        "train.batch_size=3",
    )
    sweep(recipe(photos, *ranges), tmp_path / "sweep", trials=1)
    with pytest.raises(UserError, match="on other images"):
        sweep(recipe(others, *ranges), tmp_path / "sweep", trials=2)
    moved = shutil.copytree(photos, tmp_path / "moved")
    assert len(sweep(recipe(moved, *ranges), tmp_path / "sweep", trials=2)) == 2


def test_a_fingerprint_is_of_the_images_not_of_how_they_lie(photos: Path, tmp_path: Path) -> None:
    def of(root: Path) -> str | None:
        return read_folder(root, image_size=8).fingerprint

    first = of(photos)
    for pack, suffix in ((tarred, "tar"), (zipped, "zip"), (tar_of_tars, "tar")):
        root = tmp_path / pack.__name__
        root.mkdir()
        for half in ("train", "val"):
            pack(photos / half, root / f"{half}.{suffix}")
        assert of(root) == first
    file = photos / "train/ant/1.jpg"
    content = file.read_bytes()
    file.write_bytes(content + b"x")
    assert of(photos) != first
    file.write_bytes(content)
    assert of(photos) == first
    file.rename(photos / "train/ant/2.jpg")
    assert of(photos) != first
