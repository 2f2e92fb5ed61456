"""The pages on frameworks are true, and their examples run."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import crsam
from crsam.integrations import scalars
from integrations import tasks

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Accelerate keeps its state for the whole process."""
    yield
    if "accelerate" in sys.modules:
        state = sys.modules["accelerate"].state
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def digits(num: int = 24) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [(torch.rand(8, 64, generator=g), torch.randint(10, (8,), generator=g))] * (num // 8)


def namespace(**more: Any) -> dict[str, Any]:
    return {"torch": torch, "nn": nn, "F": F, "crsam": crsam, "loader": digits(), **more}


class CopiedSAM(Optimizer):
    """What such files do, in our words."""

    def __init__(self, params: Any, kind: Any, rho: float, **options: Any) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = kind(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    def _params(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        norm = torch.stack([p.grad.norm() for p in self._params() if p.grad is not None]).norm()
        for p in self._params():
            assert p.grad is not None
            self.state[p]["old_p"] = p.clone()
            p.add_(self.param_groups[0]["rho"] * p.grad / norm)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        for p in self._params():
            p.copy_(self.state[p]["old_p"])
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()


def running_stats(on: bool) -> Callable[[nn.Module], None]:
    def switch(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.momentum = 0.1 if on else 0.0

    return switch


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("pair", [0, 1])
def test_both_loops_of_the_migration_page_give_the_same_model(pair: int) -> None:
    theirs, ours = blocks("migrating.md")[2 * pair : 2 * pair + 2]
    assert "first_step" in theirs
    assert "opt.step(closure)" in ours
    loader = [(x.double(), y) for x, y in digits()]
    before, after = net(), net()
    shared = {"SAM": CopiedSAM, "loader": loader}
    switches = {
        "enable_running_stats": running_stats(True),
        "disable_running_stats": running_stats(False),
    }
    exec(theirs, namespace(model=before, **shared, **switches))
    found = namespace(model=after, **shared)
    exec(ours, found)
    for a, b in zip(before.parameters(), after.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    if pair:  # the first loop of theirs moves batch-norm statistics twice
        for a, b in zip(before.buffers(), after.buffers()):
            if a.is_floating_point():
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        assert "momentum_buffer" in found["saved"]["state"][0]


class Updates:
    """A scheduler of timm's kind."""

    def step_update(self, num_updates: int) -> None:
        assert num_updates > 0


def test_the_page_on_scripts_in_timms_style_runs() -> None:
    from contextlib import nullcontext

    from torch.optim.swa_utils import AveragedModel

    model = net().float()
    found = namespace(
        model=model,
        loss_fn=nn.CrossEntropyLoss(),
        amp_autocast=nullcontext,
        clip_grad=1.0,
        accum_steps=2,
        num_updates=0,
        lr_scheduler=Updates(),
        model_ema=AveragedModel(model),
    )
    for block in blocks("timm.md"):
        exec(block, found)
    assert found["num_updates"] == 3


def test_the_page_on_loggers_runs() -> None:
    model = tasks.net()
    opt = tasks.make("crsam", model, model=model)
    x, y = tasks.data()

    def closure() -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    opt.step(closure)
    written: dict[str, float] = {}

    class Spy:
        """Stands for each of the loggers; they themselves are tested where they are installed."""

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written[name] = value

        def log_metrics(self, values: dict[str, float], step: int) -> None:
            written.update(values)

        log = log_metrics

    both, board, mlflow, wandb, _, _ = blocks("logging.md")
    found = namespace(opt=opt, step=7, writer=Spy(), mlflow=Spy(), wandb=Spy())
    exec(both, found)
    for block in (board, mlflow, wandb):
        written.clear()
        exec(block, found)
        assert written == scalars(opt)
    page = (ROOT / "docs/logging.md").read_text()
    for name in ("loss_plus", "sharpness", "curvature", "regularizer", "trust_scale"):
        assert name in opt.report
        assert f"`{name}`" in page


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated")
@pytest.mark.filterwarnings("ignore:The .*dataloader.* does not have many workers")
def test_the_page_on_lightning_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    L = pytest.importorskip("lightning")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    monkeypatch.setattr(L, "Trainer", partial(L.Trainer, accelerator="cpu", **quiet))
    found = namespace(L=L)
    data = torch.utils.data.TensorDataset(torch.rand(24, 64), torch.randint(10, (24,)))
    found["loader"] = torch.utils.data.DataLoader(data, 8)
    for block in blocks("lightning.md"):
        exec(block, found)
    assert found["trainer"].global_step == 4


@pytest.mark.filterwarnings("ignore:.pin_memory. argument is set")
def test_the_page_on_transformers_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": F.cross_entropy(self.net(x), labels)}

    dataset = [{"x": torch.rand(4), "labels": i % 2} for i in range(16)]
    found = namespace(model=Model(), dataset=dataset)
    monkeypatch.chdir(tmp_path)
    for block in blocks("transformers.md"):
        exec(block, found)
    assert found["trainer"].state.global_step == 6  # three epochs


def test_the_page_on_accelerate_runs() -> None:
    pytest.importorskip("accelerate")
    data = torch.utils.data.TensorDataset(torch.rand(32, 64), torch.randint(10, (32,)))
    found = namespace(net=net().float(), loader=torch.utils.data.DataLoader(data, 8))
    for block in blocks("accelerate.md"):
        exec(block, found)
    assert found["opt"].optimizer.param_groups[0]["crsam_step"] == 2


EXAMPLES = {
    "lightning_digits": "lightning",
    "fabric_digits": "lightning",
    "accelerate_digits": "accelerate",
    "transformers_tokens": "transformers",
    "timm_style": "torch",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: another would take longer to import the framework than to train."""
    pytest.importorskip(EXAMPLES[name])
    monkeypatch.setattr(sys, "argv", [name, "--epochs", "1"])
    runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
    assert re.search(r"accuracy \d+\.\d %", capsys.readouterr().out)
