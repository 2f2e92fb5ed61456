"""CR-SAM in Lightning: ``configure_optimizers`` returns it, and nothing else changes.

pip install 'crsam[lightning]'
python examples/lightning_digits.py --method crsam
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import crsam
from crsam.integrations import scalars


class Classifier(L.LightningModule):
    def __init__(self, method: str, lr: float) -> None:
        super().__init__()
        self.method, self.lr = method, lr
        self.net = nn.Sequential(
            nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.log_dict(scalars(self.optimizers()))  # sharpness, curvature, ...

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        base = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, weight_decay=5e-4)
        opt = crsam.make(self.method, base, rho=0.1)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="crsam", choices=crsam.methods())
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", ".*does not have many workers")
    L.seed_everything(0, verbose=False)
    raw = load_digits()
    x, y = torch.tensor(raw.data, dtype=torch.float32) / 16, torch.tensor(raw.target)
    train, validation = random_split(TensorDataset(x, y), [1437, 360])
    trainer = L.Trainer(
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Classifier(args.method, lr=0.1),
        DataLoader(train, 32, shuffle=True),
        DataLoader(validation, 360),
    )
    found = trainer.callback_metrics
    print(f"{args.method}: accuracy {100 * found['accuracy']:.1f} %,", end=" ")
    print(f"loss {found['loss_epoch']:.3f}, sharpness {found['crsam/sharpness']:.3g}")


if __name__ == "__main__":
    main()
