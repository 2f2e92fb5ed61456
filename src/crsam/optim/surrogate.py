"""From a closure to what the base optimizer follows: all passes of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.ascent import Ascent
from crsam.optim.average import Average, average_over_ranks
from crsam.optim.closure import Divisible
from crsam.optim.functional import Functional
from crsam.optim.functional_probe import FunctionalProbe
from crsam.optim.mistakes import StatisticsWatch
from crsam.optim.objective import Objective
from crsam.optim.probe import Closure, ClosureProbe, Probe
from crsam.optim.replay import Replay
from crsam.optim.scaling import Unscaling
from crsam.optim.schedule import Schedule
from crsam.optim.step import Step


def surrogate_of(
    step: Step, probe: Probe, ascent: Ascent, objective: Objective, schedule: Schedule
) -> tuple[Tensor, Tensors]:
    """The loss of the first pass and the surrogate gradient, of what the probe looks at."""
    if not (objective.uses_center or schedule.uses_center):
        step.start = ascent.start(step)
    center = probe(step.start)
    loss = center.loss
    step.grad_norm = tn.norm(center.grads)
    step.report |= {"loss": loss.clone(), "grad_norm": step.grad_norm}
    step.pays = schedule.pays(step) if step.leader is None else step.leader.pays
    if not step.pays:
        return loss, schedule.unpaid(step, center.grads)
    if "rho" in ascent.hyper:
        step.report["rho"] = step.radius(loss)
    offset = ascent(step, center, probe)
    offset = replace(offset, direction=list(offset.direction))  # which the last pass empties
    g_0 = tn.clone(center.grads) if schedule.reuses else []
    part = schedule.part(step, center, offset, probe)
    looking = probe if part is None else probe.on(part)
    if part is not None and objective.uses_center:
        center = looking()
    elif part is not None and center.losses is not None:
        center = center._replace(loss=(center.losses[part.indices] * part.weights).sum())
    if not objective.uses_center:
        center = center._replace(grads=[])
    surrogate = objective(step, center, offset, looking)
    return loss, schedule.paid(step, g_0, surrogate)


class Passes:
    """The passes of one step, over the batch or over one micro-batch after the other.

    Args:
        parts: Ascent, objective and schedule.
        model: Whose buffers the first pass alone may move.
        unscaling: Undoes the scale of gradients that were scaled for fp16.
        undoes: Whether `undo` puts the buffers of a `Functional` back.
        watch: Looks for batch norms that move their statistics in a pass after the first.
    """

    def __init__(
        self,
        parts: tuple[Ascent, Objective, Schedule],
        model: nn.Module | None,
        unscaling: Unscaling | None = None,
        undoes: bool = False,
        watch: StatisticsWatch | None = None,
    ) -> None:
        self.parts, self.model, self.unscaling = parts, model, unscaling
        self.undoes, self.watch = undoes, watch
        self.seen: set[int] = set()
        self.sparse_dims: dict[int, int] = {}
        self._replays: list[Replay] = []

    def __call__(
        self,
        pieces: Sequence[tuple[float, Closure | Divisible]],
        new_step: Callable[[Step | None], Step],
    ) -> tuple[Step, Tensor, Tensors]:
        """The step, the loss of the first pass and the surrogate gradient.

        Args:
            pieces: Closures that climb each on its own, with their weights.
            new_step: Makes the step of a piece, given that of the first one.
        """
        step = new_step(None)
        if step.parallel.to_rehearse():
            self._rehearse(pieces[0][1], step)
        if len(pieces) == 1:
            loss, surrogate = surrogate_of(step, self._probe(pieces[0][1], step), *self.parts)
        else:
            average = Average(step)
            for i, (weight, piece) in enumerate(pieces):
                own = new_step(step) if i else step
                average.add(weight, own, *surrogate_of(own, self._probe(piece, own), *self.parts))
            loss, surrogate = average.loss, average.surrogate
        if step.parallel.climbs_alone:
            average_over_ranks(step, surrogate)
            self._agree_on_seen(step)
        return step, loss, surrogate

    def _probe(self, closure: Closure | Divisible, step: Step) -> ClosureProbe | FunctionalProbe:
        probe: ClosureProbe | FunctionalProbe
        if isinstance(closure, Functional):
            probe = FunctionalProbe(closure, step.params, step.parallel)
            if self.undoes:
                self._replays.append(Replay(step.params, closure.model, undoes=True).begun())
        else:
            undoes = self.unscaling is not None
            replay = Replay(step.params, self.model, undoes, self.watch)
            self._replays.append(replay)
            probe = ClosureProbe(closure, step.params, replay, step.parallel, self.unscaling)
        probe.seen, probe.sparse_dims = self.seen, self.sparse_dims
        return probe

    def _rehearse(self, closure: Closure | Divisible, step: Step) -> None:
        """A pass that leaves no trace but in the replicas."""
        replay = Replay(step.params, self.model, undoes=True)
        with replay.one_pass(), torch.enable_grad():
            closure()
        replay.undo()
        replay.rewind()

    def _agree_on_seen(self, step: Step) -> None:
        """A parameter that any process has used is stepped in all of them."""
        if step.parallel.may_leave_out:
            mine = [float(i in self.seen) for i in range(len(step.params))]
            (used,) = step.parallel.everyone.sum_(
                [torch.tensor(mine, device=step.params[0].device)]
            )
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
