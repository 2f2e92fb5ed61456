"""What a CUDA graph needs to know of an optimizer, for ours and for plain ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.context import Generators
from crsam.optim.functional import Functional
from crsam.optim.optimizer import SharpnessAware
from crsam.optim.state import by_parameter


class NextStep(NamedTuple):
    """What is known of a step before it is taken."""

    plan: Hashable
    """The kind of the step. Each kind has a graph."""
    seed_of: Callable[[int], int]
    """The seed of each stream of random numbers."""


class Capturable(Protocol):
    """An optimizer whose whole step can be captured."""

    def blocker(self) -> str | None:
        """Returns why a step cannot be captured. None: it can."""

    def fixed(self) -> tuple[Any, ...]:
        """Returns what a graph holds as it was when it was captured."""

    def next_step(self) -> NextStep:
        """Returns what is known of the next step."""

    def numbers(self) -> dict[Hashable, Any]:
        """Returns the numbers that a step reads, by name."""

    def run(
        self, closure: Functional, inputs: Mapping[Hashable, Tensor], generators: Generators
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Does what a step does on the device, with `inputs` in place of the numbers.

        Returns:
            The loss, and the report.
        """

    def commit(self, report: dict[str, Tensor]) -> None:
        """Does what a step does on the host."""

    def tensors(self) -> Tensors:
        """Returns all tensors of the optimizer's state that a step changes."""


class PlainStep:
    """An optimizer of torch. Its step is one pass."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def blocker(self) -> str | None:
        return _blocker_of_base(self.optimizer)

    def fixed(self) -> tuple[Any, ...]:
        return ()

    def next_step(self) -> NextStep:
        return NextStep(None, lambda stream: 0)

    def numbers(self) -> dict[Hashable, Any]:
        return _rates(self.optimizer)

    def run(
        self, closure: Functional, inputs: Mapping[Hashable, Tensor], generators: Generators
    ) -> tuple[Tensor, dict[str, Tensor]]:
        groups = self.optimizer.param_groups
        params = [p for group in groups for p in group["params"] if p.requires_grad]
        probe = closure.new_probe(params)
        evaluation = probe()
        for i, (p, grad) in enumerate(zip(params, evaluation.grads, strict=True)):
            p.grad = grad if i in probe.seen else None
        with _rates_from(self.optimizer, inputs):
            self.optimizer.step()
        return evaluation.loss, {}

    def commit(self, report: dict[str, Tensor]) -> None:
        pass

    def tensors(self) -> Tensors:
        return _tensors_of(self.optimizer)


class MethodStep:
    """A step of `SharpnessAware`."""

    def __init__(self, optimizer: SharpnessAware) -> None:
        self.optimizer: SharpnessAware = optimizer

    def blocker(self) -> str | None:
        for part in self.optimizer.parts:
            if not part.stays_on_device:
                return f"{type(part).__name__} reads or draws numbers on the host"
        return _blocker_of_base(self.optimizer.base)

    def fixed(self) -> tuple[Any, ...]:
        return (*self.optimizer.parts, self.optimizer.max_norm)

    def next_step(self) -> NextStep:
        context, parts = self.optimizer.new_context(), self.optimizer.parts
        runs = parts.schedule.runs_perturbed_passes(context)
        return NextStep((runs, parts.objective.plan(context.count)), context.seed_of)

    def numbers(self) -> dict[Hashable, Any]:
        options = self.optimizer.group_options()
        numbers = _rates(self.optimizer)
        for name, values in options.items():
            numbers |= {(i, name): value for i, value in enumerate(values)}
        return numbers

    def run(
        self, closure: Functional, inputs: Mapping[Hashable, Tensor], generators: Generators
    ) -> tuple[Tensor, dict[str, Tensor]]:
        groups = range(len(self.optimizer.param_groups))
        names = self.optimizer.group_options()
        options: Any = {name: [inputs[i, name] for i in groups] for name in names}

        def new_context(leader: Any = None) -> Any:
            return self.optimizer.new_context(leader, options, generators)

        with _rates_from(self.optimizer, inputs):
            context, loss = self.optimizer.take(closure, new_context)
        for name, tensors in context.new_tensor_state.items():
            memory = [self.optimizer.tensor_state.setdefault(p, {}) for p in context.params]
            for entry, tensor in zip(memory, tensors, strict=True):
                entry.setdefault(name, torch.empty_like(tensor))
            # In place: a graph of another plan reads it there.
            tn.copy_([entry[name] for entry in memory], tensors)
        return loss, context.report

    def commit(self, report: dict[str, Tensor]) -> None:
        self.optimizer.commit(report, {})

    def tensors(self) -> Tensors:
        kept = self.optimizer.tensor_state.values()
        ours = [t for entry in kept for t in entry.values()]
        return [*_tensors_of(self.optimizer), *ours]


def capturable(optimizer: Optimizer) -> Capturable:
    """Returns what a graph needs to know of an optimizer."""
    if isinstance(optimizer, SharpnessAware):
        return MethodStep(optimizer)
    return PlainStep(optimizer)


def _blocker_of_base(base: Optimizer) -> str | None:
    if any(p.device.type != "cuda" for group in base.param_groups for p in group["params"]):
        return "the parameters are not on a CUDA device"
    if not isinstance(base, SGD) and "capturable" not in base.defaults:
        return f"torch cannot capture {type(base).__name__}"
    return None


def _rates(optimizer: Optimizer) -> dict[Hashable, Any]:
    return {(i, "lr"): group["lr"] for i, group in enumerate(optimizer.param_groups)}


@contextmanager
def _rates_from(optimizer: Optimizer, inputs: Mapping[Hashable, Tensor]) -> Iterator[None]:
    """Within, the learning rates of the groups are tensors of `inputs`."""
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for i, group in enumerate(optimizer.param_groups):
            group["lr"] = inputs[i, "lr"]
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate


def _tensors_of(optimizer: Optimizer) -> Tensors:
    entries: list[Any] = [*by_parameter(optimizer.state), optimizer.state]
    return [t for entry in entries for t in entry.values() if isinstance(t, Tensor)]
