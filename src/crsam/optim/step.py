"""One step: the algorithm (`surrogate_gradient`), and how it runs over pieces of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.context import StepContext
from crsam.optim.part import Parts
from crsam.optim.probe import ClosureProbe, Probe
from crsam.optim.replay import Replay
from crsam.optim.scaling import Unscaling

if TYPE_CHECKING:
    from crsam.optim.replay import StatisticsWatch


def surrogate_gradient(context: StepContext, probe: Probe, parts: Parts) -> tuple[Tensor, Tensors]:
    """Returns the loss of the first pass, and the gradient that the base optimizer follows.

    For `CRSAM` this is Algorithm 1 of the paper: ``g0`` at ``w``, the offset ``e = ρ g0/‖g0‖``,
    loss and gradient at ``w + e`` and ``w − e``, and ``g+ + ∇R_c``.
    """
    ascent, objective, schedule = parts
    context.start = None if parts.needs_center else ascent.start(context)
    center = probe(context.start)
    loss = center.loss
    context.grad_norm = tn.norm(center.grads)
    context.report |= {"loss": loss.clone(), "grad_norm": context.grad_norm}
    if not context.decide(schedule.runs_perturbed_passes):
        return loss, schedule.after_cheap_step(context, center.grads)
    if "rho" in ascent.group_options:
        context.report["rho"] = context.radius(loss)
    offset = ascent.offset(context, center, probe)
    g_0 = tn.clone(center.grads) if schedule.reuses else []
    samples = schedule.select(context, center, offset, probe)
    if samples is not None:
        probe = probe.on(samples)
        if objective.needs_center:
            center = probe()
        elif center.losses is not None:
            on_them = (center.losses[samples.indices] * samples.weights).sum()
            center = center._replace(loss=on_them)
    if not objective.needs_center:
        center = center._replace(grads=[])
    # The last pass empties the list of a direction, which may be that of the gradients.
    points = objective.points(context, offset._replace(direction=list(offset.direction)))
    del offset
    values = probe.at(points)
    context.report["loss_plus"] = values[0].loss
    if context.start is None:
        context.report["sharpness"] = values[0].loss - center.loss
    surrogate = objective.combine(context, center, values)
    return loss, schedule.after_full_step(context, g_0, surrogate)


def evaluate(
    pieces: Sequence[tuple[float, Any]],
    new_context: Callable[[StepContext | None], StepContext],
    parts: Parts,
    passes: Passes,
    max_norm: float | None = None,
) -> tuple[StepContext, Tensor, Tensors]:
    """Returns the context after all passes of a step, the loss, and the surrogate gradient.

    Args:
        pieces: Closures with their weights. Each has a perturbation of its own. There is one,
            except with ``scope="micro"``.
        new_context: Makes the context of a piece, given that of the first piece.
        parts: The method.
        passes: Makes the probes, and keeps what they see.
        max_norm: Clips the surrogate gradient to this norm.
    """
    context = new_context(None)
    if context.parallel.needs_dry_run():
        passes.run_dry(pieces[0][1], context)
    if len(pieces) == 1:
        loss, surrogate = surrogate_gradient(context, passes.probe(pieces[0][1], context), parts)
    else:
        mean = _Mean(context)
        for i, (weight, piece) in enumerate(pieces):
            own = new_context(context) if i else context
            mean.add(weight, own, *surrogate_gradient(own, passes.probe(piece, own), parts))
        loss, surrogate = mean.loss, mean.surrogate
    if context.parallel.gradients_are_local:
        _average_over_ranks(context, surrogate)
        passes.agree_on_seen(context)
    if passes.unscaling is not None:
        overflow = passes.unscaling.conclude(context.parallel.everyone)
        context.report["overflow"] = overflow
        context.is_skipped = overflow.item() > 0  # the one wait for the device
    if max_norm is not None and not context.is_skipped:
        context.report["clip_scale"] = tn.clip_(surrogate, max_norm)
    return context, loss, surrogate


def lbfgs_step(
    base: LBFGS,
    params: Sequence[Tensor],
    evaluate_here: Callable[[], tuple[StepContext, Tensor]],
) -> tuple[StepContext, Tensor]:
    """Takes a step of L-BFGS, which asks for loss and gradient at points of its own choosing.

    Args:
        base: The base optimizer.
        params: All its parameters. They are put back if a pass raises.
        evaluate_here: Runs all passes at the current weights, and writes the surrogate gradient.
    """
    contexts: list[StepContext] = []

    @torch.no_grad()
    def closure() -> float:
        context, loss = evaluate_here()
        contexts[:] = [context]
        return float(loss)

    saved = tn.clone(params)
    try:
        loss = base.step(closure)  # type: ignore[no-untyped-call]
    except BaseException:
        tn.copy_(params, saved)
        raise
    (context,) = contexts
    context.report["loss"] = torch.as_tensor(loss)
    return context, context.report["loss"]


class Passes:
    """Makes the probes of one step, and keeps what is needed to write or to undo it.

    Args:
        model: The first pass alone may move its buffers.
        unscaling: Undoes the scale of gradients that were scaled for fp16.
        undoes: Whether `undo` puts the buffers of a `Functional` back.
        watch: Looks for batch norms that move their statistics in a pass after the first.
    """

    def __init__(
        self,
        model: nn.Module | None,
        unscaling: Unscaling | None = None,
        undoes: bool = False,
        watch: StatisticsWatch | None = None,
    ) -> None:
        self.model, self.unscaling = model, unscaling
        self.undoes, self.watch = undoes, watch
        self.seen: set[int] = set()
        """Positions of the parameters that had a gradient in any pass."""
        self.sparse_dims: dict[int, int] = {}
        """Positions of those with sparse gradients, with the number of sparse dimensions."""
        self._replays: list[Replay] = []

    def probe(self, closure: Any, context: StepContext) -> Probe:
        """Returns the probe of a closure."""
        # A Functional makes its own probe, because it never moves the weights.
        if make := getattr(closure, "new_probe", None):
            if self.undoes:
                self._replays.append(Replay(context.params, closure.model, undoes=True).begun())
            probe: Any = make(context.params, context.parallel)
        else:
            undoes = self.unscaling is not None
            replay = Replay(context.params, self.model, undoes, self.watch)
            self._replays.append(replay)
            probe = ClosureProbe(closure, context.params, replay, context.parallel, self.unscaling)
        probe.seen, probe.sparse_dims = self.seen, self.sparse_dims
        return probe

    def run_dry(self, closure: Callable[[], object], context: StepContext) -> None:
        """Runs a pass that changes nothing but what the replicas know of their graph."""
        replay = Replay(context.params, self.model, undoes=True)
        with replay.one_pass(), torch.enable_grad():
            closure()
        replay.undo()
        replay.rewind()

    def agree_on_seen(self, context: StepContext) -> None:
        """Counts a parameter as seen if any process has seen a gradient of it."""
        if context.parallel.may_leave_out:
            mine = [float(i in self.seen) for i in range(len(context.params))]
            here = torch.tensor(mine, device=context.params[0].device)
            (used,) = context.parallel.everyone.sum_([here])
            self.seen |= {i for i, count in enumerate(used.tolist()) if count > 0}

    def write(self, params: Sequence[nn.Parameter], surrogate: Tensors) -> None:
        """Puts the surrogate into ``.grad``, where there was a gradient in any pass."""
        for i, (p, s) in enumerate(zip(params, surrogate, strict=True)):
            if i not in self.seen:
                p.grad = None
            elif i in self.sparse_dims:
                p.grad = s.to_sparse(self.sparse_dims[i])
            else:
                p.grad = s

    def undo(self) -> None:
        """Puts the buffers back as they were before the step."""
        for replay in reversed(self._replays):
            replay.undo()

    def rewind(self) -> None:
        """Puts the random states back as they were before the step."""
        for replay in reversed(self._replays):
            replay.rewind()


class _Mean:
    """The weighted mean of what several micro-batches follow and keep.

    The first micro-batch decides: masks, and whether the perturbed passes are taken. The means end
    up in its context.
    """

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self.loss = torch.zeros(())
        self.surrogate: Tensors = []
        self._report: dict[str, Tensor] = {}
        self._state: dict[str, Tensors] = {}
        self._direct: Tensors = []

    def add(self, weight: float, own: StepContext, loss: Tensor, surrogate: Tensors) -> None:
        self.loss = self.loss + weight * loss
        _accumulate(self.surrogate, surrogate, weight)
        for name, value in own.report.items():
            self._report[name] = weight * value + self._report.get(name, 0.0)
        for name, tensors in own.new_tensor_state.items():
            if tensors[0].is_floating_point():
                _accumulate(self._state.setdefault(name, []), tensors, weight)
        _accumulate(self._direct, own.direct_move or [], weight)
        self.context.report = dict(self._report)
        self.context.new_tensor_state |= self._state
        self.context.direct_move = self._direct or None


def _accumulate(total: Tensors, tensors: Tensors, weight: float) -> None:
    """Adds ``weight·tensors`` to `total` in place. An empty total is 0."""
    if total:
        tn.add_(total, tensors, weight)
    elif tensors:
        # Copies: the next micro-batch may write over the same memory.
        total += tn.scale_(tn.clone(tensors), weight)


def _average_over_ranks(context: StepContext, surrogate: Tensors) -> None:
    """Averages in place what must be equal in all processes."""
    states = context.new_tensor_state.values()
    kept = [t for tensors in states for t in tensors if t.is_floating_point()]
    context.parallel.everyone.mean_([*surrogate, *kept, *(context.direct_move or [])])
