"""The pages on ImageNet, fine-tuning and timm: their commands are accepted, their code runs."""

from __future__ import annotations

import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.paper import printed
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.models import make_model
from lab.models.test_timm import timm  # noqa: F401

ROOT = Path(__file__).parents[2]
PAGES = ["docs/imagenet.md", "docs/finetuning.md", "docs/timm.md", "README.md"]


def commands(page: str) -> list[list[str]]:
    """The words of every command that takes a recipe or a study, with the command first."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
             for line in block.splitlines()]  # fmt: skip
    words = [shlex.split(line, comments=True) for line in lines]
    return [
        each[place:]
        for each in words
        for place, word in enumerate(each)
        if "crsam" in each[:place] and word in {"train", "compare", "study", "bench"}
    ]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("timm")
def test_commands_are_accepted(page: str) -> None:
    found = commands(page)
    assert len(found) >= 3
    for command, source, *rest in found:
        if source.endswith(".toml"):
            continue
        overrides = [word for word in rest if "=" in word]
        if command == "study":
            load_study(source, overrides)
            continue
        recipe = load_recipe(source, overrides)
        if "--methods" in rest:
            for method in rest[rest.index("--methods") + 1].split(","):
                recipe.with_method(method)


def test_the_table_of_recipes_is_that_of_the_recipes() -> None:
    page = (ROOT / "docs/imagenet.md").read_text()
    for model in printed("imagenet"):
        recipe = load_recipe(f"paper/imagenet/{model}")
        given, crsam = recipe.optimizer.options, recipe.methods["crsam"]
        name = {"sgd": "SGD", "adamw": "AdamW"}[recipe.optimizer.name]
        row = (
            f"| `{model}` | {name} | {recipe.train.epochs} | "
            f"{recipe.train.batch_size} | {number(given['lr'])} | "
            f"{number(given['weight_decay'])} | {recipe.methods['sam']['rho']:.2f} | "
            f"{crsam['rho']:.2f}, {crsam['alpha']}, {crsam['beta']} |"
        )
        assert row in page


def test_the_file_of_the_page_is_a_recipe(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / PAGES[0]).read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(text)
    recipe = load_recipe(tmp_path / "mine.toml")
    assert (recipe.train.precision, recipe.train.channels_last) == ("bfloat16", True)
    for model in re.findall(r"base.*# or (.*)", text)[0].split(", "):
        load_recipe(f"paper/imagenet/{model}")


def number(value: float) -> str:
    return f"{value:g}" if value >= 0.01 else re.sub("e-0", "e-", f"{value:.0e}")


def test_the_code_on_fine_tuning_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / PAGES[1]).read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    torch.save(make_model("resnet18", 1000, stem="imagenet").state_dict(), "resnet18.pth")
    namespace: dict[str, object] = {}
    exec(code, namespace)
    assert f"# {namespace['loaded']}" in code


def test_the_example_of_fine_tuning_runs() -> None:
    words = ["examples/finetune_digits.py", "--seeds", "1", "--epochs", "4"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )
    assert len(re.findall(r"^(?:drawn|fine-tuned) +\d+\.\d %", done.stdout, re.MULTILINE)) == 2
    assert "18 of 20 tensors; new: layers.10.weight, layers.10.bias" in done.stderr
    page = (ROOT / "docs/finetuning.md").read_text()
    for mean, each in re.findall(r"^(?:drawn|fine-tuned) +(\S+) % +\((.*)\)$", page, re.MULTILINE):
        assert float(mean) == pytest.approx(statistics.mean(map(float, each.split())), abs=0.11)
