"""Where and with what something was measured: beside every result."""

from __future__ import annotations

import datetime
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import crsam


def environment(device: torch.device | str = "cpu", *packages: str) -> dict[str, Any]:
    """Command, date, commit, hardware and versions (of torch, crsam and `packages`)."""
    return {
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "hardware": _hardware(torch.device(device)),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "crsam", *packages)},
    }


def _version(package: str) -> str | None:
    if package in ("torch", "crsam"):  # of the code that runs, installed or not
        return str({"torch": torch, "crsam": crsam}[package].__version__)
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit, with a ``+`` where tracked files differ from it; None outside a checkout."""
    here = Path(__file__)
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)  # not someone else's checkout
        return _git(here.parent, "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *command: str) -> str:
    run = subprocess.run(
        ["git", *command], cwd=folder, capture_output=True, check=True, text=True, timeout=10
    )
    return run.stdout.strip()


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        return f"{names[0]}, {len(names)} cores"
    except (OSError, IndexError):
        return platform.processor() or platform.machine()
