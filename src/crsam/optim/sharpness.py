"""`SharpnessAware`: any base optimizer, led by an ascent, an objective and a schedule."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Never, cast

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import LBFGS, SGD, Optimizer

from crsam import _tensors as tn
from crsam.optim.ascent import Ascent
from crsam.optim.checkpoint import COUNTER, LR_MAX, PREFIX, only_makes_state
from crsam.optim.checks import (
    check_base,
    check_complete,
    check_kept,
    check_options,
    check_parts,
    check_unknown,
    checked_closure,
    pieces_of,
    usable,
)
from crsam.optim.closure import Divisible
from crsam.optim.leftover import about_to_step, check_not_within, have_stepped, in_passes
from crsam.optim.mistakes import ClosureError, StatisticsWatch
from crsam.optim.objective import Objective, WorstCase
from crsam.optim.parallel import Parallel, Scope
from crsam.optim.probe import Closure
from crsam.optim.radius import FollowLearningRate, warmup_factor
from crsam.optim.scaling import Unscaling, new_witness
from crsam.optim.schedule import EveryStep, Schedule
from crsam.optim.step import Generators, Step
from crsam.optim.surrogate import Passes
from crsam.optim.wrapper import Wrapper


class SharpnessAware(Wrapper):
    r"""A base optimizer that follows a surrogate gradient taken around $w$ rather than at it.

    A method is three independent choices: where to probe (`ascent`), what to follow (`objective`)
    and when to pay (`schedule`). The named methods (`SAM`, `CRSAM`, …) are such choices.

    It is a ``torch.optim.Optimizer``: learning-rate schedulers take it, ``param_groups`` and
    ``state`` are the base optimizer's own, and hyper-parameters such as ``rho`` live in the groups
    (where the base has one of the same name, as RMSprop has ``alpha``, ours is ``crsam_alpha``).
    ``state_dict()`` has the usual two entries and holds base state and method state.

    Args:
        base: A built optimizer.
        ascent: Where to probe.
        objective: What to follow; None: `WorstCase`.
        schedule: When to pay; None: `EveryStep`.
        warmup: Steps over which ``rho`` rises from 0 to its value; 0: none.
        follow: Makes ``rho`` follow the learning rate.
        max_norm: Clips the surrogate gradient to this norm before the base optimizer sees it.
        model: The model, as wrapped for several processes; with it, batch-norm statistics move once
            a step, in the first pass.
        seed: Of the methods' own random draws.
        scope: Whose gradient the perturbation follows: that of the whole batch (``"batch"``), of
            this process's share of it (``"rank"``), or of each micro-batch (``"micro"``: m-SAM).
        group: The processes that share a batch; None: as the model says, or all there are.

    Raises:
        ValueError: For a value that is not allowed, or parts that cannot go together.

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
        check_base(base, SharpnessAware)
        check_unknown(type(self), base, unknown)
        check_parts(ascent, objective, schedule)
        check_options(base, warmup, seed, scope, max_norm, model)

        self.warmup, self.max_norm = warmup, max_norm
        self.model, self.seed = model, seed
        self.scope, self.group = scope, group
        self._witness: SGD | None = None
        self._watch = StatisticsWatch()
        # What steps read and draw from instead, where they are captured: see `Captured`.
        self._values: Callable[[dict[str, Any], str], Tensor] | None = None
        self._generators: Generators | None = None
        super().__init__(base, ascent, objective, schedule, follow)

    def _check_attribute(self, name: str, value: Any) -> None:
        super()._check_attribute(name, value)
        if name in ("warmup", "seed", "scope", "max_norm", "model"):
            new = {**vars(self), "model": None, name: value}
            warmup, seed, scope = new["warmup"], new["seed"], new["scope"]
            check_options(self.base, warmup, seed, scope, new["max_norm"], new["model"])

    @property
    def starts_at_weights(self) -> bool:
        """Whether a step takes its first pass at the weights. R-SAM takes it at a random point."""
        needs_center = self.objective.uses_center or self.schedule.uses_center
        return needs_center or type(self.ascent).start is Ascent.start

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Closure | Divisible | None = None, *, scaler: GradScaler | None = None
    ) -> Tensor:
        """Takes one step of the base optimizer along the method's surrogate gradient.

        Args:
            closure: Computes the loss of the batch, calls ``backward`` and returns the loss; a
                `PerSample` where the method looks at single samples; `MicroBatches` to accumulate.
                It is called as often as the method needs, always on the same batch.
            scaler: For fp16. A plain closure calls ``scaler.scale(loss).backward()`` and returns
                the loss itself. Call ``scaler.update()`` after the step, as ever.

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

        If the closure raises, weights, base state and method state are as before the step (of an
        L-BFGS base, weights and method state). So they are, and the buffers of `model`, if a scaled
        gradient overflows in any pass: the report's ``overflow`` is then 1.
        """
        if torch.compiler.is_compiling():  # models are; moves of weights are not made to be
            eager = torch.compiler.disable(self._whole_step)  # type: ignore[no-untyped-call]
            return cast("Tensor", eager(closure, scaler))
        return self._whole_step(closure, scaler)

    def _whole_step(self, closure: Closure | Divisible | None, scaler: GradScaler | None) -> Tensor:
        check_not_within(self.base, type(self).__name__)
        if closure is None and only_makes_state(self.base):
            return self._make_state()
        closure = checked_closure(closure, type(self).__name__, self.parts)
        step, loss = self._take(closure, usable(scaler, self.base, closure))
        if step.is_skipped:
            self.report = step.report
        else:
            self._commit(step)
        return loss

    def _take(
        self, closure: Closure | Divisible, scaler: GradScaler | None = None
    ) -> tuple[Step, Tensor]:
        """All of a step that happens on the device."""
        if isinstance(self.base, LBFGS):
            step, loss = self._step_lbfgs(closure)
        else:
            step, loss = self._evaluate(closure, scaler)
            if step.is_skipped:
                return step, loss
            about_to_step(self.base)
            self.base.step()
            have_stepped(self.base)
        if step.direct is not None:
            for p, group, move in zip(step.params, step.groups, step.direct, strict=True):
                p.sub_(move * group["lr"])
        return step, loss

    def _step_lbfgs(self, closure: Closure | Divisible) -> tuple[Step, Tensor]:
        """L-BFGS asks for loss and gradient at points of its own choosing, so it gets a closure."""
        steps: list[Step] = []

        @torch.no_grad()
        def surrogate() -> float:
            step, loss = self._evaluate(closure)
            steps[:] = [step]
            return float(loss)

        params = self._all_params()
        saved = tn.clone(params)
        try:
            loss = self.base.step(surrogate)
        except BaseException:
            tn.copy_(params, saved)
            raise
        (step,) = steps
        step.report["loss"] = torch.as_tensor(loss)
        return step, step.report["loss"]

    def _evaluate(
        self, closure: Closure | Divisible, scaler: GradScaler | None = None
    ) -> tuple[Step, Tensor]:
        """All passes of a step: puts the surrogate gradient into ``.grad``; moves nothing."""
        for p in self._all_params():  # of parameters frozen since their last step, too
            p.grad = None
        unscaling = None if scaler is None else Unscaling(scaler, self._trained_params())
        watch = None if self.model is not None or self._watch.is_done else self._watch
        # A Functional's one mistake, a complex loss, shows in the first step.
        passes = Passes(self.parts, self.model, unscaling, undoes=not self.report, watch=watch)
        try:
            with in_passes(self.base):
                step, loss, surrogate = passes(pieces_of(closure, self.scope), self._new_step)
        except ClosureError:
            passes.undo()
            passes.rewind()
            raise
        if watch is not None and watch.found:
            self._warn_of_statistics()
        check_kept(step.kept, step.numbers, self.parts)
        if unscaling is not None:
            self._witness = self._witness or new_witness(step.params[0].device)
            step.report["overflow"] = unscaling.conclude(step.parallel.everyone, self._witness)
            step.is_skipped = step.report["overflow"].item() > 0  # the one wait for the device
        if step.is_skipped:
            passes.undo()
            self.zero_grad()
            return step, loss
        if self.max_norm is not None:
            step.report["clip_scale"] = tn.clip_(surrogate, self.max_norm)
        passes.write(step.params, surrogate)
        return step, loss

    def _warn_of_statistics(self) -> None:
        warnings.warn(
            "batch norm moves its running statistics in every pass of a step, also at weights that "
            "the step only tries. Give the optimizer the model, so that they move once a step: "
            f"crsam.{type(self).__name__}(base, ..., model=model)",
            stacklevel=8,
        )

    def _new_step(self, leader: Step | None = None) -> Step:
        pairs = [(p, g) for g in self.param_groups for p in g["params"] if p.requires_grad]
        if not pairs:
            raise RuntimeError("no parameter of this optimizer requires a gradient")
        check_complete(self.param_groups)
        first = self.param_groups[0]
        params = [p for p, _ in pairs]
        return Step(
            params=params,
            groups=[g for _, g in pairs],
            values=self._values or self._value,
            memory=self._memory,
            numbers={n: first[PREFIX + n] for part in self.parts for n in part.numbers},
            count=first[COUNTER],
            seed=self.seed,
            parallel=leader.parallel
            if leader is not None
            else Parallel(self.model, params, self.scope, self.group),
            leader=leader,
            generators=self._generators,
        )

    def _value(self, group: dict[str, Any], name: str) -> float | Tensor:
        value = group[self._keys[name]]
        if name == "rho":
            if self.follow is not None:
                lr_max = self.follow.lr_max or group.get("max_lr") or group[LR_MAX]
                value = self.follow(value, group["lr"], lr_max)
            value = value * warmup_factor(group[COUNTER], self.warmup)
        for part in self.parts:
            if name in part.hyper and (factor := part.factor(name, group[COUNTER])) != 1:
                value = value * factor
        return value

    def _commit(self, step: Step) -> None:
        for name, tensors in step.kept.items():
            for p, tensor in zip(step.params, tensors, strict=True):
                self._memory.setdefault(p, {})[name] = tensor
        for group in self.param_groups:
            group.update({PREFIX + name: value for name, value in step.numbers.items()})
        self._count(step.report)

    def _count(self, report: dict[str, Tensor]) -> None:
        count = self.param_groups[0][COUNTER] + 1
        for group in self.param_groups:
            group[COUNTER] = count
        self.report = report

    def __getstate__(self) -> dict[str, Any]:
        # A learning-rate scheduler replaces `step` on the instance by a wrapper: not ours to keep.
        # Nor is a process group, which is of this process only.
        return {k: v for k, v in self.__dict__.items() if k != "step"} | {"group": None}

    def __repr__(self) -> str:
        parts = ", ".join(map(repr, self.parts))
        return f"{type(self).__name__}({parts}, base={self.base!r})"
