"""Checkpoints in torch's usual form: the method's state lies beside the base optimizer's.

A checkpoint holds the state of the base optimizer. The entry of each parameter also holds what the
parts keep of it (``crsam_NAME``). Each group also holds the hyper-parameters (``rho``, ``alpha``,
…), the number of steps (``crsam_step``), the highest learning rate (``crsam_lr_max``) and the plain
numbers of the parts. The seed, the warm-up and options such as ``trust`` are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from crsam.optim.context import kept_as
from crsam.optim.part import Part

if TYPE_CHECKING:
    from crsam.optim.optimizer import SharpnessAware

PREFIX = "crsam_"
"""The prefix of what a method adds to groups and states, except for its hyper-parameters."""
COUNTER = PREFIX + "step"
"""In each group: how many steps were taken."""
LR_MAX = PREFIX + "lr_max"
"""In each group, where ρ follows the learning rate: the highest one."""

Memory = Mapping[nn.Parameter, Mapping[str, Tensor]]


def merged(
    state_dict: dict[str, Any], params: Sequence[nn.Parameter], memory: Memory
) -> dict[str, Any]:
    """Returns the base optimizer's state dict with `memory` added to the parameters' entries."""
    state = {
        key: dict(entry) if isinstance(entry, Mapping) else entry
        for key, entry in state_dict["state"].items()
    }
    for index, p in enumerate(params):
        for name, tensor in memory.get(p, {}).items():
            state.setdefault(index, {})[PREFIX + name] = tensor
    return {**state_dict, "state": state}


def parted(
    state_dict: Mapping[str, Any], names: set[str]
) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
    """Splits a state dict into the base optimizer's, and each parameter's tensors called `names`.

    Parameters are matched through the lists in the groups, as torch does. Distributed checkpoints
    put names into these lists, and other checkpoints put numbers.
    """
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    entries = [state_dict["state"].get(key, {}) for key in keys]
    ours = [{n: entry[PREFIX + n] for n in names if PREFIX + n in entry} for entry in entries]
    return {**state_dict, "state": _of_the_base(state_dict["state"])}, ours


def by_parameter(state: Mapping[Any, Any]) -> list[Mapping[str, Any]]:
    """Returns the entries of a `state` that are dicts.

    An optimizer has such an entry for each parameter. Some also keep a value of their own there:
    madgrad's ``state["k"]`` is a tensor that counts steps.
    """
    return [entry for entry in state.values() if isinstance(entry, Mapping)]


def _of_the_base(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns the entries without the tensors that a method added.

    An entry of which nothing is left is dropped. A base optimizer fills a missing entry at its
    first step, but takes an empty one for filled.
    """
    found: dict[Any, Any] = {}
    for key, entry in state.items():
        if not isinstance(entry, Mapping):  # a number or a tensor of the base, such as a count
            found[key] = entry
        elif left := {name: v for name, v in entry.items() if not str(name).startswith(PREFIX)}:
            found[key] = left
    return found


def marks(group: Mapping[str, Any], base: Optimizer) -> set[str]:
    """Of a parameter group's keys, those that methods put there: by them a method is known."""
    kinds = Part.__subclasses__()
    hyper = {
        name for kind in kinds for part in kind.registered.values() for name in part.group_options
    }
    return {key for key in group if key.startswith(PREFIX) or key in hyper - base.defaults.keys()}


def forget(base: Optimizer) -> None:
    """Removes from a base optimizer everything that an earlier method added to it."""
    wrapped = [group for group in base.param_groups if COUNTER in group]
    for group in wrapped:
        for key in marks(group, base):
            del group[key]
    if wrapped:
        left = _of_the_base(base.state)
        base.state.clear()
        base.state.update(left)


def completed(
    memory: Memory, params: Sequence[nn.Parameter], parts: Sequence[Part]
) -> dict[nn.Parameter, dict[str, Tensor]]:
    """Returns what the parts remember, or start from.

    All checkpoints of a method then have the same entries, as distributed ones must.
    """
    names = {name for part in parts for name in part.tensor_state}
    whole = {p: {n: entry[n] for n in entry if n in names} for p, entry in memory.items()}
    for p in params:
        entry = whole.setdefault(p, {})
        for part in parts:
            for name in part.tensor_state:
                entry[name] = entry[name] if name in entry else part.fresh(p)
    return {p: entry for p, entry in whole.items() if entry}


def saved(optimizer: SharpnessAware) -> dict[str, Any]:
    """Returns the state dict of an optimizer, with its method's state."""
    for before in optimizer._optimizer_state_dict_pre_hooks.values():
        before(optimizer)
    groups = optimizer.param_groups
    memory: Memory = {}
    if optimizer.tensor_state or optimizer.state or groups[0][COUNTER]:
        trained = [p for p in _params_of(groups) if p.requires_grad]
        memory = completed(optimizer.tensor_state, trained, optimizer.parts)
    found = merged(optimizer.base.state_dict(), _params_of(groups), memory)
    for after in optimizer._optimizer_state_dict_post_hooks.values():
        found = after(optimizer, found) or found
    return found


def load(optimizer: SharpnessAware, state_dict: dict[str, Any]) -> None:
    """Loads a checkpoint into an optimizer, if it is one of its method or of the plain base."""
    if optimizer._optimizer_load_state_dict_pre_hooks:
        state_dict = dict(state_dict)
    for before in optimizer._optimizer_load_state_dict_pre_hooks.values():
        state_dict = before(optimizer, state_dict) or state_dict
    optimizer.check_state_dict(state_dict)
    names = {name for part in optimizer.parts for name in part.tensor_state}
    groups = [dict(group) for group in optimizer.param_groups]
    theirs, ours = parted(state_dict, names)
    optimizer.base.load_state_dict(theirs)
    optimizer.tensor_state = memory_of(_params_of(optimizer.param_groups), ours)
    for group, old in zip(optimizer.param_groups, groups, strict=True):
        for key in (COUNTER, LR_MAX, *optimizer.defaults_of_method()):
            if key in old:
                group.setdefault(key, old[key])
    optimizer.report = {}
    for after in optimizer._optimizer_load_state_dict_post_hooks.values():
        after(optimizer)


def _params_of(groups: Iterable[Mapping[str, Any]]) -> list[nn.Parameter]:
    return [p for group in groups for p in group["params"]]


def memory_of(
    params: Sequence[nn.Parameter], entries: Sequence[Mapping[str, Tensor]]
) -> dict[nn.Parameter, dict[str, Tensor]]:
    """Returns copies of loaded tensors by parameter, in the parameters' dtypes and devices."""
    return {
        p: {name: kept_as(p, value.detach().clone()) for name, value in entry.items()}
        for p, entry in zip(params, entries, strict=True)
        if entry
    }


def only_makes_state(base: Optimizer) -> bool:
    """Whether a step without a closure is the one that ``torch.distributed.checkpoint`` takes.

    It wants to see the state of an optimizer that has none yet, and to that end sets all rates and
    all gradients to 0. A user's forgotten closure never looks like that.
    """
    if base.state or isinstance(base, LBFGS):
        return False
    trained = [p for group in base.param_groups for p in group["params"] if p.requires_grad]
    return all(float(group.get("lr", 0.0)) == 0.0 for group in base.param_groups) and all(
        p.grad is not None and not p.grad.count_nonzero() for p in trained
    )
