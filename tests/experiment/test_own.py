"""Methods and models of a user's own, from a file that the command line imports first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import crsam
from crsam import models
from crsam.cli import app
from crsam.errors import UserError
from crsam.experiment.toml import load_recipe
from crsam.optim import Gradient
from crsam.optim.methods import METHODS
from experiment.runs import TINY, assert_same_state, outcome

ROOT = Path(__file__).parents[2]


class Plain(crsam.SharpnessAware):
    def __init__(self, base: Any, rho: float = 0.1, **common: Any) -> None:
        super().__init__(base, Gradient(rho), **common)


def the_page() -> str:
    """The file of the docs."""
    page = (ROOT / "docs/adding_a_method.md").read_text()
    return re.findall(r"```python\n(# mine\.py\n.*?)```", page, re.DOTALL)[0]


def crsam_with(file: Path, *words: str) -> Result:
    try:
        return CliRunner().invoke(app, ["--import", str(file), *words], catch_exceptions=False)
    finally:
        METHODS.pop("mysam", None)  # as in a process of its own
        sys.modules.pop(file.stem, None)
        sys.path.remove(str(file.parent))


def test_the_file_of_the_docs_trains_and_resumes_as_its_parts_do(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(the_page())
    mine, ours = tmp_path / "runs/mine", tmp_path / "runs/ours"
    words = ["train", "digits", *TINY, "method=MySAM", "methods.mysam.rho=0.2", "--out", str(mine)]
    ended = crsam_with(file, *words)
    assert ended.exit_code == 0, ended.output
    assert "mysam, seed 0: test accuracy" in ended.stdout
    options = 'methods.crsam={rho=0.2, alpha=0.5, beta=0.0, form="linear", trust=0.1, warmup=0}'
    recipe = ["method=crsam", options, "--out", str(ours)]
    ended = CliRunner().invoke(app, ["train", "digits", *TINY, *recipe], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    a, b = outcome(mine), outcome(ours)
    assert_same_state(a[0]["model"], b[0]["model"])
    ended = crsam_with(file, *words)
    assert "has been done already" in ended.output
    # Whoever looks at the run later has to import the file as well, and is told.
    with pytest.raises(UserError, match=r"unknown method 'mysam'.*crsam --import FILE"):
        CliRunner().invoke(app, ["evaluate", str(mine)], catch_exceptions=False)
    assert "accuracy" in crsam_with(file, "evaluate", str(mine)).stdout


def test_a_study_has_ones_own_method_and_model(tmp_path: Path) -> None:
    file = tmp_path / "both_of_mine.py"
    file.write_text(
        the_page()
        + """
from torch import nn
from crsam.models import register

@register
def one_layer(num_classes: int, width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(width, num_classes))
"""
    )
    (tmp_path / "fair.toml").write_text(
        """base = "digits"
model = {name = "one-layer"}
[train]
epochs = 1
[study]
seeds = [0, 1]
reference = "SAM"
[study.choose]
validation = 0.2
[study.choose.grid]
rho = [0.05, 0.1]
[study.contestants.SAM]
method = "sam"
[study.contestants.mine]
method = "mysam"
grid = {alpha = [0.1, 0.5]}
"""
    )
    out = tmp_path / "study"
    ended = crsam_with(file, "study", str(tmp_path / "fair.toml"), "--out", str(out))
    assert ended.exit_code == 0, ended.output
    assert re.search(r"mine +rho = 0\.\d+, alpha = 0\.\d", ended.stdout)
    model = torch.load(next(out.glob("final/mine/seed0/checkpoint.pt")), weights_only=True)
    assert list(model["training"]["model"]) == ["1.weight", "1.bias"]


def test_a_module_beside_the_current_folder_is_imported(tmp_path: Path) -> None:
    (tmp_path / "own_module.py").write_text(the_page())
    command = [sys.executable, "-m", "crsam", "--import", "own_module", "list", "methods"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1] == "mysam", done.stderr
    command[4] = "own_modul"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "crsam: --import own_modul: ModuleNotFoundError: No module named 'own_modul' "
        "(CRSAM_TRACEBACK=1 shows where)\n"
    )


@pytest.mark.parametrize("name", ["random.py", "models.py", "my-sam.v2.py"])
def test_a_file_is_run_whatever_else_has_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("from beside import *")
    (tmp_path / "beside.py").write_text(the_page())
    command = [sys.executable, "-m", "crsam", "--import", str(tmp_path / name), "list", "methods"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1:] == ["mysam"], done.stderr


def test_a_file_that_is_not_there_or_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--import: there is no file .*none\.py"):
        CliRunner().invoke(
            app, ["--import", str(tmp_path / "none.py"), "list"], catch_exceptions=False
        )
    (tmp_path / "fails.py").write_text("1 / 0")
    with pytest.raises(UserError, match=r"fails\.py: ZeroDivisionError: division by zero"):
        crsam_with(tmp_path / "fails.py", "list")


def test_names_are_found_in_any_spelling_and_only_once() -> None:
    assert crsam.register(Plain) is Plain
    assert crsam.methods()[-1] == "plain"
    assert load_recipe("digits", ["method=PLAIN"]).all_method_options == {"rho": 0.1}
    again = type("Plain", (Plain,), {"__module__": Plain.__module__})
    crsam.register(again)  # as a reload of the file does
    base = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    assert type(crsam.make("plain", base)) is again
    assert crsam.methods().count("plain") == 1
    taken = type("G_SAM", (Plain,), {})
    with pytest.raises(ValueError, match="there is a method 'gsam' already"):
        crsam.register(taken)
    with pytest.raises(ValueError, match="there is a model 'resnet18' already"):
        models.register(
            type("ResNet18", (nn.Module,), {"__init__": lambda self, num_classes: None})
        )


def test_what_cannot_be_a_method_or_model_is_refused() -> None:
    for wrong in (nn.Linear, Plain.__init__, torch.optim.SGD):
        with pytest.raises(TypeError, match=r"derived from crsam\.SharpnessAware"):
            crsam.register(wrong)  # type: ignore[type-var]

    class NoBase(crsam.SharpnessAware):
        def __init__(self, params: Any, **common: Any) -> None: ...

    class NoCommon(crsam.SharpnessAware):
        def __init__(self, base: Any, rho: float = 0.1) -> None: ...

    with pytest.raises(TypeError, match="first argument of NoBase must be base"):
        crsam.register(NoBase)
    with pytest.raises(TypeError, match=r"NoCommon must take \*\*common"):
        crsam.register(NoCommon)
    for wrong in (nn.Linear, 3):
        with pytest.raises(TypeError, match="first argument of a model must be num_classes"):
            models.register(wrong)  # type: ignore[type-var]


def test_nothing_of_these_tests_stays() -> None:
    """Which the other tests of all methods rely on."""
    assert not {"plain", "mysam"} & {*crsam.methods()}
    assert "one_layer" not in models.models()
