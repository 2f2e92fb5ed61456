"""Every figure of the paper: its recipe is true to the paper, runs, and its file is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from crsam.lab.cli import app
from crsam.lab.data.cifar import CIFAR10, CIFAR100
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.run import run
from crsam.lab.experiment.toml import load_recipe, recipes
from lab.data.cifar_files import write_cifar

EVOLUTION = {"approximation_ratio", "hessian_trace", "top_eigenvalue"}
CURVATURE = EVOLUTION | {"gradient_norm", "normalized_trace"}
FIGURES = {  # data, net, method, metrics, split
    "figure1": ("cifar10", "resnet18", "sam", EVOLUTION, "train"),
    "figure1-cifar100": ("cifar100", "resnet18", "sam", EVOLUTION, "train"),
    "figure2": ("cifar10", "resnet18", "sam", CURVATURE, "both"),
    "figure2-cifar100": ("cifar100", "resnet18", "sam", CURVATURE, "both"),
    "figure4": ("cifar100", "pyramidnet110", "crsam", set(), "train"),
    "figure5": ("cifar100", "resnet18", "crsam", {"loss", "accuracy"}, "test"),
}
SMALL = {
    "resnet18": ("model.width=4",),
    "pyramidnet110": ("model.depth=14", "model.alpha=10"),
}
DRAWN = {
    "figure1": "figure1-approximation-ratio",
    "figure2": "figure2-curvature",
    "figure4": "figure4-landscapes",
    "figure5": "figure5-convergence",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both CIFARs, of 20 training images each."""
    folder = tmp_path_factory.mktemp("sets")
    write_cifar(folder / "cifar-10-batches-py", CIFAR10, each=4)
    write_cifar(folder / "cifar-100-python", CIFAR100, each=20)
    return folder


def test_there_is_a_recipe_for_every_figure_and_no_other() -> None:
    known = [name for name in recipes() if name.startswith("paper/figure")]
    assert sorted(known) == sorted(f"paper/{name}" for name in FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_recipes_show_what_the_papers_figures_show(name: str) -> None:
    data, model, method, metrics, split = FIGURES[name]
    recipe, table = load_recipe(f"paper/{name}"), load_recipe(f"{data}/{model}")
    assert (recipe.data.name, recipe.model.name, recipe.method) == (data, model, method)
    assert set(recipe.measure.metrics) == metrics
    assert recipe.measure.split == split
    assert (recipe.optimizer, recipe.methods, recipe.train, recipe.augment) == (
        *(table.optimizer, table.methods, table.train, table.augment),
    )
    if "approximation_ratio" in metrics:
        assert recipe.measure.samples == 5000
        assert recipe.measure.rho == recipe.methods["sam"]["rho"]


@pytest.mark.filterwarnings("ignore:.*probes do not tell the trace:UserWarning")
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_from_two_steps(name: str, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small = SMALL[FIGURES[name][1]]
    given = [f"data.root={root}", "train.batch_size=10", "train.epochs=1", *small]
    measured = ["measure.num_probes=2", "measure.samples=8"]
    recipe = load_recipe(f"paper/{name}", [*given, *(measured if FIGURES[name][3] else [])])
    folder = tmp_path / "run"
    assert run(recipe, folder, lines=False)["steps"] == 2
    kinds = {line["kind"] for line in RunFolder(folder).metrics()}
    wanted = {"train": {"measure"}, "test": {"measure_test"}, "both": {"measure", "measure_test"}}
    if FIGURES[name][3]:
        assert kinds - {"train", "test"} == wanted[FIGURES[name][4]]
    call = CliRunner().invoke
    figure = name.removesuffix("-cifar100")
    if figure == "figure4":
        command = ["landscape", str(folder), "--points", "3", "--samples", "4", "--threads", "1"]
        assert call(app, command).exit_code == 0
    command = ["figures", str(folder), "-o", str(tmp_path / "out"), "--format", "png"]
    ended = call(app, [*command, "--dpi", "40"])
    assert ended.exit_code == 0, ended.output
    assert (tmp_path / "out" / f"{DRAWN[figure]}.png").stat().st_size > 2000
