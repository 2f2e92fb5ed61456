"""``init = FILE``: read once, before the first step, and written down."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from crsam.errors import UserError
from crsam.lab.experiment import build as building
from crsam.lab.experiment.comparison import compare
from crsam.lab.experiment.fair.conduct import conduct
from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.recipe import Recipe, differences
from crsam.lab.experiment.run import evaluate_run, run
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.models import make_model
from crsam.lab.train import interrupt
from crsam.lab.train.distributed import World
from crsam.lab.train.interrupt import Stopped
from lab.experiment.runs import assert_same, tiny
from lab.experiment.test_ranks import torchrun


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Of the tiny recipe's model, for three classes instead of ten."""
    torch.manual_seed(7)
    torch.save(make_model("digits_mlp", 3, width=8).state_dict(), tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def first_weights(recipe: Recipe) -> dict[str, torch.Tensor]:
    return building.build(recipe, World(), lines=False).training.model.state_dict()


def test_a_run_begins_from_the_file_and_says_so(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny(f"init={weights}", "train.ema=0.9")
    given = torch.load(weights, weights_only=True)
    start, drawn = first_weights(recipe), first_weights(tiny())
    for name, value in start.items():
        source = drawn if name.startswith("layers.5") else given
        assert torch.equal(value, source[name]), name
    run(recipe, tmp_path / "run", lines=False)
    line = f"from {weights}, 4 of 6 tensors; new: layers.5.weight, layers.5.bias"
    assert line in capsys.readouterr().err
    assert json.loads((tmp_path / "run/init.json").read_text()) == {
        "file": str(weights),
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "num_taken": 4,
        "interpolated": [],
        "new": ["layers.5.weight", "layers.5.bias"],
    }
    assert load_recipe(tmp_path / "run/recipe.toml") == recipe


def test_a_run_goes_on_without_the_file(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(f"init={weights}")
    run(recipe, tmp_path / "whole", lines=False)
    count = itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(interrupt.Stop, "asked", property(lambda stop: next(count) == 7))
        with pytest.raises(Stopped):
            run(recipe, tmp_path / "broken", lines=False)
    weights.unlink()
    run(recipe, tmp_path / "broken", lines=False)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    assert evaluate_run(tmp_path / "broken")[0] == 15


def test_an_earlier_run_is_gone_on_from(tmp_path: Path) -> None:
    run(tiny("train.ema=0.5"), tmp_path / "first", lines=False)
    state = torch.load(tmp_path / "first/checkpoint.pt", weights_only=True)["training"]
    for place in (tmp_path / "first", tmp_path / "first/checkpoint.pt"):
        for name, value in first_weights(tiny(f"init={place}")).items():
            assert torch.equal(value, state["average"][f"module.{name}"])


def test_another_file_is_another_recipe_and_a_changed_one_is_told(
    weights: Path, tmp_path: Path
) -> None:
    recipe = tiny(f"init={weights}")
    run(recipe, tmp_path / "run", lines=False)
    with pytest.raises(UserError, match=r"another recipe \(init: .* there, nothing here\)"):
        run(tiny(), tmp_path / "run", lines=False)
    torch.save(make_model("digits_mlp", 3, width=8).state_dict(), weights)
    with pytest.raises(UserError, match=r"has changed since the run in .* began from it"):
        run(recipe, tmp_path / "run", lines=False)
    run(recipe, tmp_path / "run", lines=False, fresh=True)
    began = json.loads((tmp_path / "run/init.json").read_text())
    assert began["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_fresh_without_a_file_forgets_it(weights: Path, tmp_path: Path) -> None:
    run(tiny(f"init={weights}"), tmp_path / "run", lines=False)
    run(tiny(), tmp_path / "run", lines=False, fresh=True)
    assert not (tmp_path / "run/init.json").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_run_does_not_overwrite_what_it_begins_from(fresh: bool, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "run", lines=False)
    before = (tmp_path / "run/checkpoint.pt").read_bytes()
    with pytest.raises(UserError, match=r"a checkpoint that it will overwrite\. Give another"):
        run(tiny(f"init={tmp_path / 'run'}"), tmp_path / "run", lines=False, fresh=fresh)
    assert (tmp_path / "run/checkpoint.pt").read_bytes() == before


def test_what_is_wrong_with_the_file_is_told_before_data_is_read(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "build_data", lambda *args: pytest.fail("data was read"))
    with pytest.raises(UserError, match=r"init: .*nowhere does not exist"):
        run(tiny("init=nowhere"), tmp_path / "run", lines=False)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"init = '.*weights.pt': tensors do not fit .*layers.1"):
        run(tiny(f"init={weights}", "model.width=9"), tmp_path / "run", lines=False)


def test_comparisons_and_studies_begin_from_it(weights: Path, tmp_path: Path) -> None:
    recipe = tiny(f"init={weights}", "train.epochs=1")
    compare(recipe, ["sgd", "sam"], 1, tmp_path / "compare")
    study = load_study("digits", [
        f"init={weights}", "model.width=8", "train.epochs=1", "train.batch_size=256",
        "study.seeds=[0]", "study.choose.grid.rho=[0.1]", "study.choose.epochs=1",
    ])  # fmt: skip
    conduct(study, tmp_path / "study")
    found = [json.loads(file.read_text())["num_taken"] for file in tmp_path.rglob("init.json")]
    assert found == [4] * (2 + 5)
    torch.save(make_model("digits_mlp", 3, width=8).state_dict(), weights)
    for again in (
        lambda: compare(recipe, ["sgd", "sam"], 1, tmp_path / "compare"),
        lambda: conduct(study, tmp_path / "study"),
    ):
        with pytest.raises(UserError, match="has changed since"):
            again()


def test_two_processes_begin_from_it_as_one_does(weights: Path, tmp_path: Path) -> None:
    words = ["digits", "model.width=8", "train.epochs=1", "train.batch_size=256", f"init={weights}",
             "train.precision=float64", "method=sam"]  # fmt: skip
    run(load_recipe("digits", words[1:]), tmp_path / "one", lines=False)
    ended = torchrun("-m", "crsam", "train", *words, "--out", str(tmp_path / "two"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("4 of 6 tensors") == 1
    one, two = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["training"]["model"]
        for name in ("one", "two")
    )
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("value", "message"),
    [(3, "init must be .*text.*, got 3"), ("", "init must be a file or \"none\", got ''")],
)
def test_bad_values_are_told(value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Recipe(init=value)


def test_none_is_said_by_saying_nothing() -> None:
    assert load_recipe("digits", ["init=none"]).init is None
    assert differences(Recipe(), Recipe(init="a.pt")) == ['init: nothing there, "a.pt" here']


@pytest.mark.parametrize("method", ["sgd", "crsam"])
def test_the_backbone_learns_at_its_own_rate(method: str) -> None:
    def moved(share: float) -> dict[str, torch.Tensor]:
        recipe = tiny(f"method={method}", f"train.backbone_lr={share}", "optimizer.momentum=0",
                      "optimizer.weight_decay=0", "methods.crsam.warmup=0",
                      "train.precision=float64")  # fmt: skip
        parts = building.build(recipe, World(), lines=False)
        before = {k: v.clone() for k, v in parts.training.model.state_dict().items()}
        parts.training.set_rates(0.5)
        parts.take_step(next(parts.batches.epoch(0)))
        return {k: v - before[k] for k, v in parts.training.model.state_dict().items()}

    whole, less = moved(1), moved(0.1)
    for name, step in whole.items():
        share = 1 if name.startswith("layers.5") else 0.1
        torch.testing.assert_close(less[name], share * step, rtol=1e-9, atol=1e-12)


def test_two_rates_go_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny("train.backbone_lr=0.1")
    run(recipe, tmp_path / "whole", lines=False)
    count = itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(interrupt.Stop, "asked", property(lambda stop: next(count) == 7))
        with pytest.raises(Stopped):
            run(recipe, tmp_path / "broken", lines=False)
    run(recipe, tmp_path / "broken", lines=False)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    lines = (tmp_path / "whole/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["lr"] > 0.09  # the head's
