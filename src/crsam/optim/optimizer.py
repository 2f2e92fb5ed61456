"""`SharpnessAware`: a torch optimizer around another one. It takes a step and keeps the state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Never, cast

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import LBFGS, SGD, Optimizer

from crsam.distributed import Parallel, Scope
from crsam.optim import double_step_guard as guard
from crsam.optim import state, validate
from crsam.optim.closures import AnyClosure
from crsam.optim.context import Generators, StepContext, new_generator
from crsam.optim.group_options import FollowLearningRate, resolve
from crsam.optim.objective import WorstCase
from crsam.optim.part import Ascent, Objective, Parts, Schedule
from crsam.optim.replay import StatisticsWatch
from crsam.optim.scaling import Unscaling, new_overflow_dummy
from crsam.optim.schedule import EveryStep
from crsam.optim.state import COUNTER, LR_MAX, PREFIX
from crsam.optim.step import Passes, evaluate, lbfgs_step


class SharpnessAware(Optimizer):
    r"""A base optimizer that follows a surrogate gradient, taken around $w$ rather than at $w$.

    A method is three independent choices: where to probe (`ascent`), what to follow (`objective`)
    and when to take the perturbed passes (`schedule`). The named methods (`SAM`, `CRSAM`, …) are
    such choices.

    It is a ``torch.optim.Optimizer``, and learning-rate schedulers take it. Its ``param_groups``
    and ``state`` are those of the base optimizer. Hyper-parameters such as ``rho`` live in the
    groups. Where the base has one of the same name, as RMSprop has ``alpha``, ours is called
    ``crsam_alpha``. ``state_dict()`` has the usual two entries, and holds the state of the base and
    of the method.

    Args:
        base: A built optimizer.
        ascent: Where to probe.
        objective: What to follow. Defaults to `WorstCase`.
        schedule: When to take the perturbed passes. Defaults to every step.
        warmup: Number of steps over which ``rho`` rises from 0 to its value.
        follow: Makes ``rho`` follow the learning rate.
        max_norm: Clips the surrogate gradient to this norm before the base optimizer sees it.
        model: The model, as wrapped for several processes. With it, batch-norm statistics move once
            a step, in the first pass.
        seed: Seed of the methods' own random draws.
        scope: Whose gradient the perturbation follows: that of the whole batch (``"batch"``), of
            this process's share of it (``"rank"``), or of each micro-batch (``"micro"``: m-SAM).
        group: The processes that share a batch. Defaults to what the model says, or all processes.

    Raises:
        ValueError: If a value is not allowed, or the parts cannot be used together.

    Example:
        >>> import torch, crsam
        >>> from crsam.optim import Adaptive, Curvature, EveryK
        >>> model = torch.nn.Linear(4, 1)
        >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> opt = crsam.SharpnessAware(base, Adaptive(rho=0.5), Curvature(0.5, 0.1), EveryK(5))
        >>> x, y = torch.randn(8, 4), torch.randn(8, 1)
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = torch.nn.functional.mse_loss(model(x), y)
        ...     loss.backward()
        ...     return loss
        >>> loss = opt.step(closure)
        >>> sorted(opt.report)[:3]
        ['curvature', 'dropped_curvature', 'dropped_slope']
    """

    report: dict[str, Tensor]
    """What the last step saw, as 0-d tensors.

    Every step reports ``loss`` and ``grad_norm``. A step with perturbed passes also reports
    ``loss_plus``, ``sharpness`` (``L(w+e) − L(w)``, not of R-SAM) and ``rho``. CR-SAM adds
    ``loss_minus``, ``curvature``, what its guard dropped and how its bound scaled. ``max_norm``
    adds ``clip_scale``, and a scaler adds ``overflow``.

    ``rho`` is the ρ that the step used: the value in the parameter group after the warm-up and, for
    GSAM and R-SAM, after the learning rate. If groups have different ρ, it is that of the first
    group with a trained parameter."""

    tensor_state: dict[nn.Parameter, dict[str, Tensor]]
    """What the parts keep of each parameter from step to step. It is in the checkpoint."""

    def __init__(
        self,
        base: Optimizer,
        ascent: Ascent,
        objective: Objective | None = None,
        schedule: Schedule | None = None,
        *,
        warmup: int = 0,
        follow: FollowLearningRate | None = None,
        max_norm: float | None = None,
        model: nn.Module | None = None,
        seed: int = 0,
        scope: Scope = "batch",
        group: Any = None,
        **unknown: Never,
    ) -> None:
        objective, schedule = objective or WorstCase(), schedule or EveryStep()
        validate.check_base(base, SharpnessAware)
        validate.check_unknown(type(self), base, unknown)
        validate.check_parts(ascent, objective, schedule)
        validate.check_options(base, warmup, seed, scope, max_norm, model)

        self.base = base
        self.ascent, self.objective, self.schedule = ascent, objective, schedule
        self.warmup, self.follow, self.max_norm = warmup, follow, max_norm
        self.model, self.seed = model, seed
        self.scope, self.group = scope, group
        self.report = {}
        self._overflow_dummy: SGD | None = None
        self._watch = StatisticsWatch()
        self.tensor_state = {}
        self._keys = {
            name: PREFIX + name if name in base.defaults else name
            for part in self.parts
            for name in part.group_options
        }
        self._hyper = {
            self._keys[name]: getattr(part, name)
            for part in self.parts
            for name in part.group_options
        }
        self._numbers = {PREFIX + name: 0.0 for part in self.parts for name in part.scalar_state}
        state.forget(base)
        for params in base.param_groups:
            self._check_group(params)
        # torch's constructor sets empty groups and state. The base keeps its own: it may have state
        # already, and a wrapper such as Lookahead cannot replace those of the optimizer inside it.
        self._is_made = False
        super().__init__(base.param_groups, {**base.defaults, **self._hyper})
        self._is_made = True

    @property
    def parts(self) -> Parts:
        """The three parts of the method."""
        return Parts(self.ascent, self.objective, self.schedule)

    @property
    def starts_at_weights(self) -> bool:
        """Whether a step takes its first pass at the weights. R-SAM takes it at a random point."""
        return self.parts.needs_center or type(self.ascent).start is Ascent.start

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        closure: AnyClosure | None = None,
        *,
        scaler: GradScaler | None = None,
    ) -> Tensor:
        """Takes one step of the base optimizer along the method's surrogate gradient.

        Args:
            closure: Computes the loss of the batch, calls ``backward`` and returns the loss. Use a
                `PerSample` for a method that needs single samples, and `MicroBatches` to
                accumulate. It is called as often as the method needs, always on the same batch.
            scaler: The scaler for fp16. A plain closure calls ``scaler.scale(loss).backward()`` and
                returns the loss itself. Call ``scaler.update()`` after the step, as ever.

        Returns:
            The loss of the first pass. That is the loss at the weights before the step, except
            for R-SAM, whose first pass is at a random point near them.

        Raises:
            TypeError: Without a closure, or with one that cannot tell samples apart where needed.
            RuntimeError: If the closure leaves no gradient, returns no real number, takes a step of
                this optimizer or its base, or uses a graph that an earlier pass has freed.

        Warns:
            UserWarning: In the first step, if batch norm moves its statistics in every pass because
                the optimizer does not know the `model`.

        If the closure raises, weights, base state and method state are as before the step. (An
        L-BFGS base keeps its own state.) The same holds if a scaled gradient overflows in any pass,
        for the buffers of `model` too. The report's ``overflow`` is then 1.
        """
        if torch.compiler.is_compiling():  # the compiler cannot follow weights that move
            eager = torch.compiler.disable(self._whole_step)  # type: ignore[no-untyped-call]
            return cast("Tensor", eager(closure, scaler))
        return self._whole_step(closure, scaler)

    def _whole_step(self, closure: AnyClosure | None, scaler: GradScaler | None) -> Tensor:
        guard.check_not_within(self.base, type(self).__name__)
        if closure is None and state.only_makes_state(self.base):
            self.base.step()
            self.tensor_state = state.completed(
                self.tensor_state, self._trained_params(), self.parts
            )
            return torch.zeros(())
        closure = validate.checked_closure(closure, type(self).__name__, self.parts)
        scaler = validate.checked_scaler(scaler, self.base, closure)
        context, loss = self.take(closure, self.new_context, scaler)
        if context.is_skipped:
            self.report = context.report
            return loss
        for name, tensors in context.new_tensor_state.items():
            for p, tensor in zip(context.params, tensors, strict=True):
                self.tensor_state.setdefault(p, {})[name] = tensor
        self.commit(context.report, context.scalar_state)
        return loss

    def take(
        self,
        closure: AnyClosure,
        new_context: Any,
        scaler: GradScaler | None = None,
    ) -> tuple[StepContext, Tensor]:
        """Does what a step does on the device: all passes, and the base optimizer's step.

        It commits nothing. A CUDA graph captures this part of a step.
        """
        if isinstance(self.base, LBFGS):
            context, loss = lbfgs_step(
                self.base, self._all_params(), lambda: self._evaluate(closure, new_context)
            )
        else:
            context, loss = self._evaluate(closure, new_context, scaler)
            if context.is_skipped:
                return context, loss
            guard.about_to_step(self.base)
            self.base.step()
            guard.have_stepped(self.base)
        if context.direct_move is not None:
            rates = {p: group["lr"] for group in self.param_groups for p in group["params"]}
            for p, move in zip(context.params, context.direct_move, strict=True):
                p.sub_(move * rates[p])
        return context, loss

    def commit(self, report: dict[str, Tensor], scalar_state: dict[str, float]) -> None:
        """Counts a step that was taken, and keeps its plain numbers and its report."""
        count = self.param_groups[0][COUNTER] + 1
        numbers = {PREFIX + name: value for name, value in scalar_state.items()}
        for group in self.param_groups:
            group.update(numbers)
            group[COUNTER] = count
        vars(self)["report"] = report  # past the check of attributes

    def new_context(
        self,
        leader: StepContext | None = None,
        options: dict[str, list[float | Tensor]] | None = None,
        generators: Generators | None = None,
    ) -> StepContext:
        """Returns the context of the next step.

        Args:
            leader: The context of the first micro-batch, with ``scope="micro"``.
            options: Hyper-parameters for each group, in place of what the groups say.
            generators: Makes the generators of random draws.
        """
        groups = self.param_groups
        validate.check_complete(groups)
        used = [[p for p in group["params"] if p.requires_grad] for group in groups]
        params = [p for some in used for p in some]
        if not params:
            raise RuntimeError("no parameter of this optimizer requires a gradient")
        options = options or self.group_options()
        position = [i for i, some in enumerate(used) if some]
        return StepContext(
            params=params,
            options={name: [each[i] for i in position] for name, each in options.items()},
            group_of=[i for i, k in enumerate(position) for _ in used[k]],
            tensor_state=self.tensor_state,
            scalar_state={
                name: groups[0][PREFIX + name] for part in self.parts for name in part.scalar_state
            },
            count=groups[0][COUNTER],
            seed=self.seed,
            parallel=leader.parallel
            if leader is not None
            else Parallel(self.model, params, self.scope, self.group),
            leader=leader,
            generators=generators or new_generator,
        )

    def group_options(self) -> dict[str, list[float | Tensor]]:
        """Returns the value of each hyper-parameter in the next step, for each group."""
        return resolve(self.param_groups, self._keys, self.parts, self.warmup, self.follow)

    def _evaluate(
        self,
        closure: AnyClosure,
        new_context: Any,
        scaler: GradScaler | None = None,
    ) -> tuple[StepContext, Tensor]:
        """Runs all passes of a step, and puts the surrogate gradient into ``.grad``."""
        for p in self._all_params():  # of parameters frozen since their last step, too
            p.grad = None
        unscaling = None
        if scaler is not None:
            trained = self._trained_params()
            self._overflow_dummy = self._overflow_dummy or new_overflow_dummy(trained[0].device)
            unscaling = Unscaling(scaler, trained, self._overflow_dummy)
        watch = None if self.model is not None or self._watch.is_done else self._watch
        # A complex loss of a Functional shows in the first step: only that must be able to undo.
        passes = Passes(self.model, unscaling, undoes=not self.report, watch=watch)
        pieces = validate.split_into_micro_batches(closure, self.scope)
        try:
            with guard.in_passes(self.base):
                context, loss, surrogate = evaluate(
                    pieces, new_context, self.parts, passes, self.max_norm
                )
        except guard.ClosureError:
            passes.undo()
            passes.rewind()
            raise
        if watch is not None and watch.found:
            validate.warn_of_statistics(type(self).__name__)
        validate.check_kept(context.new_tensor_state, context.scalar_state, self.parts)
        if context.is_skipped:
            passes.undo()
            self.zero_grad()
        else:
            passes.write(context.params, surrogate)
        return context, loss

    if not TYPE_CHECKING:  # a type checker would then take any name for an attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if "_is_made" in self.__dict__:
                if instead := self._instead(name, value):
                    raise AttributeError(instead)
                validate.check_attribute(self, name, value)
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            # Trainers look for these two: a schedule-free base has them, a plain one has not.
            if name in ("train", "eval") and "base" in self.__dict__:
                return getattr(self.base, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _instead(self, name: str, value: Any) -> str | None:
        return validate.instead_of_setting(self, name, value)

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
    def state(self, value: Any) -> None:
        if self._is_made:
            self.base.state = value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the base optimizer, with this method's hyper-parameters filled in."""
        if not self._is_made:  # torch's constructor goes over the base's own groups
            self._complete(param_group)
            return
        if isinstance(param_group, dict) and "params" in param_group:  # else the base says so
            if isinstance(param_group["params"], Iterator):  # it can be looked at but once
                param_group["params"] = list(param_group["params"])
            validate.check_groups([param_group])
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

    def defaults_of_method(self) -> dict[str, Any]:
        """Returns what this method keeps in a group, beside its counter, by key."""
        return {**self._hyper, **self._numbers}

    def check_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError unless it is a checkpoint of this method or of the plain base."""
        names = {name for part in self.parts for name in part.tensor_state}
        validate.check_state(state_dict)
        validate.check_method(type(self).__name__, state_dict, self.base, names)
        for saved in state_dict["param_groups"]:
            self._check_group(saved)

    def _check_group(self, group: Any) -> None:
        for part in self.parts:
            for name in part.group_options:
                if self._keys[name] in group:
                    part.check(name, group[self._keys[name]])

    def state_dict(self) -> dict[str, Any]:
        """Returns the base optimizer's state dict, with the method's state beside the base's."""
        return state.saved(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of this method, or of the plain base optimizer.

        A checkpoint of the plain base lacks our hyper-parameters. They then stay as they are. To
        continue from a checkpoint of another method, load it into the base optimizer before you
        wrap that.

        Raises:
            ValueError: If it is neither of the two. Nothing is changed then.
        """
        state.load(self, state_dict)

    def _all_params(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def _trained_params(self) -> list[nn.Parameter]:
        return [p for p in self._all_params() if p.requires_grad]

    def __getstate__(self) -> dict[str, Any]:
        # A learning-rate scheduler replaces `step` on the instance by a wrapper: not ours to keep.
        # Nor is a process group, which is of this process only.
        return {k: v for k, v in self.__dict__.items() if k != "step"} | {"group": None}

    def __repr__(self) -> str:
        parts = ", ".join(map(repr, self.parts))
        return f"{type(self).__name__}({parts}, base={self.base!r})"
