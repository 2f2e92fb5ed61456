"""CR-SAM with Accelerate: accumulation, a scheduler, any number of processes.

pip install 'crsam[accelerate]'
python examples/accelerate_digits.py
accelerate launch --num-processes 2 examples/accelerate_digits.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import crsam
from crsam.integrations.accelerate import SharpnessAwareStep


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    raw = load_digits()
    x, y = torch.tensor(raw.data, dtype=torch.float32) / 16, torch.tensor(raw.target)
    net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    loader = DataLoader(TensorDataset(x[:1437], y[:1437]), 32, shuffle=True)

    accelerator = Accelerator(gradient_accumulation_steps=2)
    base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    opt = crsam.CRSAM(base, rho=0.1, model=net, max_norm=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader) // 2)
    model, opt, loader, schedule = accelerator.prepare(net, opt, loader, schedule)
    step = SharpnessAwareStep(accelerator, model, opt, loss_fn)
    for epoch in range(args.epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = step(batch)
                schedule.step()
        accelerator.print(f"epoch {epoch}: loss {loss:.3f}")
    net.eval()
    with torch.no_grad():
        right = net(x[1437:].to(accelerator.device)).argmax(1).cpu() == y[1437:]
    accelerator.print(f"accuracy {100 * right.float().mean():.1f} %")
    accelerator.end_training()


if __name__ == "__main__":
    main()
