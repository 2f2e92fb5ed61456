"""Mi et al., "Make Sharpness-Aware Minimization Stronger: A Sparsified Approach", 2022: SSAM-F."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crsam import _tensors as tn
from crsam._tensors import Tensors
from crsam.optim.ascent.masked import _Masked
from crsam.optim.part import at_least
from crsam.optim.probe import Evaluation, Probe
from crsam.optim.step import Step


@dataclass(frozen=True)
class FisherMask(_Masked):
    r"""$e = \rho\,(g_0/\lVert g_0\rVert) \odot M$, $M$ where the Fisher information is largest.

    The information is $\sum_i (\nabla \ell_i)^2$ over some samples of the batch, at $w$ and with
    the batch-norm statistics left alone. A renewal costs one forward and a backward a sample; it
    needs a `PerSample` closure.

    Args:
        rho: Length of the offset before masking.
        sparsity: Share of the weights that are not moved.
        period: Steps from one renewal to the next; the mask is full before the first.
        num_samples: How many samples of the batch the estimate uses.
    """

    num_samples: int = 16
    needs_samples: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("num_samples", self.num_samples, 1)

    def renew(
        self, step: Step, center: Evaluation, probe: Probe, old: Tensors | None, count: int
    ) -> Tensors:
        return tn.top_mask(probe.fisher(self.num_samples), count)
