"""A training script in timm's style, led by any method: accumulation, clipping, EMA, bf16.

    python examples/timm_style.py --method crsam --rho 0.1 --grad-accum-steps 2 --amp

What differs from the usual ``train_one_epoch`` is marked.
"""

from __future__ import annotations

import argparse
import math
from contextlib import nullcontext
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import crsam
import crsam.lab.models


def train_one_epoch(
    model: nn.Module,
    loader: DataLoader[Any],
    optimizer: crsam.SharpnessAware,
    loss_fn: nn.Module,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    model_ema: AveragedModel,
    args: argparse.Namespace,
) -> float:
    model.train()
    autocast = torch.autocast(args.device, torch.bfloat16) if args.amp else nullcontext()
    losses = []
    for inputs, targets in loader:
        inputs, targets = inputs.to(args.device), targets.to(args.device)
        parts = list(zip(inputs.chunk(args.grad_accum_steps), targets.chunk(args.grad_accum_steps)))

        def closure(parts: list[Any] = parts, num: int = len(inputs)) -> Tensor:  # changed
            optimizer.zero_grad()
            total = torch.zeros((), device=args.device)
            for x, y in parts:
                with autocast:
                    loss = loss_fn(model(x), y) * (len(x) / num)
                loss.backward()
                total += loss.detach()
            return total

        losses.append(optimizer.step(closure))  # changed: it clips, too (max_norm)
        scheduler.step()
        model_ema.update_parameters(model)
    return torch.stack(losses).mean().item()


@torch.no_grad()
def validate(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return 100 * (model(x).argmax(1) == y).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="crsam", choices=crsam.methods())
    parser.add_argument("--rho", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--grad-accum-steps", type=int, default=1)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--model-ema-decay", type=float, default=0.98)
    parser.add_argument("--amp", action="store_true", help="bf16 autocast")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    raw = load_digits()
    x, y = torch.tensor(raw.data, dtype=torch.float32) / 16, torch.tensor(raw.target)
    x, order = x.view(-1, 1, 8, 8), torch.randperm(len(x))
    train, held_out = order[:1437], order[1437:]
    loader = DataLoader(TensorDataset(x[train], y[train]), args.batch_size, shuffle=True)

    model = crsam.lab.models.make_model("digits_conv", 10, in_channels=1).to(args.device)
    model_ema = AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(args.model_ema_decay), use_buffers=True
    )
    base = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    optimizer = crsam.make(  # changed: the optimizer you have, wrapped
        args.method, base, rho=args.rho, model=model, max_norm=args.clip_grad
    )
    steps = args.epochs * math.ceil(len(train) / args.batch_size)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(args.epochs):
        loss = train_one_epoch(model, loader, optimizer, loss_fn, scheduler, model_ema, args)
        test = x[held_out].to(args.device), y[held_out].to(args.device)
        both = validate(model, *test), validate(model_ema, *test)
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {both[0]:.1f} %, EMA {both[1]:.1f} %")


if __name__ == "__main__":
    main()
