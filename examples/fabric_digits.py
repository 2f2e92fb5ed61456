"""CR-SAM in Lightning Fabric: the closure calls ``fabric.backward``; two micro-batches a step.

pip install 'crsam[lightning]'
python examples/fabric_digits.py
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import crsam


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    fabric = L.Fabric(devices=1)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    raw = load_digits()
    x, y = torch.tensor(raw.data, dtype=torch.float32) / 16, torch.tensor(raw.target)
    net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    model, opt = fabric.setup(net, crsam.CRSAM(base, rho=0.1, model=net, max_norm=1.0))
    loader = fabric.setup_dataloaders(
        DataLoader(TensorDataset(x[:1437], y[:1437]), 64, shuffle=True)
    )
    for epoch in range(args.epochs):
        for batch in loader:
            parts = list(zip(*(whole.chunk(2) for whole in batch)))

            def closure(parts: list[Any] = parts) -> Tensor:
                opt.zero_grad()
                total = torch.zeros((), device=fabric.device)
                for i, (inputs, targets) in enumerate(parts, start=1):
                    with fabric.no_backward_sync(model, enabled=i < len(parts)):
                        loss = F.cross_entropy(model(inputs), targets) / len(parts)
                        fabric.backward(loss)
                    total += loss.detach()
                return total

            loss = opt.step(closure)
        fabric.print(f"epoch {epoch}: loss {loss:.3f}")
    model.eval()
    with torch.no_grad():
        right = model(fabric.to_device(x[1437:])).argmax(1).cpu() == y[1437:]
    fabric.print(f"accuracy {100 * right.float().mean():.1f} %")


if __name__ == "__main__":
    main()
