"""Landscapes of runs: what the command computes, refuses, keeps and goes on from."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crsam import curvature, landscape
from crsam.errors import UserError
from crsam.lab.data.batches import in_order
from crsam.lab.experiment import landscape as of_runs
from crsam.lab.experiment.landscape import View, landscape_runs
from crsam.lab.experiment.measure import Setting, losses, measure_run, sample_of
from crsam.lab.experiment.restore import restored
from crsam.lab.experiment.run import run
from crsam.lab.experiment.spectrum import spectrum_run
from crsam.lab.train.distributed import World
from crsam.lab.train.interrupt import Stop, Stopped
from lab.experiment.runs import tiny
from lab.experiment.test_ranks import torchrun
from landscape.test_resume import same

FEW: dict[str, Any] = {"points": 3, "samples": 60}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of a net with batch norm."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("sgd", "sam", "crsam"):
        options = (f"method={method}", "model=digits_conv", "model.width=2")
        run(tiny(*options), folder / method, lines=False)
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> list[Path]:
    return [Path(shutil.copytree(trained / m, tmp_path / m)) for m in ("sgd", "sam", "crsam")]


def at(model: Any, run_: Any, samples: int = 60) -> float:
    """The loss of a model on the images of a landscape."""
    images = sample_of(run_.images("train"), samples)
    model.eval()
    (batch,) = in_order(images, run_.splits.feed, 500)
    with torch.no_grad():
        return losses(model, batch).double().mean().item()


def test_every_run_gets_a_landscape_with_its_own_loss_in_the_middle(runs: list[Path]) -> None:
    found = landscape_runs(runs, View(**FEW))
    assert list(found) == [folder / "landscape.npz" for folder in runs]
    for folder, surface in zip(runs, found.values()):
        there = restored(folder, World())
        assert surface.loss.shape == (3, 3)
        assert surface.loss[1, 1] == pytest.approx(at(there.model, there), rel=1e-6)
        loaded, about = landscape.load(folder / "landscape.npz")
        same(surface, loaded)
        assert about["kind"] == "filter"
        assert about["of"] == [f"{folder.parent.name}/{folder.name}"]
        assert (about["split"], about["samples"], about["step"]) == ("train", 60, 15)
        assert (about["complete"], about["batch_norm"]) == (True, "running")
        assert loaded.accuracy is not None


def test_a_corner_is_the_loss_along_the_shared_draws(runs: list[Path]) -> None:
    surface = landscape_runs(runs[:1], View(seed=4, span=0.5, **FEW))[runs[0] / "landscape.npz"]
    there = restored(runs[0], World())
    first, second = landscape.random_directions(there.model, seed=4)
    with torch.no_grad():
        for name in first:
            there.model.get_parameter(name).add_(0.5 * first[name] - 0.5 * second[name])
    assert surface.loss[0, 2] == pytest.approx(at(there.model, there), rel=1e-5)


def test_a_line_leads_from_one_model_to_the_other(runs: list[Path]) -> None:
    view = View(kind="line", batch_norm="running", **FEW)
    ((file, surface),) = landscape_runs(runs[:2], view).items()
    assert file == runs[0] / "landscape-line.npz"
    assert surface.y is None
    for x, folder in ((0.0, runs[0]), (1.0, runs[1])):
        there, first = restored(folder, World()), restored(runs[0], World())
        (where,) = np.flatnonzero(surface.x == x)
        assert surface.loss[where] == pytest.approx(at(there.model, first), rel=1e-5)
    about = landscape.load(file)[1]
    assert about["places"] == [[0.0], [1.0]]
    assert len(about["of"]) == 2


def test_between_models_batch_norm_is_recomputed_unless_one_says_otherwise(
    runs: list[Path],
) -> None:
    landscape_runs(runs[:2], View(kind="line", **FEW))
    assert landscape.load(runs[0] / "landscape-line.npz")[1]["batch_norm"] == "recomputed"


def test_a_plane_goes_through_three_models(runs: list[Path]) -> None:
    view = View(kind="plane", points=5, samples=60)
    ((file, surface),) = landscape_runs(runs, view).items()
    about = landscape.load(file)[1]
    assert surface.loss.shape == (5, 5)
    for x, y in about["places"]:
        assert surface.x[0] < x < surface.x[-1]
        assert surface.y is not None
        assert surface.y[0] < y < surface.y[-1]


def test_eigenvectors_are_the_hessians_and_are_searched_for_once(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View(kind="eigenvector", dimensions=1, points=3, span=0.1, samples=60)
    file = runs[0] / "landscape-eigenvector.npz"
    stop = Stop()
    stop.asked = True
    with monkeypatch.context() as patch:
        patch.setattr(of_runs, "stoppable", lambda: nullcontext(stop))
        with pytest.raises(Stopped):
            landscape_runs(runs[:1], view)
    kept = torch.load(file.with_suffix(".directions.pt"), weights_only=True)
    with monkeypatch.context() as patch:  # not searched for again
        patch.setattr(curvature, "top_eigenpairs", pytest.fail)
        surface = landscape_runs(runs[:1], view)[file]
        same(surface, landscape_runs(runs[:1], view)[file])  # nor once it is complete
    top = measure_run(runs[0], ["top_eigenvalue"], samples=60)["top_eigenvalue"].value
    assert landscape.load(file)[1]["eigenvalues"] == pytest.approx([top], rel=1e-3)
    there = restored(runs[0], World())
    with torch.no_grad():
        for name, step in kept["vectors"][0].items():
            there.model.get_parameter(name).add_(0.1 * step)
    assert surface.loss[2] == pytest.approx(at(there.model, there), rel=1e-5)


def test_eigenvectors_of_other_weights_are_not_taken_for_these(runs: list[Path]) -> None:
    view = View(kind="eigenvector", dimensions=1, **FEW)
    landscape_runs(runs[:1], view)
    shutil.copy(runs[1] / "checkpoint.pt", runs[0] / "checkpoint.pt")  # as many steps, trained anew
    with pytest.raises(UserError, match="holds another landscape"):
        landscape_runs(runs[:1], view)
    ours = landscape_runs(runs[:1], view, fresh=True)
    same(*ours.values(), *landscape_runs(runs[1:2], view).values())


def test_what_is_done_is_not_done_again_and_fresh_starts_over(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = landscape_runs(runs[:1], View(**FEW))
    with monkeypatch.context() as patch:
        looked: list[object] = []
        losses = of_runs.losses_and_right
        patch.setattr(of_runs, "losses_and_right", lambda *a: (looked.append(a), losses(*a))[1])
        same(*first.values(), *landscape_runs(runs[:1], View(**FEW)).values())
        assert len(looked) == 1  # at one point, to see that it is the same loss
    with pytest.raises(UserError, match=r"holds another landscape \(seed: 0 there, 1 here\)"):
        landscape_runs(runs[:1], View(seed=1, **FEW))
    landscape_runs(runs[:1], View(seed=1, **FEW), stem="other")
    assert (runs[0] / "other.npz").exists()
    landscape_runs(runs[:1], View(seed=1, **FEW), fresh=True)
    assert landscape.load(runs[0] / "landscape.npz")[1]["seed"] == 1


def test_two_processes_write_the_array_of_one(runs: list[Path], tmp_path: Path) -> None:
    words = ["--points", "3", "--samples", "60", "--threads", "1", "--device", "cpu"]
    ended = torchrun("-m", "crsam", "landscape", *map(str, runs[:2]), *words, "-o", "two")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("3 × 3 points") == 2
    for file, surface in landscape_runs(runs[:2], View(**FEW)).items():
        same(surface, landscape.load(file.with_stem("two"))[0])


def test_spectrum_is_the_density_at_the_runs_model(runs: list[Path]) -> None:
    file = spectrum_run(runs[0], samples=60, how=Setting(seed=2))
    assert file == runs[0] / "spectrum-train.npz"
    there = restored(runs[0], World())
    there.model.eval()
    (batch,) = in_order(sample_of(there.images("train"), 60), there.splits.feed, 60)
    expected = curvature.spectral_density(there.model, losses, [batch], seed=2)
    with np.load(file, allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["nodes"], expected.nodes, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(arrays["weights"], expected.weights, rtol=1e-3, atol=1e-3)
        assert arrays["num_weights"] == expected.num_weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "square"}, "kind must be one of filter"),
        ({"dimensions": 3}, "dimensions must be 1 or 2, got 3"),
        ({"span": 0}, "span must be above 0"),
        ({"points": 0}, "points must be at least 1"),
    ],
)
def test_views_that_cannot_be_are_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        View(**change)


def test_runs_that_do_not_fit_are_told(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a line goes through 2 runs, got 3"):
        landscape_runs(runs, View(kind="line"))
    with pytest.raises(UserError, match=r"there is no folder .*nowhere"):
        landscape_runs([runs[0], tmp_path / "nowhere"], View(**FEW))
    assert not (runs[0] / "landscape.npz").exists()  # told before anything is computed
    with pytest.raises(UserError, match="name of a landscape"):
        landscape_runs(runs[:1], View(**FEW), stem="../x")
    run(tiny("method=sam"), tmp_path / "mlp", lines=False)
    with pytest.raises(UserError, match="not of one architecture"):
        landscape_runs([runs[0], tmp_path / "mlp"], View(kind="line", **FEW))
    state = torch.load(runs[1] / "checkpoint.pt", weights_only=True)
    next(iter(state["training"]["model"].values())).fill_(torch.nan)
    torch.save(state, runs[1] / "checkpoint.pt")
    with pytest.raises(UserError, match="sam: the weights are not finite, the run has diverged"):
        landscape_runs(runs[1:2], View(**FEW))
    (runs[2] / "checkpoint.pt").unlink()
    with pytest.raises(UserError, match="has no checkpoint yet"):
        landscape_runs(runs[2:], View(**FEW))
