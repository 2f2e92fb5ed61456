"""``opt.report`` in one line, for any logger."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from crsam.integrations import scalars
from integrations import tasks


def one_step(method: str = "crsam") -> Any:
    model = tasks.net()
    opt = tasks.make(method, model, model=model)
    x, y = tasks.data()
    assert scalars(opt) == {}

    def closure() -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    opt.step(closure)
    return opt


def test_all_of_the_report_as_numbers() -> None:
    opt = one_step()
    found = scalars(opt, prefix="")
    assert found == {name: value.item() for name, value in opt.report.items()}
    assert all(type(value) is float for value in found.values())


def test_other_optimizers_have_no_report() -> None:
    with pytest.raises(ValueError, match=r"expected an optimizer of crsam.* got SGD"):
        scalars(torch.optim.SGD(tasks.net().parameters(), lr=0.1))


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    opt = one_step()
    with SummaryWriter(str(tmp_path)) as writer:
        for name, value in scalars(opt).items():
            writer.add_scalar(name, value, 7)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(scalars(opt))
    (event,) = events.Scalars("crsam/sharpness")
    assert (event.step, event.value) == (7, pytest.approx(opt.report["sharpness"].item()))


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    opt = one_step()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    mlflow.create_experiment("digits", artifact_location=str(tmp_path / "artifacts"))
    mlflow.set_experiment("digits")
    with mlflow.start_run() as run:
        mlflow.log_metrics(scalars(opt), step=7)
    found = mlflow.get_run(run.info.run_id).data.metrics
    assert found == {name: pytest.approx(value) for name, value in scalars(opt).items()}


@pytest.mark.filterwarnings("ignore")
def test_wandb(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    opt = one_step()
    with wandb.init(mode="offline", project="digits", dir=tmp_path) as run:
        run.log(scalars(opt), step=7, commit=True)
        assert run.summary["crsam/sharpness"] == pytest.approx(opt.report["sharpness"].item())


def test_importing_crsam_imports_no_framework() -> None:
    names = "lightning", "pytorch_lightning", "transformers", "accelerate", "torchmetrics"
    code = f"import sys, crsam, crsam.integrations; assert not set({names!r}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
