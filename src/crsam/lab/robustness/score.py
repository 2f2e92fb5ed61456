"""From accuracies on corrupted images to the figures that papers quote.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019: with $E_{s,c}$ the error at severity $s$ of corruption $c$,

$$\\mathrm{CE}_c = \\frac{\\sum_s E_{s,c}}{\\sum_s E^{\\mathrm{AlexNet}}_{s,c}}, \\qquad
\\mathrm{mCE} = \\frac{1}{15} \\sum_c \\mathrm{CE}_c$$
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from crsam.lab.robustness.constants import NAMES, SEVERITIES
from crsam.lab.robustness.layouts import Cell


@dataclass(frozen=True)
class Corrupted:
    """How a model did under corruption, in per cent.

    Example:
        >>> half = Corrupted({(name, s): 50.0 for name in NAMES for s in SEVERITIES})
        >>> half.mean_accuracy, half.mce(dict.fromkeys(NAMES, 80.0)), half.names == NAMES
        (50.0, 62.5, True)
        >>> some = Corrupted({("fog", 1): 90.0, **{("frost", s): 20.0 * s for s in SEVERITIES}})
        >>> some.names, some.mean_accuracy
        (('frost',), 60.0)
    """

    accuracy: Mapping[Cell, float]

    @property
    def names(self) -> tuple[str, ...]:
        """The corruptions with all five severities: means are over these only."""
        return tuple(name for name in NAMES if all((name, s) in self.accuracy for s in SEVERITIES))

    @property
    def errors(self) -> dict[str, float]:
        """Of each of `names`, the mean over severities."""
        return {
            name: 100 - fmean(self.accuracy[name, severity] for severity in SEVERITIES)
            for name in self.names
        }

    @property
    def mean_accuracy(self) -> float | None:
        """None if no corruption is whole."""
        return 100 - fmean(self.errors.values()) if self.names else None

    def relative_errors(self, reference: Mapping[str, float]) -> dict[str, float]:
        """CE of each of `names`: its error in per cent of another model's.

        Args:
            reference: That one's errors, in per cent. Where it has none, the CE is not a number.
        """
        return {
            name: 100 * error / reference[name] if reference[name] else float("nan")
            for name, error in self.errors.items()
        }

    def mce(self, reference: Mapping[str, float]) -> float | None:
        """The mean of `relative_errors`."""
        return fmean(self.relative_errors(reference).values()) if self.names else None
