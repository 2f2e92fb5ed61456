"""Du et al., "Efficient Sharpness-Aware Minimization", 2022: sharpness-sensitive selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from crsam.optim.closures import Selection
from crsam.optim.context import StepContext
from crsam.optim.part import Schedule, one_of, share
from crsam.optim.probe import Evaluation, Offset, Probe


@dataclass(frozen=True)
class PartOfBatch(Schedule):
    r"""The perturbed passes on part of the batch only. Needs a `PerSample` closure.

    An objective that subtracts the gradient at $w$ gets it on the same part: one more pass of that
    size.

    Args:
        share: Share of the samples.
        pick: ``"sharpest"``: those with the largest $\ell_i(w+e) - \ell_i(w)$, which costs a
            forward of the batch. ``"random"``: drawn anew at every step, at no cost.
    """

    share: float = 0.5
    pick: Literal["sharpest", "random"] = "sharpest"
    needs_samples: ClassVar[bool] = True
    stays_on_device: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        share("share", self.share)
        one_of("pick", self.pick, ("sharpest", "random"))

    def select(
        self, context: StepContext, center: Evaluation, offset: Offset, probe: Probe
    ) -> Selection | None:
        assert center.losses is not None
        if self.pick == "sharpest":
            scores = context.ranks.gather(probe.losses(offset) - center.losses)
            score, lengths = torch.cat(scores), [len(s) for s in scores]
        else:
            own = context.generator(center.losses.device, stream=2)
            lengths = context.ranks.counts(len(center.losses), own.device)
            score = torch.rand(sum(lengths), device=own.device, generator=own)
        count = max(1, round(self.share * len(score)))
        chosen = score.topk(count).indices.sort().values
        weights = center.losses.new_full((count,), context.ranks.size / count)
        if context.ranks.size == 1:
            return Selection(chosen, weights)
        # The batch is that of all ranks, one after the other; each looks at its own samples.
        start = sum(lengths[: context.ranks.rank])
        chosen = chosen[(chosen >= start) & (chosen < start + len(center.losses))] - start
        return Selection(chosen, weights[: len(chosen)]).padded(1)
