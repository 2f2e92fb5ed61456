"""The core needs torch and numpy. The command line says what else it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = "import sys; sys.modules |= dict.fromkeys({names!r})\n"
"""A name that stands for None in ``sys.modules`` cannot be imported or found."""
LAB_ONLY = ("PIL", "matplotlib", "optuna", "rich", "scipy", "sklearn", "typer")


def run(program: str, blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(names=blocked) + program],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_example_trains_without_the_packages_of_the_laboratory() -> None:
    ended = run((ROOT / "examples/two_lines.py").read_text(), LAB_ONLY)
    assert ended.returncode == 0, ended.stderr
    assert "epoch 20: loss" in ended.stdout


def test_curvature_and_landscapes_work_without_them() -> None:
    program = """
import torch, crsam
model = torch.nn.Linear(3, 2)
batches = [(torch.randn(6, 3), torch.randn(6, 2))]
loss_fn = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])
print(crsam.curvature.hessian_trace(model, loss_fn, batches, num_probes=3).value > 0)
print(len(crsam.curvature.top_eigenvalues(model, loss_fn, batches, k=1)))
print(crsam.landscape.surface(model, loss_fn, batches, x=[-1, 0, 1], y=[0, 1]).loss.shape)
"""
    ended = run(program, LAB_ONLY)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[:2] == ["True", "1"]


def test_the_package_and_its_version_are_there_without_torch() -> None:
    program = "import crsam; print(crsam.__version__, 'CRSAM' in dir(crsam))"
    ended = run(program, ("torch", "numpy"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith(" True\n")


@pytest.mark.parametrize("missing", ["typer", "sklearn"])
def test_the_command_says_what_to_install(missing: str) -> None:
    program = f"""
import crsam.__main__ as command
found = command.find_spec
command.find_spec = lambda name: None if name == {missing!r} else found(name)
command.main()
"""
    ended = run(program, ())
    assert ended.returncode == 2
    assert ended.stderr.startswith("crsam: the command line needs ")
    assert ended.stderr.endswith("pip install 'crsam[lab]'\n")
    assert ended.stderr.count("\n") == 1


def test_unknown_names_are_attribute_errors() -> None:
    import crsam

    with pytest.raises(AttributeError, match="module 'crsam' has no attribute 'SMA'"):
        _ = crsam.SMA  # type: ignore[attr-defined]
    for name in crsam.__all__:
        assert getattr(crsam, name) is not None
