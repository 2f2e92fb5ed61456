"""Checkpoints in torch's usual form: the method's tensors lie beside the base optimizer's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from crsam.optim.part import Part

PREFIX = "crsam_"
"""Of all that a method adds to parameter groups and states, but for its hyper-parameters."""
COUNTER = PREFIX + "step"
"""In each group: how many steps were taken."""
LR_MAX = PREFIX + "lr_max"
"""In each group, where ρ follows the learning rate: the highest one."""

Memory = Mapping[nn.Parameter, Mapping[str, Tensor]]


def merged(
    state_dict: dict[str, Any], params: Sequence[nn.Parameter], memory: Memory
) -> dict[str, Any]:
    """The base optimizer's state dict with `memory` put in."""
    state = {index: dict(entry) for index, entry in state_dict["state"].items()}
    for index, p in enumerate(params):
        for name, tensor in memory.get(p, {}).items():
            state.setdefault(index, {})[PREFIX + name] = tensor
    return {**state_dict, "state": state}


def parted(
    state_dict: Mapping[str, Any], names: set[str]
) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
    """The base optimizer's part, and for each parameter what goes by one of `names`.

    Parameters are matched through the groups' lists, as torch does: distributed checkpoints name
    them where others number them.
    """
    theirs: dict[Any, dict[str, Any]] = {}
    for key, entry in state_dict["state"].items():
        base = {name: v for name, v in entry.items() if not str(name).startswith(PREFIX)}
        if base:  # a base optimizer fills its entry at the first step, unless there is one
            theirs[key] = base
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    entries = [state_dict["state"].get(key, {}) for key in keys]
    ours = [{n: entry[PREFIX + n] for n in names if PREFIX + n in entry} for entry in entries]
    return {**state_dict, "state": theirs}, ours


def completed(
    memory: Memory, params: Sequence[nn.Parameter], parts: Sequence[Part]
) -> dict[nn.Parameter, dict[str, Tensor]]:
    """What the parts remember, or would begin with.

    All checkpoints of a method then have the same entries, as distributed ones must.
    """
    whole = {p: dict(entry) for p, entry in memory.items()}
    for p in params:
        entry = whole.setdefault(p, {})
        for part in parts:
            for name in part.memory:
                entry[name] = entry[name] if name in entry else part.fresh(p)
    return {p: entry for p, entry in whole.items() if entry}


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
