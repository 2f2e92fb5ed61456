"""What Lightning does around a step, made right for optimizers that need several passes.

Serves both names of the package: ``lightning.pytorch`` and ``pytorch_lightning``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS
from torchmetrics import Metric

from crsam.errors import UserError
from crsam.integrations.window import (
    NothingToStep,
    Window,
    check_plain_closure,
    take_step,
)
from crsam.optim.optimizer import SharpnessAware


class Steps:
    """The callback's hooks; a Trainer without an optimizer of ours is left alone."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._restore()
        ours = [each for each in trainer.optimizers if isinstance(each, SharpnessAware)]
        plugin = trainer.precision_plugin
        if not ours or "optimizer_step" in vars(plugin):  # the latter by another callback like this
            return
        for optimizer in ours:
            _check(trainer, pl_module, optimizer)
            if optimizer.model is None or optimizer.model is pl_module:
                optimizer.model = trainer.strategy.model  # as wrapped for several processes
        self._replace(plugin, "optimizer_step", partial(_take_step, plugin, plugin.optimizer_step))
        if pl_module.automatic_optimization:
            loop = trainer.fit_loop.epoch_loop.automatic_optimization
            self._replace(loop, "_make_closure", _Closures(trainer, loop._make_closure))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._restore()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._restore()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)  # on this object only: its class goes on underneath
        self._undo.append(lambda: delattr(owner, name))

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()


def _check(trainer: Any, module: Any, optimizer: SharpnessAware) -> None:
    strategy = type(trainer.strategy).__name__
    if strategy in ("DeepSpeedStrategy", "FSDPStrategy", "XLAStrategy", "XLAFSDPStrategy"):
        raise UserError(
            f"{type(optimizer).__name__} cannot move the weights under Lightning's {strategy}: "
            "use strategy='ddp' or one device"
        )
    if module.automatic_optimization:
        check_plain_closure(
            optimizer,
            "set self.automatic_optimization = False and call "
            "self.optimizers().step(crsam.PerSample(losses, num_samples)) in training_step",
        )
    if isinstance(optimizer.base, LBFGS) and trainer.gradient_clip_val:
        raise UserError("gradient_clip_val cannot be used with LBFGS as the base optimizer")


def _take_step(
    plugin: Any, plain: Any, optimizer: Any, model: Any, closure: Any, **kwargs: Any
) -> Any:
    """A precision plugin's ``optimizer_step``.

    Lightning's own runs the hook ``on_before_optimizer_step`` and clips after every pass; here both
    see the surrogate gradient, once. And fp16's plugin refuses closures, which ours need.
    """
    if not isinstance(optimizer, SharpnessAware):
        return plain(optimizer, model=model, closure=closure, **kwargs)
    if getattr(closure, "__name__", "") == "do_nothing_closure":  # Lightning's, in place of None
        raise UserError(
            f"{type(optimizer).__name__} takes several passes a step, so step() needs a closure in "
            "manual optimization too: call self.optimizers().step(closure=closure), where closure "
            "computes the loss, calls self.manual_backward(loss) and returns the loss"
        )
    try:
        scaler = getattr(plugin, "scaler", None)
        return take_step(
            optimizer, closure, scaler, lambda: plugin._after_closure(model, optimizer)
        )[0]
    except NothingToStep:
        return None


class _Closures:
    """Makes Lightning's closures fit to be called in several passes, over all micro-batches."""

    def __init__(self, trainer: Any, make: Callable[..., Any]) -> None:
        self._trainer, self._make = trainer, make
        self._window: Window | None = None

    def __call__(self, kwargs: Any, optimizer: Any, batch_idx: int) -> Any:
        closure = self._make(kwargs, optimizer, batch_idx)
        if not isinstance(optimizer, SharpnessAware):
            return closure
        if self._window is None or batch_idx % self._trainer.accumulate_grad_batches == 0:
            no_sync = getattr(self._trainer.strategy, "block_backward_sync", nullcontext)
            self._window = Window(optimizer, no_sync)
        return _Passes(closure, self._window, self._trainer)


class _Passes:
    """A closure whose result, logs and metrics are the first pass's."""

    def __init__(self, closure: Any, window: Window, trainer: Any) -> None:
        self._closure, self._trainer, self._window = closure, trainer, window
        self._one_pass = window.closure(closure, self._again)

    def __call__(self) -> Tensor | None:
        if self._trainer.fit_loop._should_accumulate():  # Lightning calls, and takes no step yet
            return self._window.add(self._closure, self._again)
        return self._one_pass()

    def _again(self) -> Tensor | None:
        with quiet(self._trainer.lightning_module):
            return self._closure.closure().loss

    def consume_result(self) -> Any:
        return self._closure.consume_result()


@contextmanager
def quiet(module: nn.Module) -> Iterator[None]:
    """Within, the module logs nothing; afterwards its metrics are as before."""
    metrics = [each for each in module.modules() if isinstance(each, Metric)]
    kept = [
        {
            name: value.clone() if isinstance(value, Tensor) else list(value)
            for name, value in metric.metric_state.items()
        }
        for metric in metrics
    ]
    counts = [metric._update_count for metric in metrics]
    module.log = lambda *_, **__: None  # type: ignore[assignment]
    try:
        yield
    finally:
        del module.log
        for metric, states, count in zip(metrics, kept, counts):
            metric._update_count = count
            for name, value in states.items():
                setattr(metric, name, value)
