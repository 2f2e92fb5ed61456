"""CR-SAM in half precision, accumulating micro-batches, with clipping.

    python examples/precision.py                       # fp16 with a scaler, on a CPU or a GPU
    python examples/precision.py --dtype bfloat16      # needs no scaler
    python examples/precision.py --scope micro         # m-SAM: each micro-batch climbs on its own

The scale starts far too high on purpose: the first steps overflow and are skipped.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import crsam


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--scope", default="batch", choices=["batch", "micro"])
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    raw = load_digits()
    x = torch.tensor(raw.data, dtype=torch.float32, device=device) / 16
    y = torch.tensor(raw.target, device=device)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    floor = {"float16": 1e-4, "bfloat16": 1e-3}[args.dtype]  # smaller differences are rounding
    opt = crsam.CRSAM(
        base, rho=0.1, warmup=50, floor=floor, max_norm=1.0, model=model, scope=args.scope
    )
    scaler = torch.amp.GradScaler(device, init_scale=2.0**24, enabled=args.dtype == "float16")

    def loss_of(part: Tensor) -> Tensor:
        with torch.autocast(device, dtype=getattr(torch, args.dtype)):
            logits = model(x[part])
        return F.cross_entropy(logits.float(), y[part])

    num_skipped = 0
    for epoch in range(args.epochs):
        losses = []
        for batch in torch.randperm(len(x), device=device).split(128):
            closure = crsam.MicroBatches(
                loss_of, batch.split(32), [len(p) for p in batch.split(32)]
            )
            losses.append(opt.step(closure, scaler=scaler))
            scaler.update()
            num_skipped += int(opt.report.get("overflow", 0) > 0)
        print(
            f"epoch {epoch + 1}: loss {torch.stack(losses).mean():.4f}, {num_skipped} steps "
            f"skipped, scale {scaler.get_scale():g}"
        )


if __name__ == "__main__":
    main()
