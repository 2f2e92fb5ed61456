"""Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2017."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from crsam.lab.data.augment.base import check_number


@dataclass(frozen=True)
class Mixup:
    r"""Each image mixed with another of its batch, and their targets alike.

    $\tilde x = \lambda x_i + (1 - \lambda) x_j$ and $\tilde y = \lambda y_i + (1 - \lambda) y_j$
    with $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$ and $j$ a random permutation.

    Args:
        alpha: Of the Beta distribution; 1 draws λ evenly, less stays closer to single images.
        per_image: Whether each image has its own λ; one for the whole batch else, as in the paper.

    Example:
        >>> x, y = torch.rand(4, 3, 8, 8), torch.eye(4)
        >>> x, y = Mixup(alpha=0.2)(x, y, torch.Generator())
        >>> y.sum(1).allclose(torch.ones(4))
        True
    """

    alpha: float = 1.0
    per_image: bool = False

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0)
        if self.alpha == 0:
            raise ValueError("alpha must be above 0, got 0; leave Mixup out instead")

    def __call__(
        self, images: Tensor, targets: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The mixed images and targets.

        Args:
            images: Floats of shape (N, ...).
            targets: Probabilities of shape (N, classes); see `smooth_one_hot`.
            generator: The source of all draws, on the images' device.
        """
        share, partner = self.draw(images, generator)
        return self.apply(images, targets, share, partner)

    def apply(
        self, images: Tensor, targets: Tensor, share: Tensor, partner: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The first images, as many as there are partners, mixed with these."""
        for name, value in (("images", images), ("targets", targets)):
            if not value.is_floating_point():
                raise ValueError(f"{name} must be floats, got {value.dtype}")
        return _mix(images, share, partner), _mix(targets, share, partner)

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """λ, of shape (N,) or (1,), and the indices of the partners."""
        n, device = len(images), images.device
        shape = (2, n if self.per_image else 1)
        # Gamma(α) is Gamma(α + 1) U^(1/α): as logarithms, no α is so small that both vanish.
        shapes = torch.full(shape, self.alpha + 1.0, dtype=torch.float64, device=device)
        gamma = torch._standard_gamma(shapes, generator=generator).log()
        uniform = torch.rand(shape, dtype=torch.float64, device=device, generator=generator)
        gamma = gamma + torch.log1p(-uniform) / self.alpha
        partner = torch.rand(n, dtype=torch.float64, device=device, generator=generator).argsort()
        return (gamma[0] - gamma[1]).sigmoid(), partner


def _mix(values: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    share = share.to(values.dtype).view(-1, *[1] * (values.ndim - 1))
    return share * values[: len(partner)] + (1 - share) * values[partner]
