"""Finds a user's mistakes before anything is changed, and says each in one line."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, get_args

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer

from crsam._arguments import arguments
from crsam.distributed import Scope
from crsam.errors import UserError, unknown
from crsam.optim.closures import AnyClosure, PerSample, SplittableClosure
from crsam.optim.part import Ascent, Objective, Part, Schedule, at_least, non_negative, one_of
from crsam.optim.state import COUNTER, PREFIX, by_parameter, marks


def check_base(base: Any, wrapper: type[Optimizer]) -> None:
    if isinstance(base, wrapper):
        raise ValueError(
            f"the base is already a {type(base).__name__}: wrap a plain optimizer, and combine "
            "methods by their parts (crsam.SharpnessAware)"
        )
    if hasattr(base, "first_step"):
        raise ValueError(
            f"the base is a {type(base).__name__} with a first_step of its own: wrap the plain "
            "optimizer inside it"
        )
    if not isinstance(base, Optimizer):
        what = base.__name__ if isinstance(base, type) else type(base).__name__
        if hasattr(base, "param_groups") and hasattr(base, "step"):
            raise ValueError(
                f"base must be a torch.optim.Optimizer. {what} has a step() but is not one: wrap "
                "the optimizer inside it, or another one"
            )
        raise ValueError(
            f"base must be a built optimizer, such as torch.optim.SGD(model.parameters(), lr=0.1), "
            f"got {what}"
        )
    if not any(group["params"] for group in base.param_groups):
        raise ValueError("the base optimizer has no parameters")
    check_wrapped(base)
    closure = inspect.signature(base.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty and not isinstance(base, LBFGS):
        raise ValueError(
            f"{type(base).__name__}.step needs a closure, but crsam calls base.step() when the "
            "gradient is there: use a base that steps along the gradient it finds"
        )
    check_groups(base.param_groups)


def check_wrapped(base: Optimizer) -> None:
    """Refuses an optimizer around another whose checkpoint has no place for what we keep."""
    if "_optimizer_state_dict_pre_hooks" in vars(base):  # torch's own constructor has run
        return
    keys = base.state_dict().keys()
    if not {"state", "param_groups"} <= keys:
        name = type(base).__name__
        raise ValueError(
            f"a {name} cannot be the base, because its state_dict() holds {', '.join(keys)} in "
            "place of 'state' and 'param_groups'. Put it outside: "
            f"{name}(crsam.SAM(base)). That works if its step(closure) passes the closure on"
        )


def check_groups(groups: Iterable[Mapping[str, Any]]) -> None:
    for group in groups:
        params = group["params"]
        if group.get("maximize"):
            raise ValueError(
                "maximize=True is not supported: let the closure return the negative loss"
            )
        for p in [params] if isinstance(params, Tensor) else params:
            p = p[1] if isinstance(p, tuple) else p  # with its name
            if isinstance(p, Tensor) and p.is_complex():
                raise ValueError("complex parameters are not supported: use torch.view_as_real")


def check_call(method: type[Optimizer], args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Refuses the call of a sam.py, and says how it reads here; Python would speak of its ρ."""
    given = {**dict(zip(("params", "base_optimizer", "rho", "adaptive"), args)), **options}
    maker: Any = given.get("base_optimizer")
    if isinstance(given.get("params"), type) and len(given) > 1:  # the two the other way round
        maker = given["params"]
    kind = maker.func if isinstance(maker, partial) else maker
    is_class = isinstance(kind, type) and issubclass(kind, Optimizer)
    if not (is_class or isinstance(kind, Optimizer)):
        return
    ours, theirs = [], ["model.parameters()"]
    for name, value in {**(maker.keywords if isinstance(maker, partial) else {}), **given}.items():
        if name in arguments(method):
            ours.append(f"{name}={name if name == 'model' else repr(value)}")
        elif name not in ("params", "base_optimizer", "adaptive"):
            theirs.append(f"{name}={value!r}")
    base = f"{kind.__name__}({', '.join(theirs)})" if is_class else "optimizer"
    name = "ASAM" if given.get("adaptive") and method.__name__ == "SAM" else method.__name__
    call = f"crsam.{name}({', '.join([base, *ours])})"
    raise TypeError(f"crsam.{name} takes an optimizer that is built: {call}")


def check_unknown(method: type[Optimizer], base: Optimizer, options: Iterable[str]) -> None:
    """Refuses options that there are none of; Python would name another class, and none near."""
    name = next(iter(options), None)
    if name is None:
        return
    if name in base.defaults:
        raise TypeError(f"{name!r} is an option of {type(base).__name__}: give it to that one")
    known = [each for each in arguments(method) if each not in ("base", "unknown")]
    hint = ": crsam.ASAM is adaptive" if name == "adaptive" else ""
    raise TypeError(f"{unknown(f'option of {method.__name__}', name, known)}{hint}")


def check_state(state_dict: Any) -> None:
    is_one = isinstance(state_dict, Mapping) and {"state", "param_groups"} <= state_dict.keys()
    if not is_one:
        raise ValueError("this is not the state_dict() of an optimizer: it has no 'state'")
    if any("old_p" in entry for entry in by_parameter(state_dict["state"])):
        raise ValueError(
            "this is the checkpoint of a sam.py, which holds nothing of its base optimizer (no "
            "momentum): load the model's weights, and start the optimizer afresh"
        )


def check_method(
    method: str, state_dict: Mapping[str, Any], base: Optimizer, memory: Iterable[str]
) -> None:
    """Refuses the checkpoint of another method, whose α may mean something else.

    A method is recognised by the names of its entries. Its own name is not stored: older
    checkpoints would lack that entry, and ``torch.distributed.checkpoint`` could not read them.
    """
    tensors = {str(name) for entry in by_parameter(state_dict["state"]) for name in entry}
    own = {PREFIX + name for name in memory}
    foreign = {n for n in tensors if n.startswith(PREFIX)} - own
    for saved, group in zip(state_dict["param_groups"], base.param_groups):
        has, keeps = marks(saved, base) | foreign, marks(group, base)
        if COUNTER in saved and has != keeps:  # without a counter it is of the plain base
            theirs, ours = (", ".join(sorted(keys - {COUNTER})) for keys in (has, keeps))
            raise ValueError(
                f"this is the checkpoint of another method: it holds {theirs}, where {method} has "
                f"{ours}. To go on from it with {method}, load it into the base optimizer first, "
                f"base.load_state_dict(…), and then wrap that"
            )
    if own - tensors and any(group.get(COUNTER) for group in state_dict["param_groups"]):
        raise ValueError(
            f"this checkpoint lacks {', '.join(sorted(own - tensors))}, without which {method} "
            "cannot go on as it was; torch leaves it out where flatten_optimizer_state_dict=True"
        )


def check_kept(kept: Iterable[str], numbers: Iterable[str], parts: tuple[Part, ...]) -> None:
    for names, kind in ((kept, "tensor_state"), (numbers, "scalar_state")):
        for name in names:
            if not any(name in getattr(part, kind) for part in parts):
                raise RuntimeError(
                    f"a part keeps {name!r}, which is not in its {kind}: checkpoints would lose it"
                )


def check_complete(groups: Iterable[Mapping[str, Any]]) -> None:
    if any(COUNTER not in group for group in groups):
        raise RuntimeError(
            "there is a parameter group without this method's hyper-parameters, which the base "
            "got by itself: wrap it anew. To a wrapped one groups are added with "
            "opt.add_param_group(…), and checkpoints loaded with opt.load_state_dict(…), which "
            "takes the plain base optimizer's too"
        )


def check_options(
    base: Optimizer, warmup: Any, seed: Any, scope: Any, max_norm: float | None, model: Any
) -> None:
    at_least("warmup", warmup, 0)
    at_least("seed", seed, 0)
    one_of("scope", scope, get_args(Scope))
    if max_norm is not None:
        non_negative("max_norm", max_norm)
        if max_norm == 0:
            raise ValueError("max_norm must be above 0, or None to clip nothing: got 0")
    if model is not None and not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if model is not None and (own := {id(p) for p in model.parameters()}):
        trained = {id(p) for group in base.param_groups for p in group["params"]}
        if not own & trained:
            warnings.warn(
                "the base optimizer trains none of the parameters of `model`: is it another model?",
                stacklevel=4,
            )


def check_parts(ascent: Ascent, objective: Objective, schedule: Schedule) -> None:
    for part, kind in ((ascent, Ascent), (objective, Objective), (schedule, Schedule)):
        if not isinstance(part, kind):
            raise ValueError(
                f"{kind.__name__.lower()} must be one of {', '.join(sorted(kind.registered))}, "
                f"got {part!r}"
            )
    names = [name for part in (ascent, objective, schedule) for name in part.group_options]
    if len(names) != len(set(names)):
        raise ValueError(f"two parts share the name of a hyper-parameter: {names}")
    reason = schedule.refuses(objective)
    if reason is not None:
        raise ValueError(reason)


KINDS = ("ascent", "objective", "schedule")


def check_attribute(optimizer: Any, name: str, value: Any) -> None:
    """Raises ValueError if the constructor would have refused an attribute's new value."""
    if name in KINDS:
        old = type(getattr(optimizer, name))
        if type(value) is not old:
            raise ValueError(
                f"the {name} is a {old.__name__}, and stays one: for another method, wrap the "
                "base optimizer anew"
            )
        check_parts(*(value if kind == name else getattr(optimizer, kind) for kind in KINDS))
    elif name in ("warmup", "seed", "scope", "max_norm", "model"):
        new = {**vars(optimizer), "model": None, name: value}
        options = (new[each] for each in ("warmup", "seed", "scope", "max_norm", "model"))
        check_options(optimizer.base, *options)


def instead_of_setting(optimizer: Any, name: str, value: Any) -> str | None:
    """Returns why setting an attribute would have no effect, and what to do. None: it has one."""
    keys = optimizer._keys
    if name in keys:
        return (
            f"{name} lives in the parameter groups: "
            f"for group in opt.param_groups: group[{keys[name]!r}] = {value!r}"
        )
    if name in KINDS and type(value) is type(getattr(optimizer, name)):
        for key in value.group_options:
            if getattr(value, key) != getattr(getattr(optimizer, name), key):
                return instead_of_setting(optimizer, key, getattr(value, key))
    if not is_ours(type(optimizer)) or hasattr(type(optimizer), name):
        return None
    kinds = [kind for kind in KINDS if name in _fields(getattr(optimizer, kind))]
    if not kinds:
        return None
    put = "; ".join(f"opt.{k} = dataclasses.replace(opt.{k}, {name}={value!r})" for k in kinds)
    return f"{name} belongs to the {' and the '.join(kinds)}: {put}"


def is_ours(method: type[Optimizer]) -> bool:
    """Returns whether a class is built by a constructor of this package, and not by a user's."""
    made_by = next(each for each in method.__mro__ if "__init__" in vars(each))
    return made_by.__module__.startswith("crsam.")


def _fields(part: Part) -> set[str]:
    return {field.name for field in fields(part)} if is_dataclass(part) else set()


def checked_closure(closure: Any, method: str, parts: tuple[Part, ...]) -> AnyClosure:
    """The closure, if `parts` can work with it."""
    if not callable(closure):
        raise TypeError(
            f"{method}.step needs a closure that computes the loss, calls loss.backward() and "
            "returns the loss: opt.step(closure), or opt.step(closure, scaler=scaler) for fp16"
        )
    for part in parts:
        if part.needs_samples and not isinstance(closure, PerSample):
            raise TypeError(
                f"{type(part).__name__} looks at single samples of the batch, which a plain "
                "closure cannot tell apart: use opt.step(crsam.PerSample(losses, num_samples)), "
                "where losses(part) returns the loss of each sample in `part`"
            )
    return closure


def split_into_micro_batches(closure: AnyClosure, scope: Scope) -> list[tuple[float, Any]]:
    """The closures that climb each on its own, with their weights: one, or the micro-batches."""
    if scope != "micro":
        return [(1.0, closure)]
    if not isinstance(closure, SplittableClosure):
        raise TypeError(
            "scope='micro' climbs with each micro-batch, which a plain closure cannot tell apart: "
            "use opt.step(crsam.MicroBatches(loss_of, batches))"
        )
    return list(closure.pieces())


def checked_scaler(scaler: Any, base: Optimizer, closure: AnyClosure) -> GradScaler | None:
    """The scaler, if it scales and the step can work with it."""
    if scaler is None:
        return None
    if not isinstance(scaler, GradScaler):
        raise UserError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
    if not scaler.is_enabled():
        return None
    if isinstance(base, LBFGS) or hasattr(closure, "new_probe"):
        what = "an L-BFGS base" if isinstance(base, LBFGS) else "a Functional"
        raise UserError(f"{what} cannot go with a scaler: use bfloat16, which needs none")
    return scaler


_CURE = (
    "model.load_state_dict(..., assign=True) replaces the parameters of a model: build the "
    "optimizer after it, or load with assign=False"
)


def no_gradient(params: Sequence[Tensor], model: nn.Module | None) -> RuntimeError:
    """Returns the error for a pass that left no gradient on any parameter of the optimizer."""
    own = {id(p) for p in params}
    if model is not None and not any(id(p) in own for p in model.parameters()):
        return replaced("there is no gradient, and no parameter of this optimizer is in `model`")
    return RuntimeError(
        "the closure left no gradient on any parameter of this optimizer: it must compute the "
        "loss, call loss.backward() and return the loss. If it does, the model's parameters may "
        f"have been replaced after the optimizer was built. {_CURE}"
    )


def replaced(what: str) -> RuntimeError:
    """Returns the error for parameters that are in the optimizer, but not in the model."""
    return RuntimeError(f"{what}. {_CURE}")


def warn_of_replaced(params: Sequence[Tensor], model: nn.Module) -> None:
    """Warns if some parameters have no gradient because the model has others in their place.

    A parameter was certainly replaced if it is not in the model, and the model has another one of
    its shape that got a gradient and that this optimizer does not train.
    """
    own, used = {id(p) for p in params}, list(model.parameters())
    there = {id(p) for p in used}
    new = {p.shape for p in used if p.grad is not None and id(p) not in own}
    gone = [p for p in params if p.grad is None and id(p) not in there and p.shape in new]
    if gone:
        warnings.warn(
            f"{len(gone)} of {len(params)} parameters of this optimizer are not in `model`, and "
            f"get no gradient. {_CURE}",
            stacklevel=2,
        )
