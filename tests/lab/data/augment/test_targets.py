"""Mixup, label smoothing and normalization against their formulas."""

from __future__ import annotations

import pytest
import torch

from crsam.lab.data.augment import Mixup, normalize, smooth_one_hot
from lab.data.augment.samples import generator


@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_mixup_mixes_images_and_targets_alike(alpha: float, per_image: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(12, 3, 4, 4), torch.rand(12, 5).softmax(1)
    mixup = Mixup(alpha, per_image)
    mixed, targets = mixup(x, y, generator())
    share, partner = mixup.draw(x, generator())
    assert share.shape == ((12,) if per_image else (1,))
    assert sorted(partner.tolist()) == list(range(12))
    for i, j in enumerate(partner.tolist()):
        lam = float(share[i if per_image else 0])
        torch.testing.assert_close(mixed[i], lam * x[i] + (1 - lam) * x[j])
        torch.testing.assert_close(targets[i], lam * y[i] + (1 - lam) * y[j])


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0, 4.0])
def test_shares_of_mixup_follow_the_beta_distribution(alpha: float) -> None:
    n = 20_000
    share, _ = Mixup(alpha, per_image=True).draw(torch.empty(n, 1), generator())
    torch.manual_seed(0)
    beta = torch.distributions.Beta(torch.tensor(alpha).double(), torch.tensor(alpha).double())
    other = beta.sample((n,))
    grid = torch.linspace(0.001, 0.999, 200, dtype=torch.float64)
    ours, theirs = ((v.sort().values[:, None] <= grid).double().mean(0) for v in (share, other))
    assert (ours - theirs).abs().max() < 1.95 * (2 / n) ** 0.5  # Kolmogorov–Smirnov at 0.1 %


def test_a_tiny_alpha_leaves_images_single_and_finite() -> None:
    share, _ = Mixup(1e-4, per_image=True).draw(torch.empty(1000, 1), generator())
    assert ((share < 1e-3) | (share > 1 - 1e-3)).double().mean() > 0.98


def test_label_smoothing_is_cross_entropys() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    for smoothing in (0.0, 0.1, 1.0):
        targets = smooth_one_hot(labels, 4, smoothing)
        torch.testing.assert_close(
            torch.nn.functional.cross_entropy(logits, targets),
            torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing),
        )
    assert torch.equal(smooth_one_hot(labels, 4), torch.eye(4)[labels])
    assert smooth_one_hot(labels, 4, dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normalize_is_its_formula(dtype: torch.dtype) -> None:
    x = torch.arange(256 * 3).view(1, 3, 16, 16).byte()
    mean, std = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
    m, s = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))
    out = normalize(x, mean, std, dtype)
    assert out.dtype == dtype
    expected = (x.double() / 255 - m) / s
    atol = 1e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(out.double(), expected, rtol=atol, atol=atol)


def bytes_of(channels: int) -> torch.Tensor:
    return torch.zeros(1, channels, 2, 2, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mixup(0.0), "alpha must be above 0"),
        (lambda: Mixup(-1.0), "alpha must be a number of at least 0"),
        (lambda: Mixup()(bytes_of(3), torch.eye(1), generator()), "images must be floats"),
        (lambda: Mixup()(torch.rand(1, 2), torch.tensor([1]), generator()), "targets must be"),
        (lambda: smooth_one_hot(torch.rand(3), 4), "labels must be whole numbers"),
        (lambda: smooth_one_hot(torch.tensor([1]), 4, 1.5), "smoothing must be a number between"),
        (lambda: normalize(torch.rand(1, 3, 2, 2), [0.5], [0.5]), "images must be bytes"),
        (lambda: normalize(bytes_of(3), [0.5, 0.5], [0.5]), "mean must have 1 or 3 values"),
        (lambda: normalize(bytes_of(3), [0.5], [0.0]), "std must be above 0"),
    ],
)
def test_bad_values_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
