"""What the three kinds of part (ascent, objective, schedule) have in common."""

from __future__ import annotations

import math
from abc import ABC
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor


class Part(ABC):  # noqa: B024
    """One of the three choices that make a method: a frozen dataclass, a pure function of a step.

    A part holds no state. What it must remember from step to step it gives to the `Step`, which
    keeps it only if the whole step succeeds and puts it into the optimizer's checkpoint.
    """

    hyper: ClassVar[tuple[str, ...]] = ()
    """Fields that live in the parameter groups: they may differ by group and be scheduled."""
    memory: ClassVar[tuple[str, ...]] = ()
    """Names of what it remembers: lists of tensors, one for each parameter."""
    numbers: ClassVar[tuple[str, ...]] = ()
    """Names of the plain numbers it remembers; they start at 0."""
    needs_samples: ClassVar[bool] = False
    """Whether the closure must be a `PerSample`."""
    stays_on_device: ClassVar[bool] = True
    """Whether it neither reads numbers off the device nor draws some on the host: a CUDA graph can
    then hold it."""

    def __post_init__(self) -> None:
        for name in self.hyper:
            self.check(name, getattr(self, name))

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError unless `value` is allowed for the hyper-parameter `name`."""
        non_negative(name, value)

    def factor(self, name: str, count: int) -> float:
        """By what the group's value of the hyper-parameter `name` is multiplied at step `count`."""
        return 1.0

    def fresh(self, p: Tensor) -> Tensor:
        """What stands for having nothing to remember of a parameter yet."""
        return torch.zeros_like(p)


class Registered(Part):
    """A part that is listed under its kind as soon as its file is imported."""

    registered: ClassVar[dict[str, type[Registered]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Registered in cls.__bases__:
            cls.registered = {}
        elif not cls.__name__.startswith("_"):
            other = cls.registered.get(cls.__name__)
            taken = other is not None and other.__module__ != cls.__module__
            cls.registered[f"{cls.__module__}.{cls.__name__}" if taken else cls.__name__] = cls


def non_negative(name: str, value: Any) -> None:
    _number(name, value)
    if not value >= 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def share(name: str, value: Any, *, zero: bool = False) -> None:
    """A share of something: above 0 (or 0, where allowed) and at most 1."""
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
