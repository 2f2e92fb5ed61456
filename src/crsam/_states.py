"""What a measurement draws from and moves, to be put back: random states, modes, buffers."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crsam import _tensors as tn


class Snapshot:
    """The modes and buffers of modules, to be put back: batch norm in training changes them.

    The snapshot includes the weights of embeddings with a `max_norm`, because a forward pass scales
    them down.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        modules = [module for part in parts for module in part.modules()]
        self.modes = [(module, module.training) for module in modules]
        self.buffers: list[tuple[nn.Module, str, Tensor]] = []
        for module in modules:
            self.buffers += [(module, *item) for item in module.named_buffers(recurse=False)]
        # Nobody can write to expanded buffers, neither this class nor a pass.
        self.written = [buffer for _, _, buffer in self.buffers if not _is_expanded(buffer)]
        self.weights = [
            p
            for module in modules
            if getattr(module, "max_norm", None) is not None
            for p in module.parameters(recurse=False)
        ]
        with torch.no_grad():
            self.values = tn.clone([*self.written, *self.weights])

    def put_back(self) -> None:
        for module, training in self.modes:
            module.training = training
        for module, name, buffer in self.buffers:
            module._buffers[name] = buffer  # a module may have put another in its place
        with torch.no_grad():
            tn.copy_([*self.written, *self.weights], self.values)

    def put_weights_back(self) -> None:
        """Undoes what forward passes have done to weights."""
        with torch.no_grad():
            tn.copy_(self.weights, self.values[len(self.written) :])

    def update_weights(self) -> None:
        """Puts the weights back as they are now, from now on."""
        with torch.no_grad():
            tn.copy_(self.values[len(self.written) :], self.weights)


def _is_expanded(tensor: Tensor) -> bool:
    """Whether several of its entries are one place in memory."""
    if tensor.layout != torch.strided:
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride()))


def seed_of(*parts: object) -> int:
    """A seed for each tuple of `parts`; torch's CPU generator looks at 32 bits of one.

    Example:
        >>> seed_of("probe", 0, 1) == seed_of("probe", 0, 1) != seed_of("probe", 1, 0)
        True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


class RandomStates:
    """The states of every generator that a model, a loss or a loader may draw from.

    Those of torch on the CPU and on `devices`, of Python and of numpy.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = devices
        self.torch = [torch.get_rng_state()]
        for device in devices:
            self.torch.append(torch.get_device_module(device).get_rng_state(device))
        self.python = random.getstate()
        numpy = _numpy()
        self.numpy = numpy.random.get_state() if numpy else None

    def put_back(self) -> None:
        torch.set_rng_state(self.torch[0])
        for device, state in zip(self.devices, self.torch[1:], strict=True):
            torch.get_device_module(device).set_rng_state(state, device)
        random.setstate(self.python)
        if self.numpy is not None:
            _numpy().random.set_state(self.numpy)


def seed_all(seed: int, devices: Sequence[torch.device]) -> None:
    """Seeds what `RandomStates` knows, and nothing else."""
    torch.default_generator.manual_seed(seed)
    for device in devices:
        module = torch.get_device_module(device)
        with module.device(device):
            module.manual_seed(seed)
    random.seed(seed)
    if numpy := _numpy():
        numpy.random.seed(seed)


def _numpy() -> Any:
    return sys.modules.get("numpy")  # where it was never imported, nobody draws from it
