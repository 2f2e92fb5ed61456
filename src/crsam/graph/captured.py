"""A whole step as one CUDA graph: the host says "again", and every launch is already there."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.graph.capturable import capturable
from crsam.graph.graph_inputs import GraphInputs, KeptGenerators
from crsam.optim.functional import Functional
from crsam.optim.pass_strategies import PassStrategy, fastest, pass_strategies

T = TypeVar("T")
NUM_EAGER = 3
"""Steps of each plan before it is captured: they make the state that a graph then works on."""
NUM_TIMED = 10
"""Replays when streams are compared."""


class CannotCapture(ValueError):
    """A step cannot be a CUDA graph, for this reason. Weights and state are as before the step."""


def capture_blocker(optimizer: Optimizer) -> str | None:
    """Returns why a step of this optimizer cannot be captured. None: it can."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return "there are several processes"
    return capturable(optimizer).blocker()


class Graph(NamedTuple):
    """A captured plan, and where it leaves what it saw."""

    graph: torch.cuda.CUDAGraph
    loss: Tensor
    extra: Tensor | None
    report: dict[str, Tensor]
    grads: list[Tensor | None]
    """Of all parameters, as the base optimizer saw them."""


class Captured:
    """``optimizer.step(closure)`` as CUDA graphs, one for each kind of step.

    LookSAM has two kinds of step, with and without the perturbed passes. So has CR-SAM with
    ``every=k``. The first few steps of each kind are taken eagerly, and count like any other.
    Learning rates and the hyper-parameters of the method are tensors inside the graph. They are
    written anew when they change. With another ascent, objective, schedule or `max_norm` the
    capture starts over. The base optimizer's other values, and which parameters are trained, stay
    as they were captured.

    Args:
        optimizer: An optimizer of torch or of ours. `capture_blocker` must return None for it.
        closure: Its ``batch`` must be the same tensors at every step, filled with new values. Its
            model must not draw random numbers, because every pass of a step would draw new ones.
        parallel: Whether the two perturbed passes of CR-SAM run at the same time. ``"auto"``
            measures once which is faster, and which of cuDNN's algorithms to use beside another
            pass (if ``torch.backends.cudnn.benchmark`` is set).
        fuse: Compile the method's own algebra into few kernels. That takes seconds, and longer with
            hundreds of parameters of different shapes.

    Raises:
        CannotCapture: If the optimizer's step cannot be captured. `step` raises it too, for reasons
            that show only in a step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        closure: Functional,
        parallel: bool | Literal["auto"] = "auto",
        fuse: bool = True,
    ) -> None:
        reason = capture_blocker(optimizer)
        if reason is not None:
            raise CannotCapture(reason)
        self.optimizer, self.closure = optimizer, closure
        self.parallel, self.fuse = parallel, fuse
        self.milliseconds: dict[str, float] = {}
        """Of a step, by each tried way to run the perturbed passes; inf where it failed."""
        self._graphs: dict[Hashable, Graph] = {}
        self._num_taken: dict[Hashable, int] = {}
        self._pairs: set[Hashable] = set()
        """Plans that look at both sides of ``w`` at once."""
        self._reason: str | None = None
        self._shown: Graph | None = None
        """Whose gradients the parameters hold."""
        closure.draws = True  # until the first step has shown that it does not
        closure.way = PassStrategy(parallel is True)
        self._step = capturable(optimizer)
        self._inputs = GraphInputs(self._step.numbers(), self._params()[0].device)
        self._generators = KeptGenerators()
        self._made_for = self._step.fixed()

    @property
    def is_ready(self) -> bool:
        """Whether a graph has been captured."""
        return bool(self._graphs)

    @torch.no_grad()
    def step(self) -> Tensor:
        """Takes a step on the values that the closure's batch holds now; returns its loss.

        Raises:
            CannotCapture: If that turns out only now; no step was taken.
        """
        if self._reason is not None:
            raise CannotCapture(self._reason)
        self._start_over_if_changed()
        plan, seed_of = self._step.next_step()
        taken = self._num_taken.get(plan, 0)
        self._num_taken[plan] = taken + 1
        self._inputs.write(self._step.numbers())
        if taken < NUM_EAGER:
            return self._undone(lambda: self._eagerly(plan))
        if plan not in self._graphs:
            self._graphs[plan] = self._undone(lambda: self._fastest(plan))
        captured = self._graphs[plan]
        self._generators.seed(seed_of)
        captured.graph.replay()
        if captured is not self._shown:
            self._shown = captured
            for p, grad in zip(self._params(), captured.grads):
                p.grad = grad
        self.closure.extra = captured.extra
        self._step.commit(captured.report)
        return captured.loss

    def _start_over_if_changed(self) -> None:
        now = self._step.fixed()
        if any(new is not old and new != old for new, old in zip(now, self._made_for)):
            self._made_for, self._shown = now, None
            self.closure.way = PassStrategy(self.parallel is True)
            self._graphs.clear()
            self._num_taken.clear()

    def _undone(self, work: Callable[[], T]) -> T:
        """Runs the work. If it fails, puts all tensors of the step back."""
        state = self._state()
        saved = tn.clone(state)
        try:
            return work()
        except Exception as error:
            tn.copy_(state, saved)
            error = _first(error)
            first_line = next(iter(str(error).strip().splitlines()), "")
            raise CannotCapture(f"{type(error).__name__}: {first_line}") from error

    def _eagerly(self, plan: Hashable) -> Tensor:
        """Takes a step without a graph. It shows what a graph of its kind needs."""
        for group in self.optimizer.param_groups:
            # A fused step takes its learning rate from the device.
            group.update({key: True for key in ("fused", "capturable") if key in group})
            group["foreach"] = False
        before = _random_states() if self.closure.draws else []
        self.closure.pairs, self._shown = False, None
        loss, report = self._on_the_side()
        (self._pairs.add if self.closure.pairs else self._pairs.discard)(plan)
        if self.closure.draws:
            self.closure.draws = False
            if not all(map(torch.equal, before, _random_states())):
                self._reason = "the model draws random numbers"
        self._step.commit(report)
        return loss

    def _on_the_side(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Takes a step on a side stream, so that what torch makes lazily is fit for a capture."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        try:
            with torch.cuda.stream(side):
                return self._take()
        finally:
            main.wait_stream(side)

    def _take(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Does what a step does on the device."""
        with tn.fusing() if self.fuse else nullcontext():
            return self._step.run(self.closure, self._inputs.tensors, self._generators)

    def _capture(self) -> Graph:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators.generators.values():
            graph.register_generator_state(generator)
        with _as_if_never_begun(), torch.cuda.graph(graph):
            loss, report = self._take()
        return Graph(graph, loss, self.closure.extra, report, [p.grad for p in self._params()])

    def _fastest(self, plan: Hashable) -> Graph:
        """Captures the plan in each way to run its passes, and keeps the fastest graph."""
        if plan not in self._pairs:
            return self._capture()
        tried = pass_strategies(self.parallel, self.closure.convolved_in())
        name, graph, self.milliseconds = fastest(tried, self._captured_in, self._time)
        self.closure.way = tried[name]
        return graph

    def _captured_in(self, way: PassStrategy) -> Graph:
        self.closure.way = way
        if way.num_choices is not None:  # cuDNN cannot choose while a graph is captured
            with self._as_it_was():
                self._on_the_side()
        return self._capture()

    def _time(self, captured: Graph) -> float:
        """Milliseconds of a replay."""
        with self._as_it_was():
            captured.graph.replay()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(NUM_TIMED):
                captured.graph.replay()
            torch.cuda.synchronize()
            return 1e3 * (time.perf_counter() - start) / NUM_TIMED

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Puts all tensors of the step back afterwards."""
        state = self._state()
        saved = tn.clone(state)
        try:
            yield
        finally:
            tn.copy_(state, saved)

    def _params(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _state(self) -> Tensors:
        """Returns all tensors that a step changes."""
        model = self.closure.model
        return [*(p.data for p in model.parameters()), *model.buffers(), *self._step.tensors()]


@contextmanager
def _as_if_never_begun() -> Iterator[None]:
    """Undoes what torch leaves behind when a capture fails within."""
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    try:
        yield
    except Exception:
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(before)  # or it would take itself to be captured for ever
        raise


def _first(error: Exception) -> Exception:
    """What went wrong first: the end of a capture that failed fails too, and says less."""
    while isinstance(error.__context__, Exception):
        error = error.__context__
    return error


def _random_states() -> Tensors:
    return [torch.get_rng_state(), torch.cuda.get_rng_state()]
