"""The same random masks in every pass of a step, and the first pass's batch-norm statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from crsam import _tensors as tn
from crsam._tensors import Tensors


def _only_writes(module: nn.Module) -> bool:
    """Whether a pass does not read the buffers that it moves."""
    return isinstance(module, _BatchNorm) and module.training


class _Frozen:
    """A parameter that is not trained, as the first pass found it and as it left it."""

    def __init__(self, p: Tensor) -> None:
        self.p, self.first, self.version = p, p.data, p._version
        self.left = self.value = self.first

    def has_moved(self) -> bool:
        now = self.p.data
        # What spreads weights over processes, or packs them, has ways of its own.
        if type(now) is not Tensor or now.shape != self.first.shape:
            return False
        if self.p._version == self.version and now.is_set_to(self.first):
            return False
        self.left, self.value = now, now.clone()
        return True

    def restart(self) -> None:
        if self.p._version == self.version:  # others are put into its place, not written into it
            self.p.data = self.first

    def put_back(self) -> None:
        self.p.data = self.left
        self.left.copy_(self.value)


class Replay:
    """Makes all passes of a step the same function of the weights.

    Random numbers: every pass starts from the generator states of the first, so that dropout and
    stochastic depth draw the same masks; afterwards the states are those that the first pass left,
    so that a method uses up exactly the random numbers of its base optimizer.

    Buffers: those of `model` that the first pass moved (batch-norm statistics, whatever their
    momentum, and any other running buffer) start each later pass as they started the first, and
    are put back after it as that one left them. A module counts as moved if a version counter of
    its buffers says so, or if it keeps running statistics at all: torch's batch norm writes them
    past the counter. So it is with parameters that are not trained, such as a momentum encoder's,
    but that those which are written in place start later passes as the first one left them: to keep
    them, all that is frozen would have to be copied.

    Gradients of parameters of `model` that another optimizer trains are the first pass's too.

    With `undoes`, what the first pass did to the buffers can be undone.
    """

    def __init__(
        self, params: Sequence[Tensor], model: nn.Module | None, undoes: bool = False
    ) -> None:
        self.model = model
        self.undoes = undoes
        self.before: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        self.frozen: list[_Frozen] = []
        self.devices = sorted({p.device for p in params if p.device.type != "cpu"}, key=str)
        self.start: list[Tensor] | None = None
        self.moved: list[tuple[nn.Module, str, Tensor]] = []
        self.values: Tensors = []
        own = {id(p) for p in params}
        all_params = model.parameters() if model is not None else iter(())
        self.others = [p for p in all_params if id(p) not in own]
        self.other_grads: list[Tensor | None] = []

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        if self.start is None:
            self.start = self._random_states()
            self.before = [
                (m, name, b, b.clone())
                for m in self._modules()
                if self.undoes or not _only_writes(m)
                for name, b in m.named_buffers(recurse=False)
            ]
            before = {id(b): b._version for m in self._modules() for b in m.buffers(False)}
            frozen = [_Frozen(p) for p in self.others if not p.requires_grad]
            yield
            for module in self._modules():
                if any(
                    name.startswith("running_") or before.get(id(b)) != b._version
                    for name, b in module.named_buffers(recurse=False)
                ):
                    self.moved += [(module, n, b) for n, b in module.named_buffers(recurse=False)]
            self.values = tn.clone([b for _, _, b in self.moved])
            self.frozen = [p for p in frozen if p.has_moved()]
            self.other_grads = [p.grad if p.grad is None else p.grad.clone() for p in self.others]
            return
        after = self._random_states()
        self._set_random_states(self.start)
        moved = {(id(module), name) for module, name, _ in self.moved}
        self._put_back([each for each in self.before if (id(each[0]), each[1]) in moved])
        for p in self.frozen:
            p.restart()
        try:
            yield
        finally:
            self._set_random_states(after)
            for module, name, buffer in self.moved:
                module._buffers[name] = buffer
            tn.copy_([b for _, _, b in self.moved], self.values)
            for p in self.frozen:
                p.put_back()
            for other, grad in zip(self.others, self.other_grads, strict=True):
                if grad is None or other.grad is None:
                    other.grad = grad
                else:
                    other.grad.copy_(grad)

    def undo(self) -> None:
        """Puts the buffers back as they were before the first pass."""
        self._put_back(self.before)

    @staticmethod
    def _put_back(buffers: Sequence[tuple[nn.Module, str, Tensor, Tensor]]) -> None:
        for module, name, buffer, _ in buffers:
            module._buffers[name] = buffer
        tn.copy_([b for _, _, b, _ in buffers], [value for *_, value in buffers])

    def rewind(self) -> None:
        """Puts the generators back as they were before the first pass."""
        assert self.start is not None
        self._set_random_states(self.start)

    def _modules(self) -> Iterator[nn.Module]:
        return self.model.modules() if self.model is not None else iter(())

    def _random_states(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        for device in self.devices:
            states.append(torch.get_device_module(device).get_rng_state(device))
        return states

    def _set_random_states(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self.devices, states[1:], strict=True):
            torch.get_device_module(device).set_rng_state(state, device)
