"""`Wrapper`: one set of groups, one state and one checkpoint, of a base and its method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from crsam.optim.ascent import Ascent
from crsam.optim.checkpoint import COUNTER, LR_MAX, PREFIX, completed, forget, merged, parted
from crsam.optim.checks import check_groups, check_method, check_parts, check_state
from crsam.optim.objective import Objective
from crsam.optim.part import Part
from crsam.optim.radius import FollowLearningRate
from crsam.optim.schedule import Schedule
from crsam.optim.step import kept_as

KINDS = ("ascent", "objective", "schedule")


class Wrapper(Optimizer):
    """An optimizer around another: the groups and the state are the base's, whoever changes them.

    What the parts keep is put beside: hyper-parameters, numbers and the count of steps in the
    groups, tensors in the checkpoint. How a step is taken is told in `SharpnessAware`.
    """

    report: dict[str, Tensor]
    """What the last step saw, as 0-d tensors.

    Every step reports ``loss`` and ``grad_norm``. A step with perturbed passes also reports
    ``loss_plus``, ``sharpness`` (``L(w+e) − L(w)``) and ``rho``. CR-SAM adds ``loss_minus`` and
    ``curvature``.

    ``rho`` is the ρ that the step used: the value in the parameter group after the warm-up and, for
    GSAM, after the learning rate. If groups have different ρ, it is that of the first group with a
    trained parameter."""

    def __init__(
        self,
        base: Optimizer,
        ascent: Ascent,
        objective: Objective,
        schedule: Schedule,
        follow: FollowLearningRate | None,
    ) -> None:
        self.base = base
        self.ascent, self.objective, self.schedule = ascent, objective, schedule
        self.follow = follow
        self.report = {}
        self._memory: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._keys = {
            name: PREFIX + name if name in base.defaults else name
            for part in self.parts
            for name in part.hyper
        }
        self._hyper = {self._keys[n]: getattr(part, n) for part in self.parts for n in part.hyper}
        self._numbers = {PREFIX + n: 0.0 for part in self.parts for n in part.numbers}
        forget(base)
        for params in base.param_groups:
            self._check_group(params)
        # torch's constructor sets empty groups and state. The base keeps its own: it may have state
        # already, and a wrapper such as Lookahead cannot replace those of the optimizer inside it.
        self._is_made = False
        super().__init__(base.param_groups, {**base.defaults, **self._hyper})
        self._is_made = True

    if not TYPE_CHECKING:  # to which any name could then be given a value

        def __setattr__(self, name: str, value: Any) -> None:
            if "_keys" in self.__dict__:
                if instead := self._instead(name, value):
                    raise AttributeError(instead)
                self._check_attribute(name, value)
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            # Trainers look for these two: a schedule-free base has them, a plain one has not.
            if name in ("train", "eval") and "base" in self.__dict__:
                return getattr(self.base, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _instead(self, name: str, value: Any) -> str | None:
        """Why an attribute would be ignored, and what to do; None: it would not."""
        if name in self._keys:
            return (
                f"{name} lives in the parameter groups: "
                f"for group in opt.param_groups: group[{self._keys[name]!r}] = {value!r}"
            )
        if name in KINDS and type(value) is type(getattr(self, name)):
            for key in value.hyper:
                if getattr(value, key) != getattr(getattr(self, name), key):
                    return self._instead(key, getattr(value, key))
        if not self._is_ours() or hasattr(type(self), name):
            return None
        kinds = [kind for kind in KINDS if name in _options(getattr(self, kind))]
        if not kinds:
            return None
        put = "; ".join(f"opt.{k} = dataclasses.replace(opt.{k}, {name}={value!r})" for k in kinds)
        return f"{name} belongs to the {' and the '.join(kinds)}: {put}"

    def _check_attribute(self, name: str, value: Any) -> None:
        """Raises ValueError for what the constructor would have refused, too."""
        if name in KINDS:
            old = type(getattr(self, name))
            if type(value) is not old:
                raise ValueError(
                    f"the {name} is a {old.__name__}, and stays one: for another method, wrap the "
                    "base optimizer anew"
                )
            check_parts(*(value if kind == name else getattr(self, kind) for kind in KINDS))

    @classmethod
    def _is_ours(cls) -> bool:
        """Whether it is made as told here, and not by a subclass, which has its own ways."""
        made_by = next(each for each in cls.__mro__ if "__init__" in vars(each))
        return made_by.__module__.startswith("crsam.")

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        if self._is_made:
            self.base.param_groups = groups

    @property
    def state(self) -> Any:
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        if self._is_made:
            self.base.state = state

    @property
    def parts(self) -> tuple[Ascent, Objective, Schedule]:
        return (self.ascent, self.objective, self.schedule)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the base optimizer, with this method's hyper-parameters filled in."""
        if not self._is_made:  # torch's constructor goes over the base's own groups
            self._complete(param_group)
            return
        if isinstance(param_group, dict) and "params" in param_group:  # else the base says so
            if isinstance(param_group["params"], Iterator):  # it can be looked at but once
                param_group["params"] = list(param_group["params"])
            check_groups([param_group])
            self._check_group(param_group)
        self.base.add_param_group(param_group)
        self._complete(self.param_groups[-1])

    def _complete(self, group: dict[str, Any]) -> None:
        """Fills in what this method keeps in a group."""
        first = self.param_groups[0]
        for key, value in self._hyper.items():
            group.setdefault(key, value.clone() if isinstance(value, Tensor) else value)
        for key, value in {COUNTER: 0, **self._numbers}.items():
            group.setdefault(key, first.get(key, value))
        if self.follow is not None:
            group.setdefault(LR_MAX, float(group.get("initial_lr", group["lr"])))

    def _check_group(self, group: Mapping[str, Any]) -> None:
        for part in self.parts:
            for name in part.hyper:
                if self._keys[name] in group:
                    part.check(name, group[self._keys[name]])

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state dict, with the method's state beside the base's."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        has_any = bool(self._memory or self.state or self.param_groups[0][COUNTER])
        memory = completed(self._memory, self._trained_params(), self.parts) if has_any else {}
        found = merged(self.base.state_dict(), self._all_params(), memory)
        for after in self._optimizer_state_dict_post_hooks.values():
            found = after(self, found) or found
        return found

    def _make_state(self) -> Tensor:
        """What a first step would make, as ``torch.distributed.checkpoint`` wants to see it."""
        self.base.step()
        self._memory = completed(self._memory, self._trained_params(), self.parts)
        return torch.zeros(())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up a checkpoint of this method, or of the plain base optimizer.

        What the latter lacks, such as the hyper-parameters of ours, stays as it is here. To go on
        from a checkpoint of another method, load it into the base optimizer before you wrap that.

        Raises:
            ValueError: For what is neither of the two; nothing has been changed.
        """
        if self._optimizer_load_state_dict_pre_hooks:
            state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        check_state(state_dict)
        names = {name for part in self.parts for name in part.memory}
        check_method(type(self).__name__, state_dict, self.base, names)
        for saved in state_dict["param_groups"]:
            self._check_group(saved)
        groups = [dict(group) for group in self.param_groups]
        theirs, ours = parted(state_dict, names)
        self.base.load_state_dict(theirs)
        self._memory = {
            p: {name: kept_as(p, value.detach().clone()) for name, value in entry.items()}
            for p, entry in zip(self._all_params(), ours, strict=True)
            if entry
        }
        for group, old in zip(self.param_groups, groups, strict=True):
            for key in (COUNTER, LR_MAX, *self._hyper, *self._numbers):
                if key in old:
                    group.setdefault(key, old[key])
        self.report = {}
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _all_params(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def _trained_params(self) -> list[nn.Parameter]:
        return [p for p in self._all_params() if p.requires_grad]


def _options(part: Part) -> set[str]:
    return {field.name for field in fields(part)} if is_dataclass(part) else set()
