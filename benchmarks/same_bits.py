"""Does the working tree train exactly as a commit before it? Every bit of every step is compared.

    python benchmarks/same_bits.py [REV]        (HEAD where REV is not given)

The script trains a small net for 20 steps with every method, in two processes: one imports crsam
from REV, the other from the working tree. After each step it hashes the loss, the weights, the
buffers, the base optimizer's state and the state of the random generator. It exits with 1 and
names the first step that differs. It is the proof of a refactoring, and not a test: what a change
is meant to change shows here too.

Cases: SGD and AdamW, float32 and float64, plain closures, micro-batches, single samples, the
functional probe, scope="micro", gradient clipping, learning-rate schedules, a resume from a
checkpoint in the middle, and two processes under DDP with scope="batch" and scope="rank".
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
STEPS = 20
WITH_SAMPLES = {"esam"}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "crsam": [
        {"warmup": 5},
        {"form": "linear", "alpha": 0.5, "beta": 0.1, "warmup": 0},
        {"every": 3, "warmup": 5},
        {"direction": "random", "warmup": 5},
        {"trust": None, "warmup": 5},
    ],
    "looksam": [{"k": 3}],
    "ssam": [{"period": 4}, {"period": 4, "mask": "fisher", "num_samples": 3}],
    "aesam": [{"total_steps": 20}],
    "gsam": [{"rho_min": 0.02}],
    "wsam": [{}, {"decoupled": True}],
}


class Net(nn.Module):
    """Batch norm and dropout, a parameter that is never used, and one that is used at times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 12), nn.BatchNorm1d(12)
        self.second, self.last = nn.Linear(12, 12), nn.Linear(12, 3)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.gelu(self.norm(self.first(x))), 0.2, self.training)
        out: Tensor = self.last(torch.tanh(self.second(x)))
        return out


def bases(params: Any) -> dict[str, Callable[[], torch.optim.Optimizer]]:
    return {
        "sgd": lambda: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
        "adamw": lambda: torch.optim.AdamW(params, lr=3e-3),
    }


def digest(*values: Any) -> str:
    state = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            state.update(value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
        elif isinstance(value, dict):
            state.update(digest(*(v for _, v in sorted(value.items(), key=str))).encode())
        elif isinstance(value, list | tuple):
            state.update(digest(*value).encode())
        else:
            state.update(repr(value).encode())
    return state.hexdigest()[:16]


def cases() -> Iterator[tuple[str, Any]]:
    import crsam

    for method in crsam.methods():
        every = enumerate(OPTIONS.get(method, [{}]))
        for (i, options), base, dtype in product(every, ("sgd", "adamw"), ("float32", "float64")):
            for kind in ("closure", "micro", "samples", "functional", "scope", "clipped", "resume"):
                fisher = options.get("mask") == "fisher"
                if (method in WITH_SAMPLES or fisher) and kind in ("micro", "functional"):
                    continue
                yield f"{method} {i} {base} {dtype} {kind}", (method, options, base, dtype, kind)


def run_case(
    method: str, options: dict[str, Any], base: str, dtype: str, kind: str, rank: int = 0,
    **more: Any,
) -> list[str]:  # fmt: skip
    import crsam
    from crsam.optim import Functional

    torch.manual_seed(7)
    torch.set_default_dtype(getattr(torch, dtype))
    model: nn.Module = Net()
    data = torch.Generator().manual_seed(rank)
    if "scope" in more:
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    if kind == "scope":
        more["scope"] = "micro"
    if kind == "clipped":
        more["max_norm"] = 0.05
    split = list(model.parameters())
    groups = [{"params": split[:2]}, {"params": split[2:], "lr": 0.02}]

    def build() -> tuple[Any, Any]:
        made = crsam.make(method, bases(groups)[base](), model=model, seed=3, **options, **more)
        return made, torch.optim.lr_scheduler.StepLR(made.base, 7, 0.5)

    opt, schedule = build()
    takes_samples = method in WITH_SAMPLES or options.get("mask") == "fisher"
    found = []
    for step in range(STEPS):
        x = torch.randn(12, 6, generator=data)
        y = torch.randint(3, (12,), generator=data)
        if kind == "functional":
            closure: Any = Functional(
                model, lambda m, batch: F.cross_entropy(m(batch[0]), batch[1])
            )
            closure.batch = (x, y)
        elif kind == "micro" or (kind == "scope" and not takes_samples):

            def loss_of(part: tuple[Tensor, Tensor]) -> Tensor:
                return F.cross_entropy(model(part[0]), part[1])

            parts = [(x[:8], y[:8]), (x[8:], y[8:])]
            closure = crsam.MicroBatches(loss_of, parts, weights=[2, 1])
        elif kind == "samples" or takes_samples:

            def losses(part: Any, x: Tensor = x, y: Tensor = y) -> Tensor:
                return F.cross_entropy(model(x[part]), y[part], reduction="none")

            closure = crsam.PerSample(losses, len(x), accumulate=2 if kind == "scope" else 1)
        else:

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                opt.zero_grad()  # noqa: B023
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

        loss = opt.step(closure)
        schedule.step()
        state = [v for p in split for v in [opt.base.state.get(p, {})]]
        random = torch.get_rng_state()
        found.append(digest(loss, split, list(model.buffers()), state, random))
        if kind == "resume" and step == 9:
            file = io.BytesIO()
            torch.save({"opt": opt.state_dict(), "schedule": schedule.state_dict()}, file)
            file.seek(0)
            kept = torch.load(file, weights_only=True)
            opt, schedule = build()
            opt.load_state_dict(kept["opt"])
            schedule.load_state_dict(kept["schedule"])
    return found


def record(file: str) -> None:
    found = {name: _caught(case) for name, case in cases()}
    Path(file).write_text(json.dumps(found))


def record_ranks(file: str) -> None:
    import crsam

    dist.init_process_group("gloo")
    found = {}
    rank = dist.get_rank()
    for method, base, scope in product(crsam.methods(), ("sgd", "adamw"), ("batch", "rank")):
        options = OPTIONS.get(method, [{}])[0]
        case = (method, options, base, "float32", "closure", rank)
        found[f"rank {rank} {method} {base} {scope}"] = _caught(case, scope=scope)
    Path(f"{file}.{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


def _caught(case: tuple[Any, ...], **more: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run_case(*case, **more)
        except Exception as reason:
            return [f"{type(reason).__name__}: {reason}"]


def trained_with(source: Path, folder: Path) -> dict[str, list[str]]:
    """What every case gives, with crsam from `source`."""
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    me = str(Path(__file__).resolve())
    subprocess.run([sys.executable, me, "--record", str(folder / "one")], env=env, check=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, me, "--record-ranks", str(folder / "two")], env=env, check=True)
    found: dict[str, list[str]] = {}
    for file in ("one", "two.0", "two.1"):
        found |= json.loads((folder / file).read_text())
    return found


def main() -> None:
    if sys.argv[1:2] == ["--record"]:
        return record(sys.argv[2])
    if sys.argv[1:2] == ["--record-ranks"]:
        return record_ranks(sys.argv[2])
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    with tempfile.TemporaryDirectory() as name:
        before, after, tree = (Path(name) / each for each in ("before", "after", "tree"))
        for folder in (before, after, tree):
            folder.mkdir()
        archive = subprocess.run(
            ["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "x", "-C", str(tree)], input=archive.stdout, check=True)
        old, new = trained_with(tree / "src", before), trained_with(ROOT / "src", after)
    differing = 0
    for case in sorted(old.keys() | new.keys()):
        mine, theirs = new.get(case, []), old.get(case, [])
        if mine != theirs:
            differing += 1
            steps = zip(theirs + [""] * STEPS, mine + [""] * STEPS)
            first = next(i for i, (a, b) in enumerate(steps) if a != b)
            print(f"{case}: differs from step {first} on; {theirs[-1:]} and {mine[-1:]}")
    failed = [case for case, found in old.items() if len(found) < STEPS]
    print(f"{len(old)} cases of {STEPS} steps, {differing} differ, {len(failed)} raise an error")
    for case in failed[:20]:
        print(f"  {case}: {old[case][-1][:150]}")
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
