"""CR-SAM's forms on CIFAR-10: as printed, guarded and bounded, and the authors' code's.

ResNet-18, basic augmentation, batch 128, learning rate 0.05 with a cosine to 0, weight decay 5e-4,
ρ = 0.1, bf16 autocast. A short run, to see what trains: the accuracies after ten epochs say nothing
about which method is better in the end.

    python benchmarks/cifar10_forms.py DATA --out results/cifar10_forms.json

DATA holds ``cifar-10-batches-py``. About eleven minutes a seed on an H200. ``--table FILE`` prints
an earlier result.
"""

from __future__ import annotations

import argparse
import copy
import json
import pickle
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import crsam
from crsam.lab.experiment.environment import environment
from crsam.lab.models import ResNet

PAPER: dict[str, Any] = {"rho": 0.1, "alpha": 0.1, "beta": 0.01, "trust": 0.5, "floor": 1e-5}
METHODS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "SGD": (None, {}),
    "SAM": ("sam", {"rho": 0.1}),
    # A bound that is never reached: the form as printed, with the regulariser's size in the report.
    "CR-SAM log, as printed": ("crsam", {**PAPER, "trust": 1e9, "warmup": 0}),
    "CR-SAM log": ("crsam", PAPER),
    "CR-SAM linear": ("crsam", {**PAPER, "alpha": 0.5, "beta": 0.1, "form": "linear"}),
}
WATCHED = ("regularizer", "trust_scale", "dropped_curvature", "dropped_slope", "curvature")


def load(folder: Path, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images, normalised, and labels. Unpickles: give it files you trust."""

    def read(name: str) -> tuple[Tensor, Tensor]:
        raw = pickle.loads((folder / "cifar-10-batches-py" / name).read_bytes(), encoding="bytes")
        images = torch.as_tensor(raw[b"data"]).reshape(-1, 3, 32, 32)
        return images, torch.as_tensor(raw[b"labels"])

    parts = [read(f"data_batch_{i}") for i in range(1, 6)]
    x, y = (torch.cat(tensors).to(device) for tensors in zip(*parts))
    test_x, test_y = (t.to(device) for t in read("test_batch"))
    mean = x.float().mean((0, 2, 3), keepdim=True)
    std = x.float().std((0, 2, 3), keepdim=True)
    return (x - mean) / std, y, (test_x - mean) / std, test_y


def augment(x: Tensor, g: torch.Generator) -> Tensor:
    """Flip and padded crop, each image its own."""
    n, device = len(x), x.device
    flip = torch.rand(n, 1, 1, 1, generator=g, device=device) < 0.5
    x = F.pad(torch.where(flip, x.flip(3), x), (4, 4, 4, 4))
    rows, columns = (
        torch.randint(9, (n, 1), generator=g, device=device) + torch.arange(32, device=device)
        for _ in range(2)
    )
    image = torch.arange(n, device=device)[:, None, None, None]
    channel = torch.arange(3, device=device)[None, :, None, None]
    return x[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.autocast(x.device.type, torch.bfloat16):
        right = sum((model(a).argmax(1) == b).sum() for a, b in zip(x.split(1000), y.split(1000)))
    model.train()
    return 100 * int(right) / len(x)


def train(
    net: nn.Module, model: nn.Module, name: str, data: Any, seed: int, epochs: int
) -> dict[str, Any]:
    """One run of `net`, called through `model`, its compiled form."""
    x, y, test_x, test_y = data
    method, hyper = METHODS[name]
    base = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    opt = base if method is None else crsam.make(method, base, model=net, **hyper)
    steps = len(x) // 128
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * steps)
    g = torch.Generator(x.device).manual_seed(seed)
    history: list[dict[str, float]] = []
    for _ in range(epochs):
        seen: dict[str, list[Tensor]] = {}
        order = torch.randperm(len(x), generator=g, device=x.device)
        for part in order[: steps * 128].split(128):
            images, labels = augment(x[part], g), y[part]

            def closure(images: Tensor = images, labels: Tensor = labels) -> Tensor:
                opt.zero_grad()
                with torch.autocast(x.device.type, torch.bfloat16):
                    loss = F.cross_entropy(model(images).float(), labels)
                loss.backward()
                return loss

            seen.setdefault("loss", []).append(torch.as_tensor(opt.step(closure)).detach())
            scheduler.step()
            for key in WATCHED:
                if key in getattr(opt, "report", {}):
                    seen.setdefault(key, []).append(opt.report[key])
        row = {key: torch.stack(values).mean().item() for key, values in seen.items()}
        if "regularizer" in seen:  # a few steps with a tiny d2 make a mean meaningless
            row["regularizer"] = torch.stack(seen["regularizer"]).median().item()
        history.append({**row, "test_accuracy": accuracy(model, test_x, test_y)})
    return {"method": name, "seed": seed, "epochs": history}


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: accuracy after the last epoch, and the first epoch's median regulariser."""
    rows = [
        "| method | test accuracy | regulariser before the bound, first epoch |",
        "|---|---|---|",
    ]
    for method in METHODS:
        own = [run["epochs"] for run in runs if run["method"] == method]
        if own:
            last = " and ".join(f"{epochs[-1]['test_accuracy']:.1f}" for epochs in own)
            sizes = [epochs[0].get("regularizer") for epochs in own]
            size = "" if sizes[0] is None else " and ".join(f"{s:.2f}" for s in sizes) + " ‖g+‖"
            rows.append(f"| {method} | {last} % | {size} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", default=Path("data"))
    parser.add_argument("--table", type=Path, help="print the table of this result and stop")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(args.table.read_text())["runs"]))
        return
    start = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load(args.data, device)
    net: nn.Module = ResNet(18, 10, width=args.width).to(device, memory_format=torch.channels_last)
    model = torch.compile(net) if device.type == "cuda" else net
    runs: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        torch.manual_seed(seed)
        initial = copy.deepcopy(ResNet(18, 10, width=args.width).state_dict())
        for name in METHODS:
            net.load_state_dict(initial)
            runs.append(train(net, model, name, data, seed, args.epochs))
            last = {key: round(value, 4) for key, value in runs[-1]["epochs"][-1].items()}
            print(f"{time.perf_counter() - start:5.0f} s  seed {seed}  {name}: {last}", flush=True)
            if args.out:
                about = environment(device)
                args.out.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
