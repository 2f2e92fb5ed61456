"""Scores on sets in the true layouts, against what was counted when they were painted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from crsam.errors import UserError
from crsam.lab.data.decoder import View
from crsam.lab.experiment.restore import restored
from crsam.lab.experiment.robustness import evaluate as evaluating
from crsam.lab.experiment.robustness import judged
from crsam.lab.experiment.robustness.evaluate import Asked, evaluate_robustness
from crsam.lab.experiment.robustness.judged import middle_of_run
from crsam.lab.experiment.robustness.show import summary
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.report.page.content import content_of
from crsam.lab.report.runs import read_runs
from crsam.lab.robustness.constants import ALEXNET_ERRORS, NAMES, SEVERITIES
from crsam.lab.train.distributed import World
from lab.robustness.colours import COLOURS, corrupted, paint, right_of_four, trained
from two_ranks import found_by_two_ranks


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and a set in the layout of ImageNet-C."""
    folder = tmp_path_factory.mktemp("made")
    trained(folder)
    corrupted(folder / "c")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


ERRORS = {
    name: 100 - 25 * fmean(right_of_four(name, severity) for severity in SEVERITIES)
    for name in NAMES
}


def test_accuracies_are_those_that_were_painted(made: Path, run: Path) -> None:
    ((found,),) = [list(each.values()) for each in evaluate_robustness([run], Asked(made / "c"))]
    for name in NAMES:
        right = [25.0 * right_of_four(name, severity) for severity in SEVERITIES]
        assert found["accuracy"][name] == right
        assert found["errors"][name] == pytest.approx(ERRORS[name])
    assert found["mean_accuracy"] == pytest.approx(100 - fmean(ERRORS.values()))
    assert (found["num_images"], found["num_classes"], found["missing"]) == (12, 3, [])
    assert found["mce"] is None  # three colours are not ImageNet
    written = json.loads((run / "robustness.json").read_text())["imagenet_c"]
    assert written["accuracy"] == found["accuracy"]
    assert written["step"] == 30
    assert written["versions"]["torch"] == torch.__version__


def test_corruptions_may_lie_in_folders_of_their_kind(made: Path, run: Path) -> None:
    root = corrupted(run.parent / "by_kind", kinds=True)
    (found,) = evaluate_robustness([run], Asked(root))
    assert found["imagenet_c"]["errors"] == pytest.approx(ERRORS)


def test_mce_is_in_alexnets_errors_only_on_all_of_imagenets_classes(
    made: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "NUM_IMAGENET", 3)
    (found,) = evaluate_robustness([run], Asked(made / "c"))
    expected = fmean(ERRORS[name] / ALEXNET_ERRORS[name] for name in NAMES)
    assert found["imagenet_c"]["mce"] == pytest.approx(expected)
    assert found["imagenet_c"]["relative_to"] == "AlexNet"


def test_mce_relative_to_another_run(made: Path, run: Path) -> None:
    other = Path(shutil.copytree(run, run.parent / "other"))
    better = corrupted(run.parent / "better", lambda name, severity: 2 if severity < 5 else 4)
    with pytest.raises(UserError, match=r"other was not evaluated .* --imagenet-c DIR"):
        evaluate_robustness([run], Asked(made / "c", relative_to=other))
    evaluate_robustness([other], Asked(better))
    (found,) = evaluate_robustness([run], Asked(made / "c", relative_to=other))
    section = found["imagenet_c"]
    assert section["relative_errors"]["fog"] == pytest.approx(100 * ERRORS["fog"] / 40)
    assert section["mce"] == pytest.approx(fmean(ERRORS.values()) / 0.4)


def test_what_is_missing_is_named_and_not_averaged_away(made: Path, run: Path) -> None:
    root = Path(shutil.copytree(made / "c", run.parent / "holes"))
    shutil.rmtree(root / "fog")
    shutil.rmtree(root / "snow/4")
    (root / "frost/2/red/3.png").unlink()
    (root / "corrupt.json").write_text("{}")
    (found,) = evaluate_robustness([run], Asked(root))
    section = found["imagenet_c"]
    assert section["missing"] == ["snow/4", "fog", "frost/2 (11 of 12 images)"]
    assert section["mean_accuracy"] is None
    assert section["num_corruptions"] == 12
    left = [ERRORS[name] for name in NAMES if name not in ("fog", "snow", "frost")]
    assert section["of_those_there"]["mean_accuracy"] == pytest.approx(100 - fmean(left))
    assert section["accuracy"]["fog"] == [None] * 5
    assert section["accuracy"]["snow"][3] is None
    assert section["accuracy"]["snow"][2] is not None
    words = summary(section)
    assert "over 12 of 15 corruptions; missing: snow/4, fog, frost/2 (11 of 12 images)" in words
    tables = content_of(read_runs([run]))["robustness"]
    columns = [column["key"] for column in tables[0]["columns"]]
    assert len(columns) == 12
    assert "mean_accuracy" not in columns


def test_renditions_are_chosen_among_the_classes_of_the_set(made: Path, run: Path) -> None:
    """A dark yellow is green to this model, and red if there is no green."""
    root = run.parent / "r"
    yellow = (120, 140, 25)
    for k in range(3):
        paint(root / "red" / f"{k}.png", yellow, side=20, seed=k)
        paint(root / "unknown" / f"{k}.png", yellow, side=20, seed=k)
    paint(root / "blue" / "0.png", COLOURS["blue"], side=30)
    everywhere = restored(run, World(), with_images=False)
    pixels = torch.tensor(yellow, dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    with torch.no_grad():
        logits = everywhere.model.eval()(
            everywhere.splits.feed.plain(pixels, torch.zeros(1)).inputs
        )[0]
    blue, green, red = logits.tolist()
    assert green > red > blue
    (found,) = evaluate_robustness([run], Asked(imagenet_r=root))
    section = found["imagenet_r"]
    assert section["accuracy"] == 100
    assert section["num_images"] == 4
    counts = [section[f"num_classes{of}"] for of in ("", "_of_set", "_of_run")]
    assert counts == [2, 3, 3]


def test_sets_are_kept_side_by_side(made: Path, run: Path) -> None:
    evaluate_robustness([run], Asked(made / "c"))
    evaluate_robustness([run], Asked(imagenet_r=made / "data/val"))
    written = json.loads((run / "robustness.json").read_text())
    assert set(written) == {"imagenet_c", "imagenet_r"}
    tables = content_of(read_runs([run]))["robustness"]
    assert [table["title"].split(":")[0] for table in tables] == ["ImageNet-C", "ImageNet-R"]
    assert tables[1]["rows"][0]["cells"][0]["mean"] == 100


def test_several_runs_are_judged_as_each_is_alone(made: Path, run: Path) -> None:
    other = Path(shutil.copytree(run, run.parent / "other"))
    state = torch.load(other / "checkpoint.pt", weights_only=True)
    for value in state["training"]["model"].values():
        value.zero_()
    torch.save(state, other / "checkpoint.pt")
    first, second = evaluate_robustness([run, other], Asked(made / "c"))
    assert first["imagenet_c"]["errors"] == pytest.approx(ERRORS)
    (alone,) = evaluate_robustness([other], Asked(made / "c"))
    assert second["imagenet_c"]["accuracy"] == alone["imagenet_c"]["accuracy"]
    assert second["imagenet_c"]["errors"] != pytest.approx(ERRORS)


def test_a_run_needs_its_images_only_if_it_forgot_its_classes(made: Path, run: Path) -> None:
    assert json.loads((run / "data.json").read_text())["classes"] == list(COLOURS)
    nowhere = str(run.parent / "nowhere")
    (found,) = evaluate_robustness([run], Asked(made / "c"), root=nowhere)
    (run / "data.json").unlink()  # as runs were before
    with pytest.raises(UserError, match=r"there is no folder .*nowhere"):
        evaluate_robustness([run], Asked(made / "c"), root=nowhere)
    (again,) = evaluate_robustness([run], Asked(made / "c"))
    assert again == found


def _job(rank: int, folder: Path) -> dict[str, Any]:
    judged.BATCH_SIZE = 5
    world = World(torch.device("cpu"), rank, 2)
    (found,) = evaluate_robustness([folder / "run"], Asked(folder / "c"), world)
    return found


def test_two_ranks_share_the_images(made: Path, run: Path) -> None:
    (run.parent / "c").symlink_to(made / "c")
    for found in found_by_two_ranks(_job, run.parent):
        assert found["imagenet_c"]["errors"] == pytest.approx(ERRORS)


def arrays(root: Path, side: int = 8) -> None:
    """As `corrupted`, in the layout of CIFAR-10-C."""
    root.mkdir()
    colours = np.array(list(COLOURS.values()), np.uint8)
    labels = np.repeat(np.arange(3), 4)
    np.save(root / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    for name in NAMES:
        stacked = []
        for severity in SEVERITIES:
            honest = np.tile(np.arange(4), 3) < right_of_four(name, severity)
            shown = np.where(honest, labels, (labels + 1) % 3)
            stacked.append(np.broadcast_to(colours[shown][:, None, None], (12, side, side, 3)))
        np.save(root / f"{name}.npy", np.concatenate(stacked))


def test_arrays_have_the_severities_one_after_the_other(run: Path) -> None:
    root = run.parent / "arrays"
    arrays(root)
    (found,) = evaluate_robustness([run], Asked(cifar_c=root))
    for name in NAMES:
        right = [25.0 * right_of_four(name, severity) for severity in SEVERITIES]
        assert found["cifar_c"]["accuracy"][name] == right
    (root / "fog.npy").unlink()
    (found,) = evaluate_robustness([run], Asked(cifar_c=root))
    assert found["cifar_c"]["missing"] == ["fog"]
    assert found["cifar_c"]["mean_accuracy"] is None


def test_bad_sets_are_one_line(made: Path, run: Path) -> None:
    def fails(words: str, **asked: Path) -> None:
        with pytest.raises(UserError, match=words):
            evaluate_robustness([run], Asked(**asked))

    root = run.parent
    fails("there is no folder", imagenet_c=root / "nowhere")
    fails("holds no corrupted images: .*/CORRUPTION/SEVERITY/CLASS", imagenet_c=made / "data")
    fails("holds no labels.npy", cifar_c=made / "c")
    for name in NAMES:
        paint(root / "others" / name / "1" / "cat" / "0.png", (1, 2, 3))
    fails("none of the run's classes: it has 'cat'", imagenet_c=root / "others")
    fails("none of the run's classes", imagenet_r=root / "others/fog/1")
    for name in NAMES:
        kind = "cat" if name == NAMES[0] else "red"
        paint(root / "others" / name / "1" / kind / "1.png", (1, 2, 3))
    fails(f"{NAMES[0]}/1 has no image of the run's classes", imagenet_c=root / "others")
    (root / "r/red").mkdir(parents=True)
    (root / "r/red/0.png").write_text("nothing")
    fails("red/0.png cannot be read as an image", imagenet_r=root / "r")
    arrays(root / "large", side=9)
    fails(r"3 classes and images of 9×9; the run has 3 and images of 3×8×8", cifar_c=root / "large")
    np.save(root / "large/fog.npy", np.zeros((7, 9, 9, 3), np.uint8))
    fails(r"fog.npy must hold bytes of shape \(60, H, W, 3\)", cifar_c=root / "large")
    (root / "large/labels.npy").write_bytes(b"nothing")
    fails("labels.npy cannot be read", cifar_c=root / "large")
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**70},)}}".ljust(117) + "\n"
    lie = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode()
    (root / "large/labels.npy").write_bytes(lie)
    fails("labels.npy cannot be read", cifar_c=root / "large")


def test_copies_of_whole_images_are_framed_as_the_runs_own(
    made: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []

    def noted(*size: int, middle: float | None) -> View:
        asked.append(middle)
        return View(*size, middle=middle)

    monkeypatch.setattr(evaluating, "View", noted)
    monkeypatch.setattr(judged, "middle_of_run", lambda recipe: 0.7)
    evaluate_robustness([run], Asked(made / "c"))
    copied = Path(shutil.copytree(made / "c", tmp_path / "c"))
    for crop in (28, None):
        (copied / "corrupt.json").write_text(json.dumps({"crop": crop}))
        evaluate_robustness([run], Asked(copied))
    assert asked == [None, None, 0.7]  # what was cut out already is not cut again
    windows = load_recipe("folder", ["augment=inception", "data.image_size=8"])
    assert middle_of_run(windows) == 0.875
    assert middle_of_run(load_recipe("folder", ["data.image_size=8"])) is None
    assert middle_of_run(load_recipe("folder", ["data.image_size=8", "data.middle=0.7"])) == 0.7
