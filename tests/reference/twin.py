"""What all textbook twins share: one evaluation, the warm-up, the draws and the base step.

The weights of a model are one long vector here, so that a method reads like its equation. The
order in the vector is that of ``base.param_groups``, each tensor flattened row by row. Frozen
parameters (``requires_grad=False``) are constants of the model and are not in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

PerSampleLoss = Callable[[Tensor, Tensor], Tensor]


def norm(x: Tensor) -> Tensor:
    """The global L2 norm of a vector."""
    return (x * x).sum().sqrt()


def over(x: Tensor, divisor: Tensor) -> Tensor:
    """``x / divisor``, taken as 0 where the divisor is exactly 0."""
    return torch.zeros_like(x) if divisor == 0 else x / divisor


def top(scores: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` largest scores; of equal scores the first ones win."""
    return torch.argsort(scores, descending=True, stable=True)[:count]


@dataclass(frozen=True)
class Evaluation:
    """The losses of the samples, their mean and its gradient, all at one point."""

    losses: Tensor
    loss: Tensor
    gradient: Tensor


class Twin:
    """A slow optimizer that follows its equation word by word.

    A method lists its hyper-parameters as class annotations (with a value where it has a default)
    and returns from ``follow`` the vector that the base optimizer is to step with.

    Args:
        model: The model that is trained in place.
        base: A built optimizer over parameters of ``model``; its groups may carry their own "rho".
        per_sample_loss: Maps (model output, targets) to one loss per sample.
        warmup: Number of steps over which rho rises linearly; 0 for none.
        seed: Seed of the method's own draws.
        hyper: The hyper-parameters of the method.

    Raises:
        TypeError: A hyper-parameter is missing or unknown.
        ValueError: The trained parameters are not all of one dtype, so they are not one vector.
    """

    def __init__(
        self,
        model: nn.Module,
        base: torch.optim.Optimizer,
        per_sample_loss: PerSampleLoss,
        *,
        warmup: int = 0,
        seed: int = 0,
        **hyper: Any,
    ) -> None:
        self.model = model
        self.base = base
        self.per_sample_loss = per_sample_loss
        self.warmup = warmup
        self.seed = seed
        self.t = 0

        names = inspect.get_annotations(type(self))
        unknown = [name for name in hyper if name not in names]
        missing = [name for name in names if name not in hyper and not hasattr(self, name)]
        if unknown or missing:
            raise TypeError(f"{type(self).__name__}: unknown {unknown}, missing {missing}")
        for name, value in hyper.items():
            setattr(self, name, value)

        name_of = {id(p): name for name, p in model.named_parameters()}
        self.parameters: list[Tensor] = []
        self.groups: list[dict[str, Any]] = []
        for group in base.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    self.parameters.append(p)
                    self.groups.append(group)
        self.names = [name_of[id(p)] for p in self.parameters]
        if len({p.dtype for p in self.parameters}) != 1:
            raise ValueError("the trained parameters must all have one dtype")

        self.start()

    def start(self) -> None:
        """Sets up the method's state, where it has any."""

    def first_point(self, w: Tensor) -> Tensor:
        """Where the first evaluation is, whose loss the step returns: at the weights."""
        return w

    def follow(self, w: Tensor, here: Evaluation) -> Tensor:
        """Returns the vector the base steps with, given the weights and the first evaluation."""
        raise NotImplementedError

    def finish(self) -> None:
        """Moves the weights once more after the base has stepped, where the method does."""

    def step(self, inputs: Tensor, targets: Tensor, mask_seed: int) -> float:
        """One optimisation step in place (parameters, base state, batch-norm buffers).

        Returns:
            The loss of the first evaluation: L(w) at the weights before the step.
        """
        self.model.train()
        self.inputs, self.targets, self.mask_seed = inputs, targets, mask_seed
        self.generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.t)
        self.has_gradient = [False] * len(self.parameters)

        w = self.weights()
        here = self.evaluate(self.first_point(w), moves_buffers=True)
        followed = self.split(self.follow(w, here))
        for p, gradient, seen in zip(self.parameters, followed, self.has_gradient, strict=True):
            # None, not zero: the base must leave an unused parameter alone, weight decay included.
            p.grad = gradient.clone() if seen else None
        self.base.step()
        self.finish()
        self.t += 1
        return here.loss.item()

    # The vector and its tensors.

    def weights(self) -> Tensor:
        """A copy of the weights as one vector."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def split(self, vector: Tensor) -> list[Tensor]:
        """The pieces of a vector, each in the shape of its parameter."""
        pieces = torch.split(vector, [p.numel() for p in self.parameters])
        return [piece.reshape(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]

    def join(self, pieces: list[Tensor]) -> Tensor:
        """The vector of a list of pieces: undoes ``split``."""
        return torch.cat([piece.reshape(-1) for piece in pieces])

    def spread(self, values: list[float]) -> Tensor:
        """The vector that repeats each parameter's number over all its entries."""
        pairs = zip(values, self.parameters, strict=True)
        return self.join([torch.full(p.shape, value, dtype=p.dtype) for value, p in pairs])

    # Numbers that belong to a parameter's group.

    def of_group(self, name: str) -> list[float]:
        """A coefficient for each parameter: its group's own, or the method's."""
        # Adadelta has a "rho" of its own and RMSprop an "alpha": those say nothing about us.
        if name in self.base.defaults:
            return [float(getattr(self, name))] * len(self.groups)
        return [float(group.get(name, getattr(self, name))) for group in self.groups]

    def warm(self, values: list[float]) -> Tensor:
        """A radius for each entry, after the warm-up at this step."""
        share = min(1.0, (self.t + 1) / self.warmup) if self.warmup > 0 else 1.0
        return self.spread([value * share for value in values])

    def radius(self) -> Tensor:
        """``rho_t`` for each entry."""
        return self.warm(self.of_group("rho"))

    # The method's own draws, a tensor at a time in the order of the parameters.

    def draw_normal(self) -> Tensor:
        """Standard normal numbers for all entries."""
        draw = [
            torch.randn(p.shape, dtype=p.dtype, generator=self.generator) for p in self.parameters
        ]
        return self.join(draw)

    def draw_uniform(self) -> Tensor:
        """Uniform numbers in [0, 1) for all entries."""
        draw = [
            torch.rand(p.shape, dtype=p.dtype, generator=self.generator) for p in self.parameters
        ]
        return self.join(draw)

    # Evaluations. The weights of the model itself are never moved by them.

    def forward(
        self, pieces: list[Tensor], inputs: Tensor, targets: Tensor, moves_buffers: bool = False
    ) -> Tensor:
        """The losses of the samples with these parameter values and this step's dropout masks."""
        values = {name: b.detach().clone() for name, b in self.model.named_buffers()}
        values.update(zip(self.names, pieces, strict=True))
        torch.manual_seed(self.mask_seed)
        losses = self.per_sample_loss(functional_call(self.model, values, (inputs,)), targets)
        if moves_buffers:
            with torch.no_grad():
                for name, buffer in self.model.named_buffers():
                    buffer.copy_(values[name])
        return losses

    def leaves(self, w: Tensor) -> list[Tensor]:
        """Fresh parameter values that a gradient can be taken of."""
        return [piece.detach().clone().requires_grad_() for piece in self.split(w)]

    def evaluate(
        self,
        w: Tensor,
        inputs: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        moves_buffers: bool = False,
    ) -> Evaluation:
        """Losses, mean loss and gradient at ``w``, on the whole batch unless another is given."""
        inputs = self.inputs if inputs is None else inputs
        targets = self.targets if targets is None else targets
        leaves = self.leaves(w)
        losses = self.forward(leaves, inputs, targets, moves_buffers)
        loss = losses.mean()
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        pieces = []
        for i, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
            if gradient is None:
                pieces.append(torch.zeros_like(leaf))
            else:
                self.has_gradient[i] = True
                pieces.append(gradient)
        return Evaluation(losses.detach(), loss.detach(), self.join(pieces).detach())
