"""The same random masks in every pass of a step, and the first pass's batch-norm statistics."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from crsam import _tensors as tn
from crsam.optim.double_step_guard import old_graph, uses_an_old_graph

_moving: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Of each module that was looked at, the buffers and untrained parameters that passes move."""


class _Buffer(NamedTuple):
    """One that a module has, or had; None where there is nothing in its place."""

    module: nn.Module
    name: str
    tensor: Tensor | None
    value: Tensor | None


class Replay:
    """Makes all passes of a step the same function of the weights.

    Random numbers: every pass starts from the generator states of the first, so that dropout and
    stochastic depth draw the same masks; afterwards the states are those that the first pass left,
    so that a method uses up exactly the random numbers of its base optimizer.

    Buffers: those of `model` that the first pass moved (batch-norm statistics, whatever their
    momentum, and any other running buffer) start each later pass as they started the first, and
    are put back after it as that one left them. A module counts as moved if a version counter of
    its buffers says so, or if it keeps running statistics at all: torch's batch norm writes them
    past the counter. So that not all buffers are copied at every step, those that the first step
    did not move are not, until they are seen to move.

    Parameters of `model` that are not trained, such as a momentum encoder's, move once a step too.
    Those that are replaced (``p.data = …``) start later passes as they started the first; those
    that are written in place start them as the first one left them.

    Gradients of parameters of `model` that another optimizer trains are the first pass's too.

    `undo` puts back the buffers that were seen to move in this or an earlier step; with `undoes`,
    all of them. A `watch` looks at the second pass.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        model: nn.Module | None,
        undoes: bool = False,
        watch: StatisticsWatch | None = None,
    ) -> None:
        self.params = params
        self.model = model
        self.undoes = undoes
        self.watch = watch
        self.before: list[_Buffer] = []
        self.restarted: list[_Buffer] = []
        self.after: list[_Buffer] = []
        self.began: dict[int, set[str]] = {}
        self.frozen: list[_Frozen] = []
        self.devices = sorted({p.device for p in params if p.device.type != "cpu"}, key=str)
        self.start: list[Tensor] | None = None
        self.modules = list(all_modules(model))
        own = set(map(id, params))
        others: dict[int, nn.Parameter] = {}
        for module in self.modules:
            for p in module._parameters.values():
                if p is not None and id(p) not in own:
                    others[id(p)] = p
        self.others = list(others.values())
        self.other_grads: list[Tensor | None] = []

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        if self.start is None:
            self.start = self._random_states()
            versions = self._begin()
            try:
                yield
            except RuntimeError as error:
                self._name_old_graph(error, is_first=True)
                raise
            self._look_back(versions)
            self.other_grads = [p.grad if p.grad is None else p.grad.clone() for p in self.others]
            return
        after = self._random_states()
        self._set_random_states(self.start)
        for module, name, *_ in self.after:  # a pass makes what it does not find
            if name not in self.began.get(id(module), ()) and module in self.modules:
                module._buffers.pop(name, None)
        _put_back(self.restarted)
        for p in self.frozen:
            p.restart()
        watch = None if self.watch is None or self.watch.is_done else self.watch
        begun = [] if watch is None else watch.begin(self.params)
        try:
            yield
            if watch is not None:
                watch.end(begun)
        except RuntimeError as error:
            self._name_old_graph(error, is_first=False)
            raise
        finally:
            self._set_random_states(after)
            _put_back(self.after)
            for p in self.frozen:
                p.put_back()
            for other, grad in zip(self.others, self.other_grads, strict=True):
                if grad is None or other.grad is None:
                    other.grad = grad
                else:
                    other.grad.copy_(grad)

    def _name_old_graph(self, error: RuntimeError, is_first: bool) -> None:
        """Raises an error that names the cause, if torch's own comes from an older graph."""
        if uses_an_old_graph(error, self.params, is_first):
            raise old_graph() from error

    def begun(self) -> Replay:
        """Itself, able to `undo` and `rewind` passes that it does not see."""
        self.start = self._random_states()
        self._begin()
        return self

    def _begin(self) -> dict[int, tuple[Tensor, int]]:
        """Keeps what the first pass may move; all buffers, with their versions."""
        others = {id(p) for p in self.others}
        versions: dict[int, tuple[Tensor, int]] = {}
        for module in self.modules:
            if not (others or module._buffers):
                continue
            known = _moving.get(module)  # None: it has not been looked at
            for name, b in module._buffers.items():
                if b is not None:
                    versions[id(b)] = b, _version(b)
                if self.undoes or known is None or name in known:
                    self.before.append(_Buffer(module, name, b, None if b is None else b.clone()))
            self.began[id(module)] = set(module._buffers.keys())  # scripted ones cannot be iterated
            for name, p in module._parameters.items():
                if p is not None and not p.requires_grad and id(p) in others and _is_plain(p):
                    holds = known is None or name in known
                    self.frozen.append(_Frozen(module, name, p, holds))
        return versions

    def _look_back(self, versions: dict[int, tuple[Tensor, int]]) -> None:
        """Keeps what the first pass has moved, as it left it."""
        kept = {(id(b.module), b.name): id(b.tensor) for b in self.before}
        self.frozen = [p for p in self.frozen if p.has_moved()]
        for module in all_modules(self.model):  # a pass may have made some
            if not (self.others or module._buffers or id(module) in self.began):
                continue
            names = {
                name
                for name, b in module._buffers.items()
                if name.startswith("running_")
                or kept.get((id(module), name), id(b)) != id(b)
                or (b is not None and versions.get(id(b), (b, -2))[1] != _version(b))
            }
            if names:
                self.after += [
                    _Buffer(module, name, b, None if b is None else b.clone())
                    for name, b in module._buffers.items()
                ]
            _moving.setdefault(module, set()).update(names)
        for p in self.frozen:
            _moving[p.module].add(p.name)
        moved = {(id(b.module), b.name) for b in self.after}
        own = [b for b in self.before if (id(b.module), b.name) in moved]
        self.restarted = [b for b in own if self.undoes or not is_torchs_norm(b.module)]
        if not self.undoes:
            self.before = own

    def undo(self) -> None:
        """Puts the buffers, and parameters that were replaced, back as they were at first."""
        _put_back(self.before)
        for p in self.frozen:
            p.restart()

    def rewind(self) -> None:
        """Puts the generators back as they were before the first pass."""
        if self.start is not None:
            self._set_random_states(self.start)

    def _random_states(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        for device in self.devices:
            states.append(torch.get_device_module(device).get_rng_state(device))
        return states

    def _set_random_states(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self.devices, states[1:], strict=True):
            torch.get_device_module(device).set_rng_state(state, device)


def all_modules(model: nn.Module | None) -> Iterator[nn.Module]:
    """Yields what ``model.modules()`` does, in a third of the time and in another order."""
    seen: set[int] = set()
    left = [] if model is None else [model]
    while left:
        module = left.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            left += [each for each in module._modules.values() if each is not None]


class _Frozen:
    """A parameter that is not trained, as the first pass found it and as it left it."""

    def __init__(self, module: nn.Module, name: str, p: Tensor, holds: bool) -> None:
        self.module, self.name, self.p = module, name, p
        self.version, self.place, self.shape = p._version, p.data_ptr(), p.shape
        self.first = p.data if holds else None
        self.left, self.value = p, p

    def has_moved(self) -> bool:
        p = self.p
        if p.shape != self.shape or (p._version, p.data_ptr()) == (self.version, self.place):
            return False
        self.left, self.value = p.data, p.detach().clone()
        return True

    def restart(self) -> None:
        if self.first is not None and self.p._version == self.version:  # not written into
            self.p.data = self.first

    def put_back(self) -> None:
        self.p.data = self.left
        self.left.copy_(self.value)


def is_torchs_norm(module: nn.Module) -> bool:
    """Whether a pass reads its buffers or moves them, but never both."""
    return isinstance(module, _BatchNorm | _InstanceNorm) and type(module).forward in _FORWARDS


_FORWARDS = (_BatchNorm.forward, SyncBatchNorm.forward, _InstanceNorm.forward)


def _is_plain(p: Tensor) -> bool:
    """Whether it has bytes of its own, and says when they change."""
    if type(p) is not nn.Parameter or p.is_inference() or p.is_nested:
        return False
    return p.layout is torch.strided and not (p.is_meta or p.is_quantized)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _put_back(buffers: Sequence[_Buffer]) -> None:
    for module, name, tensor, _ in buffers:
        module._buffers[name] = tensor
    there = [(b.tensor, b.value) for b in buffers if b.tensor is not None and b.value is not None]
    tn.copy_([tensor for tensor, _ in there], [value for _, value in there])


_Statistics = tuple[int, Tensor]


class StatisticsWatch:
    """Finds out once whether batch norm moves its running statistics after the first pass.

    Only an optimizer without ``model=`` needs it. It compares the statistics of all batch norms in
    this process before and after one pass. It uses no module hooks, because compiled models would
    be compiled again for them. It does not see scripted modules.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.found = False

    def begin(self, params: Sequence[Tensor]) -> list[tuple[_BatchNorm, _Statistics]]:
        """Batch norms that may move, with copies of their statistics."""
        sizes = [len(p) for p in params if p.dim() == 1]
        if len(set(sizes)) == len(sizes):  # a batch norm has a weight and a bias of one size
            return []
        # issubclass, because isinstance calls properties of proxies that libraries define.
        norms = [each for each in gc.get_objects() if issubclass(type(each), _BatchNorm)]
        begun = [(norm, _statistics(norm)) for norm in norms if norm.__dict__.get("training")]
        return [(norm, found) for norm, found in begun if found is not None]

    def end(self, begun: list[tuple[_BatchNorm, _Statistics]]) -> None:
        """Compares. With a momentum of 0, batches are counted and nothing else moves."""
        self.is_done = True
        for norm, (version, mean) in begun:
            now = _statistics(norm)
            if now is not None and now[0] != version and not torch.equal(now[1], mean):
                self.found = True


def _statistics(norm: _BatchNorm) -> _Statistics | None:
    """The version of its counter and a copy of its mean, where it has them."""
    mean, counter = (norm._buffers.get(name) for name in ("running_mean", "num_batches_tracked"))
    if mean is None or counter is None or is_lazy(mean) or mean.is_meta or counter.is_inference():
        return None
    return counter._version, mean.clone()
