"""A closure that knows model and loss, so that weights need not be moved to see them elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from crsam import _tensors as tn
from crsam._stateless import Together, everywhere
from crsam.distributed import Parallel
from crsam.optim.closures import check_real
from crsam.optim.functional_probe import FunctionalProbe
from crsam.optim.pass_strategies import PassStrategy
from crsam.optim.replay import is_torchs_norm
from crsam.optim.validate import replaced

LossFunction = Callable[[nn.Module, Any], Tensor | tuple[Tensor, Tensor]]
"""``loss_fn(model, batch)``: the mean loss of the batch, and, if you like, something to keep of
the first pass, such as the number of right answers."""


class Functional:
    """A closure that knows model and loss: ``opt.step(functional)`` needs no ``backward``.

    Args:
        model: The model.
        loss_fn: See `LossFunction`.
        autocast: The dtype that the loss function autocasts to, if it does. Weights of linear and
            convolution layers are then cast all at once, instead of one by one.
        parallel: Run the two perturbed passes of `CRSAM` at once, on two CUDA streams.
        compile: Compile model and loss with ``torch.compile``.
        share: Compile once for all models that are given the same value here. They must be built
            alike, have the same loss function, and stay in the mode that they are in.

    Example:
        >>> import torch, crsam
        >>> from torch.nn import functional as F
        >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
        >>> opt = crsam.CRSAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
        >>> functional = Functional(model, lambda model, batch: F.cross_entropy(model(batch[0]), y))
        >>> functional.batch = (x, y)
        >>> loss = opt.step(functional)
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        *,
        autocast: torch.dtype | None = None,
        parallel: bool = False,
        compile: bool = False,
        share: Hashable | None = None,
    ) -> None:
        self.model = model
        self.way = PassStrategy(parallel)
        """How the two perturbed passes of a step are run."""
        self.draws = True
        """Whether a pass may draw random numbers: every pass is then given those of the first."""
        self.pairs = False
        """Whether a step has asked for both sides of ``w`` at once."""
        self.batch: Any = None
        """What the loss is of: set it before every step."""
        self.extra: Tensor | None = None
        """What the loss function gave beside the loss in the first pass of the last step."""
        self._spare: list[dict[str, Tensor]] = [{}, {}]
        self._begun: dict[str, Tensor] = {}
        self._read: list[str] = []
        self._narrow: dict[int, torch.dtype] = {}
        if autocast is not None:
            self._narrow = {
                id(p): autocast
                for module in model.modules()
                if isinstance(module, nn.Linear | _ConvNd)
                for p in module.parameters(recurse=False)
            }
        self._counts = False  # whether batches are counted here, and not by the layers
        self._evaluate: _Evaluate
        if not compile:
            self._evaluate = _evaluation(model, loss_fn)
        elif share is None:
            self._evaluate = torch.compile(_evaluation(model, loss_fn))
        else:
            # What is compiled for one mode is wrong for another.
            share = share, tuple(module.training for module in model.modules())
            if share not in _compiled:
                # A copy without weights: it outlives the model, and none of its own are ever used.
                skeleton = copy.deepcopy(model).to("meta")
                for module in _counting(skeleton):
                    module.num_batches_tracked = None
                _compiled[share] = torch.compile(_evaluation(skeleton, loss_fn))
            self._evaluate = _compiled[share]
            self._counts = True

    def __call__(self) -> Tensor:
        raise TypeError("a Functional is given to step, not called: opt.step(functional)")

    def new_probe(
        self, params: Sequence[nn.Parameter], parallel: Parallel | None = None
    ) -> FunctionalProbe:
        """Returns the probe for a step on the current batch."""
        return FunctionalProbe(self, params, parallel)

    def dtypes(self, params: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """In which each parameter is used."""
        return tuple(self._narrow.get(id(p), p.dtype) for p in params)

    def convolved_in(self) -> set[torch.dtype]:
        """The dtypes of the model's convolutions."""
        layers = [layer for layer in self.model.modules() if isinstance(layer, _ConvNd)]
        return set(self.dtypes([p for layer in layers for p in layer.parameters()]))

    def buffers(self) -> dict[str, Tensor]:
        """The model's own, by name; without those that `count` counts."""
        left_out = set(map(id, _counting(self.model).values())) if self._counts else set()
        return {
            name: buffer
            for name, buffer in self.model.named_buffers()
            if id(buffer) not in left_out
        }

    def count(self) -> None:
        """Adds a batch to what batch norm counts: once for all layers, where we may."""
        layers = _counting(self.model) if self._counts else {}
        counters = [counter for layer, counter in layers.items() if layer.training]
        if counters:
            torch._foreach_add_(counters, 1)

    def own_buffers(self) -> dict[str, Tensor]:
        """For the first pass, which moves them, as any forward pass does."""
        own, written = self.buffers(), self._only_written()
        self._read = [name for name in own if name not in written]
        for name in self._read:
            begun, now = self._begun.get(name), own[name]
            if begun is None or (begun.shape, begun.dtype) != (now.shape, now.dtype):
                self._begun[name] = now.clone()
        tn.copy_([self._begun[name] for name in self._read], [own[name] for name in self._read])
        return own

    def spare_buffers(self, side: int) -> dict[str, Tensor]:
        """For a later pass, one set for each `side` of ``w``: copies, as they were at first.

        What batch norm keeps is only written while it trains: there the copies need no values.
        """
        own, spare = self.buffers(), self._spare[side]
        if own.keys() != spare.keys():
            spare = self._spare[side] = {name: buffer.clone() for name, buffer in own.items()}
        tn.copy_([spare[name] for name in self._read], [self._begun[name] for name in self._read])
        return spare

    def _only_written(self) -> set[str]:
        return {
            f"{name}{'.' * bool(name)}{kept}"
            for name, module in self.model.named_modules()
            if is_torchs_norm(module) and module.training
            for kept, _ in module.named_buffers(recurse=False)
        }

    def at(
        self, params: Sequence[Tensor], weights: Sequence[Tensor], buffers: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor | None, list[Tensor | None]]:
        """Loss, extra and gradients, with `weights` in the place of `params`."""
        with torch.enable_grad():
            leaves = [w.detach().requires_grad_() for w in weights]
            named = dict(self.model.named_parameters())
            names = {id(p): name for name, p in named.items()}
            missing = sum(id(p) not in names for p in params)
            if missing:
                raise replaced(f"{missing} parameters of this optimizer are not in the model")
            tensors = {name: p.detach() for name, p in named.items()}
            tensors |= {names[id(p)]: leaf for p, leaf in zip(params, leaves)}
            state = everywhere(self.model, {**tensors, **buffers})
            out = self._evaluate({f"model.{name}": t for name, t in state.items()}, self.batch)
            loss, extra = out if isinstance(out, tuple) else (out, None)
            check_real(loss)
            grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        return loss.detach(), None if extra is None else extra.detach(), _apart(grads)


_Evaluate = Callable[[dict[str, Tensor], Any], Tensor | tuple[Tensor, Tensor]]
_compiled: dict[Hashable, _Evaluate] = {}


def _apart(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradients, each in memory of its own: autograd may hand out the same twice."""
    seen: set[int] = set()
    found: list[Tensor | None] = []
    for grad in grads:
        if grad is not None and grad.layout == torch.strided and grad.numel():
            memory = grad.untyped_storage().data_ptr()
            is_spread = any(s == 0 and n > 1 for s, n in zip(grad.stride(), grad.shape))
            if memory in seen or is_spread:
                grad = grad.clone(memory_format=torch.contiguous_format)
            seen.add(memory)
        found.append(grad)
    return found


def _evaluation(model: nn.Module, loss_fn: LossFunction) -> _Evaluate:
    """The loss as a function of weights and buffers."""
    wrapped = Together(model, loss_fn)

    def evaluate(state: dict[str, Tensor], batch: Any) -> Tensor | tuple[Tensor, Tensor]:
        return functional_call(wrapped, state, (batch,), tie_weights=False)

    return evaluate


def _counting(model: nn.Module) -> dict[_BatchNorm, Tensor]:
    """Layers that count batches and make no use of it, and their counters: a kernel for each."""
    return {
        module: module.num_batches_tracked
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        and module.num_batches_tracked is not None
        and module.momentum is not None
    }
