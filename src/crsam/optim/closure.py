"""A closure that can tell the samples of its batch apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class PerSample:
    """A closure over the samples of a batch, for methods that look at some or each of them.

    `ESAM` and any method with the `PartOfBatch` schedule take the perturbed gradient on part of
    the batch; `SSAM` with the Fisher mask needs single samples' gradients. A plain closure cannot
    give them those. This one can, and serves every other method too.

    Args:
        losses: ``losses(part)`` returns the loss of each sample in `part`, a 1-d tensor. `part` is
            ``slice(None)`` for the whole batch or a tensor of indices: use it to index inputs and
            targets alike. It must not call ``backward``.
        num_samples: The size of the batch.

    Example:
        >>> import torch, crsam
        >>> from torch.nn import functional as F
        >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
        >>> opt = crsam.ESAM(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> def losses(part):
        ...     return F.cross_entropy(model(x[part]), y[part], reduction="none")
        >>> loss = opt.step(crsam.PerSample(losses, len(x)))
    """

    def __init__(self, losses: Callable[[Tensor | slice], Tensor], num_samples: int) -> None:
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        self._losses = losses
        self.num_samples = num_samples

    def losses(self, part: Tensor | None = None) -> Tensor:
        """The loss of each sample in `part` (None: of all)."""
        losses = self._losses(slice(None) if part is None else part)
        expected = self.num_samples if part is None else len(part)
        if not isinstance(losses, Tensor) or losses.shape != (expected,):
            got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise RuntimeError(
                f"losses(part) must return one loss for each of the {expected} samples asked for, "
                f"got {got}: use reduction='none'"
            )
        return losses

    def backward(self, part: Tensor | None = None) -> Tensor:
        """Backpropagates the mean loss over `part`; returns the losses, detached."""
        losses = self.losses(part)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        return losses.detach().to(torch.promote_types(losses.dtype, torch.float32), copy=True)

    def __call__(self) -> Tensor:
        """As a plain closure: backpropagates and returns the mean loss of the batch."""
        return self.backward().mean()
