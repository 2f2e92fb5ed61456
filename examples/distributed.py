"""CR-SAM on several processes, saved by some and gone on with by others.

    torchrun --nproc-per-node 2 examples/distributed.py --checkpoint /tmp/run          # replicas
    torchrun --nproc-per-node 2 examples/distributed.py --checkpoint /tmp/run --shard  # shards
    python examples/distributed.py --checkpoint /tmp/run                               # alone

Each call trains on for some epochs of handwritten digits, from the checkpoint if there is one. The
batch is that of all processes together, so all of them do the same, to rounding.
"""

from __future__ import annotations

import argparse
import gc
import os
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import crsam

BATCH = 64


def build(wrap: str, scope: str) -> tuple[nn.Module, crsam.SharpnessAware]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    if wrap == "shards":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    elif wrap == "replicas":
        model = DistributedDataParallel(model)
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, crsam.CRSAM(base, rho=0.1, warmup=50, model=model, scope=scope)  # type: ignore[arg-type]


def train(model: nn.Module, opt: crsam.SharpnessAware, epochs: int, rank: int, size: int) -> Tensor:
    raw = load_digits()
    x, y = torch.tensor(raw.data, dtype=torch.float32) / 16, torch.tensor(raw.target)
    loss = torch.zeros(())
    for _ in range(epochs):
        order = torch.Generator().manual_seed(opt.param_groups[0]["crsam_step"])
        for part in torch.randperm(len(x), generator=order).split(BATCH)[:-1]:
            mine = part.chunk(size)[rank]

            def closure(mine: Tensor = mine) -> Tensor:
                opt.zero_grad()
                loss = F.cross_entropy(model(x[mine]), y[mine])
                loss.backward()
                return loss

            loss = opt.step(closure)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a folder")
    parser.add_argument("--shard", action="store_true", help="fully_shard instead of replicas")
    parser.add_argument("--scope", default="batch", choices=["batch", "rank"])
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        run(args)
        return
    dist.init_process_group("gloo")
    run(args)
    gc.collect()  # a model that outlives the process group may wait for it for ever
    dist.destroy_process_group()


def run(args: argparse.Namespace) -> None:
    size, rank, wrap = 1, 0, "nothing"
    if dist.is_initialized():
        size, rank = dist.get_world_size(), dist.get_rank()
        wrap = "shards" if args.shard else "replicas"
    model, opt = build(wrap, args.scope)
    model_state, opt_state = get_state_dict(model, opt)
    if args.checkpoint.exists():
        dcp.load({"model": model_state, "opt": opt_state}, checkpoint_id=args.checkpoint)
        set_state_dict(model, opt, model_state_dict=model_state, optim_state_dict=opt_state)
    loss = train(model, opt, args.epochs, rank, size)
    if size > 1:
        dist.all_reduce(loss)
    model_state, opt_state = get_state_dict(model, opt)
    file = dcp.FileSystemWriter(args.checkpoint, overwrite=True)
    dcp.save({"model": model_state, "opt": opt_state}, storage_writer=file)
    if rank == 0:
        steps = opt.param_groups[0]["crsam_step"]
        print(f"{size} process(es), {wrap}: loss {loss / size:.6f} after {steps} steps")


if __name__ == "__main__":
    main()
