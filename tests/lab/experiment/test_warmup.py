"""The warm-up of ρ: capped in a short training, the same for every method, recorded, shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from typer.testing import CliRunner

import crsam
from crsam.lab.cli.app import app
from crsam.lab.experiment.build import build
from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.recipe import Recipe
from crsam.lab.experiment.run import run
from crsam.lab.experiment.splits import build_data, num_train
from crsam.lab.experiment.toml import load_recipe, recipes, studies
from crsam.lab.experiment.warmup import cap_warmup
from crsam.lab.train.distributed import World
from crsam.progress import say_once
from lab.data.photos import write_photos
from lab.experiment.runs import assert_same, tiny


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    say_once.cache_clear()


def warmup_of(recipe: Recipe) -> int:
    optimizer = build(recipe, World()).training.optimizer
    assert isinstance(optimizer, crsam.SharpnessAware)
    return optimizer.warmup


def capped(recipe: Recipe, steps: int) -> int | None:
    base = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    if recipe.method == recipe.optimizer.name:
        return cap_warmup(base, recipe, steps)
    options = {**recipe.method_options}
    return cap_warmup(crsam.make(recipe.method, base, **options), recipe, steps)


def test_the_warmup_is_at_most_a_fifth_of_the_training() -> None:
    assert warmup_of(tiny()) == 3  # of 15 steps
    assert warmup_of(tiny("train.epochs=20")) == 20  # of 100
    assert warmup_of(tiny("train.epochs=200")) == 200  # of 1000
    assert warmup_of(tiny("methods.crsam.warmup=200")) == 200  # the user has fixed it
    assert warmup_of(tiny("train.rho_warmup=2")) == 2


def test_without_a_common_warmup_each_method_has_its_own_default() -> None:
    assert warmup_of(tiny("train.rho_warmup=none", "method=sam")) == 0
    assert warmup_of(tiny("train.rho_warmup=none")) == 3
    assert warmup_of(tiny("train.rho_warmup=none", "train.epochs=200")) == 200


@pytest.mark.parametrize("method", ["sgd", *crsam.methods()])
def test_a_long_training_is_as_the_library_would_do_it(method: str) -> None:
    recipe = tiny("train.rho_warmup=none", f"method={method}")
    base = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    default = None if method == "sgd" else crsam.make(method, base).warmup
    for steps in (1000, 1001, 78_000):  # 200 is no more than a fifth of them
        assert capped(recipe, steps) == default


def test_a_short_training_reaches_its_radius(tmp_path: Path) -> None:
    run(tiny("log.every=1"), tmp_path / "capped", lines=False)
    run(tiny("log.every=1", "methods.crsam.warmup=200"), tmp_path / "fixed", lines=False)

    def radii(name: str) -> list[float]:
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [line["rho"] for line in lines if line["kind"] == "train"]

    assert radii("capped") == pytest.approx([0.1 / 3, 0.2 / 3] + [0.1] * 13)
    assert radii("fixed") == pytest.approx([0.1 * k / 200 for k in range(1, 16)])


def test_a_capped_run_is_the_run_with_that_warmup(tmp_path: Path) -> None:
    run(tiny(), tmp_path / "capped", lines=False)
    run(tiny("methods.crsam.warmup=3"), tmp_path / "fixed", lines=False)
    assert_same(tmp_path / "capped", tmp_path / "fixed")


@pytest.mark.parametrize(("method", "used"), [("crsam", 3), ("sam", 3), ("sgd", None)])
def test_the_warmup_that_was_used_is_recorded(method: str, used: Any, tmp_path: Path) -> None:
    result = run(tiny(f"method={method}"), tmp_path, lines=False)
    assert result["rho_warmup"] == used
    about = json.loads((tmp_path / "environment.json").read_text())
    assert about["rho_warmup"] == used
    assert about["options"].get("warmup") == (used and 200)  # what the recipe asks for


@pytest.mark.parametrize(
    ("warmup", "said"),
    [
        (200, "methods.crsam.warmup = 200, but the training has 15 steps: ρ never reaches"),
        (8, "methods.crsam.warmup = 8 is more than half of the training's 15 steps"),
        (7, ""),
    ],
)
def test_a_fixed_warmup_that_is_too_long_is_one_warning(
    warmup: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tiny(f"methods.crsam.warmup={warmup}"), tmp_path, lines=False)
    lines = [line for line in capsys.readouterr().err.splitlines() if "warmup" in line]
    assert len(lines) == bool(said)
    assert said in "".join(lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), ["157 of 1,437 training images are left out of every epoch"]),
        (("train.batch_size=479",), []),
        (("train.batch_size=1000",), ["563 of 1,437 training images are shown twice in every"]),
    ],
)
def test_images_that_do_not_fill_a_batch_are_told_in_one_line(
    words: tuple[str, ...], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("sgd", "sam"):  # once for all runs of a comparison
        run(tiny(f"method={method}", "train.epochs=1", *words), tmp_path / method, lines=False)
    lines = [line for line in capsys.readouterr().err.splitlines() if "training images" in line]
    assert len(lines) == len(said)
    assert all(line.startswith(words) for line, words in zip(lines, said))


def test_a_run_that_was_recorded_without_the_common_warmup_is_still_known(tmp_path: Path) -> None:
    recipe = tiny("train.rho_warmup=none")
    result = run(recipe, tmp_path, lines=False)
    assert run(tiny(), tmp_path, lines=False) == result  # CR-SAM's own default is 200 as well
    with pytest.raises(crsam.errors.UserError, match=r"methods\.crsam\.warmup: 200 there, 7 here"):
        run(tiny("train.rho_warmup=7"), tmp_path, lines=False)
    plain = run(tiny("train.rho_warmup=none", "method=sgd"), tmp_path / "sgd", lines=False)
    assert run(tiny("method=sgd"), tmp_path / "sgd", lines=False) == plain  # it has no ρ


def dry(*words: str) -> list[str]:
    ended = CliRunner().invoke(app, [*words, "--dry-run"], catch_exceptions=False)
    return [line for line in ended.stdout.splitlines() if line.startswith("# ")]


def test_a_dry_run_shows_the_steps_and_the_same_warmup_for_all(tmp_path: Path) -> None:
    assert dry("compare", "demo", "--methods", "sgd,sam,asam,crsam") == [
        "# 40 epochs of 22 steps: 880 steps",
        "# sam: warm-up of ρ over 176 steps",
        "# asam: warm-up of ρ over 176 steps",
        "# crsam: warm-up of ρ over 176 steps",
    ]
    shown, warned = dry("train", "digits", "train.epochs=4", "methods.crsam.warmup=200")[1:]
    assert shown == "# crsam: warm-up of ρ over 200 steps"
    assert "methods.crsam.warmup = 200, but the training has 88 steps" in warned
    assert warned.endswith("without it the warm-up is at most 17 steps")
    assert dry("train", "folder", f"data.root={tmp_path}") == [
        "# crsam: warm-up of ρ over 200 steps, or a fifth of the training if that is less"
    ]


def test_images_are_counted_as_a_run_counts_them(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    for words in ((), ("data.validation=0.2",), ("data.test_share=0.2", "data.validation=0.1")):
        recipe = tiny(*words)
        assert num_train(recipe) == len(build_data(recipe, cpu).train)
    recipe = load_recipe("folder", [f"data.root={write_photos(tmp_path)}", "data.validation=0.3"])
    assert num_train(recipe) == len(build_data(recipe, cpu).train)
    assert num_train(load_recipe("cifar10/quick", ["data.validation=0.1"])) == 45_000


@pytest.mark.parametrize("name", [name for name in recipes() if not name.startswith("bench/")])
def test_every_recipe_gives_all_methods_the_same_warmup(name: str) -> None:
    recipe = load_recipe(name)
    for steps in (90, 880, 78_000):
        found = {capped(recipe.with_method(m), steps) for m in ("sam", "rsam", "crsam")}
        assert len(found) == 1
        assert found != {0}


MEANT = {
    "cifar10_paper": {"SAM": 0, "SAM at 0.1": 0},
    "cifar10_printed": {"SAM": 0, "CR-SAM as printed": 0},
    "cifar10_weight_decay": {"SAM": 0},
    "imagenette_resnet50": dict.fromkeys(("SAM", "R-SAM", "CR-SAM"), 100),
    "imagenette_vit_s32": dict.fromkeys(("SAM", "R-SAM", "CR-SAM"), 100),
}
"""Steps of warm-up in the committed results of studies; 200 where nothing is said."""


@pytest.mark.filterwarnings("ignore:with alpha = beta")
@pytest.mark.parametrize("name", studies())
def test_studies_mean_what_they_meant_when_their_results_were_committed(name: str) -> None:
    study = load_study(name)
    shortest = 340 if name.startswith("digits") else 1460  # steps of their runs
    for contestant in study.contestants:
        recipe = study.recipe_of(contestant, study.settings(contestant)[0], 0)
        used = capped(recipe, shortest)
        if used is not None:
            assert used == MEANT.get(name, {}).get(contestant, 200), contestant
            assert used == recipe.all_method_options["warmup"]
