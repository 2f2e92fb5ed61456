"""Methods and models of a user's own, from a file that the command line imports first."""

from __future__ import annotations

import json
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
from crsam.errors import UserError
from crsam.lab import models
from crsam.lab.cli import app
from crsam.lab.experiment.toml import load_recipe
from crsam.optim import Gradient
from crsam.optim.methods import METHODS
from lab.experiment.runs import TINY, assert_same_state, outcome

ROOT = Path(__file__).parents[3]


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
    given = ["method=MySAM", "methods.mysam.rho=0.2", "methods.mysam.warmup=0"]
    words = ["train", "digits", *TINY, *given, "--out", str(mine)]
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
from crsam.lab.models import register

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
    options = load_recipe("digits", ["method=PLAIN", "train.rho_warmup=none"]).all_method_options
    assert options == {"rho": 0.1}  # not what goes through **common
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


def test_of_what_goes_through_common_no_default_is_claimed() -> None:
    class Calm(crsam.CRSAM):
        def __init__(self, base: Any, rho: float = 0.3, **common: Any) -> None:
            super().__init__(base, rho, trust=0.01, **common)

    crsam.register(Calm)
    recipe = load_recipe("digits", ["method=calm", "train.rho_warmup=none"])
    assert recipe.all_method_options == {"rho": 0.3}
    base = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    assert crsam.make("calm", base).warmup == 200


def test_what_cannot_be_a_method_or_model_is_refused() -> None:
    for wrong in (nn.Linear, Plain.__init__, torch.optim.SGD):
        with pytest.raises(TypeError, match=r"derived from crsam\.SharpnessAware"):
            crsam.register(wrong)  # type: ignore[type-var]

    class NoBase(crsam.SharpnessAware):
        def __init__(self, params: Any, **common: Any) -> None: ...

    class NoCommon(crsam.SharpnessAware):
        def __init__(self, base: Any, rho: float = 0.1) -> None: ...

    class NoInit(crsam.SharpnessAware): ...

    with pytest.raises(TypeError, match="NoInit must have an __init__ of its own"):
        crsam.register(NoInit)
    with pytest.raises(ValueError, match="AdamW is the name of an optimizer"):
        crsam.register(type("AdamW", (Plain,), {}))

    with pytest.raises(TypeError, match="first argument of NoBase must be base"):
        crsam.register(NoBase)
    with pytest.raises(TypeError, match=r"NoCommon must take \*\*common"):
        crsam.register(NoCommon)
    for wrong in (nn.Linear, 3):
        with pytest.raises(TypeError, match="first argument of a model must be num_classes"):
            models.register(wrong)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="a name of its own"):
        models.register(lambda num_classes: nn.Linear(64, num_classes))

    def named(num_classes: int, name: str = "") -> nn.Module: ...  # type: ignore[empty-body]

    with pytest.raises(TypeError, match="may be called name"):
        models.register(named)


HEAD = """import crsam
from typing import TYPE_CHECKING
from crsam.lab.models import register
from crsam.optim import Curvature, Gradient
from torch import nn
"""


def made_of(file: Path, body: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(HEAD + body)
    return file


def method(name: str, parts: str = "Gradient(rho), **common", rho: str = "rho: float = 0.1") -> str:
    return f"""
@crsam.register
class {name}(crsam.SharpnessAware):
    def __init__(self, base, {rho}, **common):
        super().__init__(base, {parts})
"""


def of_a_process(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "crsam", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_what_is_imported_is_what_lies_beside_the_file_and_not_in_the_current_folder(
    tmp_path: Path,
) -> None:
    for folder, rho in (("", 99.0), ("a", 0.1), ("b", 0.7)):
        made_of(tmp_path / folder / "radii.py", f"R = {rho}")
    installed = tmp_path / "a/lib/site-packages"
    installed.mkdir(parents=True)
    (installed / "of_others.py").write_text("")
    path = f"import sys; sys.path.append({str(installed)!r}); import of_others\n"
    words = []
    for folder, name in (("a", "One"), ("b", "Two")):
        body = path + "from radii import R\n" + method(name, rho="rho: float = R")
        words += ["--import", str(made_of(tmp_path / folder / f"{name}.py", body))]
    train = ["train", "digits", *TINY, "method=one", "--out", "run"]
    done = of_a_process(tmp_path, *words[:2], *train)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "run/environment.json").read_text())
    assert kept["options"]["rho"] == 0.1
    assert sorted(kept["imports"].values()) == ["One.py", "radii.py"]
    done = of_a_process(tmp_path, *words, *train)
    assert done.returncode == 2
    assert re.search(r"Two\.py: there is a radii beside it, but .*a/radii\.py has", done.stderr)


def test_two_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    files = [made_of(tmp_path / k / "mine.py", method(f"Sam{k}")) for k in ("a", "b")]
    words = ["train", "digits", *TINY, "method=sama", "--out", str(tmp_path / "run")]
    both = [word for file in files for word in ("--import", str(file))]
    for imports in (both, both[2:] + both[:2], both[:2]):
        done = of_a_process(tmp_path, *imports, *words)
        assert done.returncode == 0, done.stderr
        assert "has changed" not in done.stderr
    kept = json.loads((tmp_path / "run/environment.json").read_text())
    assert [*kept["imports"].values()] == ["mine.py", "mine.py"]


def test_the_same_file_twice_is_once(tmp_path: Path) -> None:
    mine = made_of(tmp_path / "mine_too.py", method("Twice"))
    other = made_of(tmp_path / "other.py", "import mine_too")
    done = of_a_process(tmp_path, *("--import", other.name, "--import", mine.name) * 2, "list")
    assert done.returncode == 0, done.stderr


def test_a_file_that_has_changed_since_a_run_is_told(tmp_path: Path) -> None:
    file = made_of(tmp_path / "mine.py", method("MySAM"))
    words = ["compare", "digits", *TINY, "--methods", "sam,mysam", "--out", str(tmp_path / "runs")]
    for seeds, changes in (("1", False), ("1", False), ("2", True)):
        if changes:
            made_of(file, method("MySAM", "Gradient(3 * rho), **common"))
        done = of_a_process(tmp_path, "--import", str(file), *words, "--seeds", seeds)
        assert done.returncode == 0, done.stderr
        told = [line for line in done.stderr.splitlines() if "has changed" in line]
        assert ["mysam/seed0: mine.py" in line for line in told] == [True] * changes
    assert "imports" not in json.loads((tmp_path / "runs/sam/seed0/environment.json").read_text())


def test_ones_own_method_takes_what_all_take_and_gets_the_guard_of_the_precision(
    tmp_path: Path,
) -> None:
    parts = 'Gradient(rho), Curvature(0.1, 0.01, "log", 0.1), **common'
    file = made_of(tmp_path / "guarded.py", method("Guarded", parts))
    more = ["method=guarded", "methods.guarded.warmup=7", "train.precision=bfloat16"]
    ended = crsam_with(file, "train", "digits", *TINY, *more, "--out", str(tmp_path / "run"))
    assert ended.exit_code == 0, ended.output
    kept = json.loads((tmp_path / "run/environment.json").read_text())
    assert kept["options"]["warmup"] == 7
    assert kept["floor"] == 1e-3


FLAT = "nn.Sequential(nn.Flatten(), nn.Linear(64, {}))"


@pytest.mark.parametrize(
    ("body", "words", "message"),
    [
        (method("Lost", "Gradient(rho)"), ["method=lost"], "Lost does not hand model on"),
        (method("Asks", rho="rho: float"), ["method=asks"], r"methods\.asks\.rho must be given"),
        (FLAT.format(5), ["model=own"], r"for each of 10 classes: .* \(1, 10\), not \(1, 5\)"),
        ("nn.Flatten(0)", ["model=own"], r"for each of 10 classes: .* not \(64,\)"),
        ("nn.LSTM(8, 10)", ["model=own"], "does not take images of 1×8×8"),
        ("None", ["model=own"], r"model 'own' is a NoneType: it must be a torch\.nn\.Module"),
        (FLAT.format(10) + ".requires_grad_(False)", ["model=own"], "nothing to train"),
    ],
)
def test_what_does_not_fit_a_run_is_told_before_it(
    body: str, words: list[str], message: str, tmp_path: Path
) -> None:
    if words == ["model=own"]:
        body = f"@register\ndef own(num_classes): return {body}"
    file = made_of(tmp_path / "misfit.py", body)
    with pytest.raises(UserError, match=message):
        crsam_with(file, "train", "digits", *words, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_hints_for_the_type_checker_and_defaults_that_no_recipe_holds_are_no_matter(
    tmp_path: Path,
) -> None:
    body = """
if TYPE_CHECKING:
    from somewhere import Base

@crsam.register
class Odd(crsam.SharpnessAware):
    def __init__(self, base: "Base", *more, ks: list[int] = [1], key=len, **common) -> None:
        super().__init__(base, Gradient(sum(ks)), **common)
"""
    file, out = made_of(tmp_path / "odd.py", body), tmp_path / "run"
    words = ["train", "digits", *TINY, "method=odd", "methods.odd.ks=[1,2]", "--out", str(out)]
    for said in ("test accuracy", "has been done already"):
        ended = crsam_with(file, *words)
        assert ended.exit_code == 0, ended.output
        assert said in ended.output
    options = json.loads((out / "environment.json").read_text())["options"]
    assert options == {"ks": [1, 2], "key": "len", "warmup": 200}  # the recipe's, for all


@pytest.mark.parametrize(("then", "now"), [([7], []), ([], [7]), ([7], [9])])
def test_what_goes_through_common_is_part_of_the_recipe(
    then: list[int], now: list[int], tmp_path: Path
) -> None:
    file = made_of(tmp_path / "mine.py", method("MySAM"))
    words = ["train", "digits", *TINY, "method=mysam", "--out", str(tmp_path / "run")]
    for _ in range(2):
        ended = crsam_with(file, *words, *(f"methods.mysam.warmup={steps}" for steps in then))
        assert ended.exit_code == 0, ended.output
    with pytest.raises(UserError, match=r"another recipe \(methods\.mysam\.warmup: "):
        crsam_with(file, *words, *(f"methods.mysam.warmup={steps}" for steps in now))


def test_a_sweep_says_what_to_type_next_with_what_it_was_told_to_import(tmp_path: Path) -> None:
    file = made_of(tmp_path / "mine.py", method("MySAM"))
    recipe = tmp_path / "swept.toml"
    ranges = "[sweep]\ntrials = 1\n[sweep.ranges]\nmethods.mysam.rho = {low = 0.1, high = 0.2}\n"
    recipe.write_text('base = "digits"\nmethod = "mysam"\n' + ranges)
    words = ["sweep", str(recipe), *TINY, "--out", str(tmp_path / "sweep")]
    ended = crsam_with(file, *words)
    assert f"crsam --import {file} train {tmp_path}/sweep/best.toml" in ended.stdout, ended.output


def test_nothing_of_these_tests_stays() -> None:
    """Which the other tests of all methods rely on."""
    assert not {"plain", "mysam"} & {*crsam.methods()}
    assert "one_layer" not in models.models()
