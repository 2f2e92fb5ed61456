"""The three kinds of part that make a method: ascent, objective and schedule."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from crsam._tensors import Tensors

if TYPE_CHECKING:
    from crsam.optim.closures import Selection
    from crsam.optim.context import StepContext
    from crsam.optim.probe import Evaluation, Offset, Probe


class Part(ABC):
    """One of the three choices that make a method. It is a frozen dataclass without state.

    What a part remembers from step to step goes through the `StepContext`. The optimizer keeps it
    if the whole step succeeds, and puts it into the checkpoint.
    """

    group_options: ClassVar[tuple[str, ...]] = ()
    """Fields that live in the parameter groups. They may differ by group and be scheduled."""
    tensor_state: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors that it remembers, one tensor for each parameter."""
    scalar_state: ClassVar[tuple[str, ...]] = ()
    """Names of the plain numbers that it remembers. They start at 0."""
    needs_samples: ClassVar[bool] = False
    """Whether the closure must be a `PerSample`."""
    stays_on_device: ClassVar[bool] = True
    """Whether it reads no number off the device and draws none on the host. Only then can a CUDA
    graph hold it."""
    registered: ClassVar[dict[str, type[Any]]]
    """The parts of one kind by name. A part is listed as soon as its file is imported."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Part in cls.__bases__:
            cls.registered = {}
        elif not cls.__name__.startswith("_"):
            other = cls.registered.get(cls.__name__)
            taken = other is not None and other.__module__ != cls.__module__
            cls.registered[f"{cls.__module__}.{cls.__name__}" if taken else cls.__name__] = cls

    def __post_init__(self) -> None:
        for name in self.group_options:
            self.check(name, getattr(self, name))

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError unless `value` is allowed for the hyper-parameter `name`."""
        non_negative(name, value)

    def factor(self, name: str, count: int) -> float:
        """Returns what a hyper-parameter is multiplied by after `count` steps."""
        return 1.0

    def fresh(self, p: Tensor) -> Tensor:
        """Returns what the memory of a parameter starts from. Defaults to zeros."""
        return torch.zeros_like(p)


class Ascent(Part):
    """A rule for the offset ``e`` at which the objective evaluates loss and gradient."""

    def start(self, context: StepContext) -> Offset | None:
        """Returns where the step takes its first pass. None is at ``w``.

        It is called only if neither objective nor schedule needs the pass at ``w``. The result is
        then ``context.start``, and `offset` gets what the probe saw there as its `center`.
        """
        return None

    @abstractmethod
    def offset(self, context: StepContext, center: Evaluation, probe: Probe) -> Offset:
        """Returns the offset from ``w``, given loss and gradient there.

        It must not write into ``center.grads``. A new list of the same tensors may be the
        direction. After a first pass at ``context.start`` nobody else reads these gradients, and it
        may write into them.
        """


class Objective(Part):
    """A rule for the surrogate gradient that the base optimizer follows."""

    needs_center: ClassVar[bool] = True
    """Whether it needs loss and gradient at ``w``. If so, and the schedule selects part of the
    batch, the gradient at ``w`` is taken again on that part. If not, ``center.grads`` is empty, and
    the ascent may take the first pass elsewhere (`Ascent.start`)."""

    def points(self, context: StepContext, offset: Offset) -> list[Offset]:
        """Returns the offsets at which it needs loss and gradient. Defaults to ``e`` alone."""
        return [offset]

    @abstractmethod
    def combine(
        self, context: StepContext, center: Evaluation, values: Sequence[Evaluation]
    ) -> Tensors:
        """Returns the surrogate gradient, given what the probe saw at `points`.

        It may write into ``center.grads`` (empty unless `needs_center`) and into all gradients of
        `values`.
        """

    def plan(self, count: int) -> Hashable:
        """Returns the kind of the step after `count` steps. Each kind has a CUDA graph."""
        return None


class Schedule(Part):
    """A rule for when the perturbed passes are taken, and on which samples."""

    needs_center: ClassVar[bool] = True
    """Whether it needs the gradient at ``w``, its norm, or the samples' losses there."""

    def refuses(self, objective: Objective) -> str | None:
        """Returns why this schedule cannot be used with this objective. None: it can."""
        return None

    def runs_perturbed_passes(self, context: StepContext) -> bool:
        """Returns whether this step takes the perturbed passes.

        It is called after the first pass. A captured step calls it before that too, so a schedule
        that stays on the device decides by ``context.count`` alone.
        """
        return True

    def select(
        self, context: StepContext, center: Evaluation, offset: Offset, probe: Probe
    ) -> Selection | None:
        """Returns the samples that the perturbed passes use. None: the whole batch."""
        return None

    @property
    def reuses(self) -> bool:
        """Whether `after_full_step` needs ``g0``. A copy of it is then kept."""
        return False

    def after_full_step(self, context: StepContext, g_0: Tensors, surrogate: Tensors) -> Tensors:
        """Returns what to follow after the perturbed passes. `g_0` is empty unless `reuses`."""
        return surrogate

    def after_cheap_step(self, context: StepContext, g_0: Tensors) -> Tensors:
        """Returns what to follow in a step without perturbed passes."""
        return g_0


class Parts(NamedTuple):
    """The parts of a method."""

    ascent: Ascent
    objective: Objective
    schedule: Schedule

    @property
    def needs_center(self) -> bool:
        """Whether the first pass must be at ``w``."""
        return self.objective.needs_center or self.schedule.needs_center


def non_negative(name: str, value: Any) -> None:
    _number(name, value)
    if not value >= 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def share(name: str, value: Any, *, zero: bool = False) -> None:
    """Checks a share of something: above 0 (or 0, where allowed) and at most 1."""
    _number(name, value)
    if not (0 < value <= 1 or (zero and value == 0)):
        allowed = "between 0 and 1" if zero else "above 0 and at most 1"
        raise ValueError(f"{name} must be {allowed}, got {value}")


def at_least(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real | Tensor):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if isinstance(value, Tensor) and value.ndim:
        raise ValueError(f"{name} must be a single number, got shape {tuple(value.shape)}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
