"""Runs under ``torchrun``: ``… ranks.py FOLDER``; every framework trains, every rank saves."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import lightning as L
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

from crsam.integrations.accelerate import SharpnessAwareStep
from crsam.integrations.lightning import SharpnessAwareSteps, callbacks
from crsam.integrations.transformers import SharpnessAwareTrainer
from integrations import tasks

ACCUMULATE, BATCH, CLIP = 2, 4, 0.1


def net() -> nn.Sequential:
    return tasks.net(torch.float64, batch_norm=False)


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def with_accelerate(method: str, folder: Path) -> nn.Module:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    model = net()
    wrapped, opt, loader = accelerator.prepare(
        model, tasks.make(method, model, max_norm=CLIP), tasks.loader(BATCH, torch.float64)
    )
    step = SharpnessAwareStep(accelerator, wrapped, opt, loss_fn)
    for batch in loader:
        with accelerator.accumulate(wrapped):
            step(batch)
    return model


def with_fabric(method: str, folder: Path) -> nn.Module:
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    net_ = net()
    model, opt = fabric.setup(net_, tasks.make(method, net_, max_norm=CLIP))
    batches = list(fabric.setup_dataloaders(tasks.loader(BATCH, torch.float64)))
    for start in range(0, len(batches), ACCUMULATE):
        window = batches[start : start + ACCUMULATE]

        def closure(window: list[Any] = window) -> Tensor:
            opt.zero_grad()
            losses = []
            for i, batch in enumerate(window, start=1):
                with fabric.no_backward_sync(model, enabled=i < len(window)):
                    loss = loss_fn(model, batch) / ACCUMULATE
                    fabric.backward(loss)
                losses.append(loss.detach())
            return torch.stack(losses).sum()

        opt.step(closure)
    return net_


def with_lightning(method: str, folder: Path) -> nn.Module:
    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = loss_fn(self.net, batch)
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> Any:
            return tasks.make(method, self.net, max_norm=CLIP)

    module = Module()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        accumulate_grad_batches=ACCUMULATE,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if not any(isinstance(each, SharpnessAwareSteps) for each in trainer.callbacks):
        trainer.callbacks += callbacks()
    # Lightning's own sampler shuffles.
    dataset = tasks.loader(BATCH, torch.float64).dataset
    rank = torch.distributed.get_rank()
    sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=False)
    trainer.fit(module, DataLoader(dataset, BATCH, sampler=sampler))
    return module.net


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.net(x), labels)}


def with_transformers(method: str, folder: Path) -> nn.Module:
    model = Classifier()
    args = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        max_grad_norm=CLIP,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
    )
    x, y = tasks.data(torch.float64)
    SharpnessAwareTrainer(
        model,
        args,
        train_dataset=[{"x": x[i], "labels": y[i]} for i in range(len(x))],
        optimizers=(tasks.make(method, model, max_norm=CLIP), None),
    ).train()
    return model.net


FRAMEWORKS: dict[str, Callable[[str, Path], nn.Module]] = {
    "accelerate": with_accelerate,
    "transformers": with_transformers,
    "fabric": with_fabric,
    "lightning": with_lightning,
}


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    for name, train in FRAMEWORKS.items():
        for method in ("crsam", "looksam"):
            model = train(method, folder)
            rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
            assert size == 2
            torch.save(model.state_dict(), folder / f"{name}-{method}-{rank}.pt")
    # All is saved. The frameworks hold replicas to the end, which may outlive the process group,
    # and gloo's threads then abort the process now and then: that is not what is tested here.
    torch.distributed.barrier()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
