"""Windows scaled to the whole image: against a loop, and how the draws fall."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from crsam.lab.data.augment import Inception, scaled_crop
from lab.data.augment.samples import assert_share, generator, random_images


def test_a_window_on_whole_pixels_is_that_part_enlarged() -> None:
    x = random_images(3, (8, 12))
    shares = [torch.full((3,), v) for v in (0.25, 0.5, 0.5, 0.25)]
    out = scaled_crop(x, *shares)
    for i in range(3):
        part = x[i : i + 1, :, 2:6, 6:9].float()
        # Away from the window's edge, where the part alone has no neighbours to blend with.
        expected = F.interpolate(part, (8, 12), mode="bilinear").round().byte()
        assert torch.equal(out[i : i + 1, :, 1:-1, 2:-2], expected[:, :, 1:-1, 2:-2])


def test_the_whole_image_is_itself() -> None:
    x = random_images(2, (8, 8))
    nothing, all_of_it = torch.zeros(2), torch.ones(2)
    assert torch.equal(scaled_crop(x, nothing, nothing, all_of_it, all_of_it), x)
    assert torch.equal(Inception(least=1.0, shape=1.0, flip_share=0.0)(x, generator()), x)
    flipped = Inception(least=1.0, shape=1.0, flip_share=1.0)(x, generator())
    assert torch.equal(flipped, x.flip(-1))


def test_windows_lie_within_the_image_with_areas_and_shapes_as_asked() -> None:
    x = random_images(4000, (4, 4))
    flipped, top, left, height, width = Inception().draw(x, generator())
    for start, length in ((top, height), (left, width)):
        assert (start >= 0).all()
        assert (start + length <= 1 + 1e-6).all()
    whole = (height < 1) & (width < 1)
    area, ratio = (height * width)[whole], (width / height)[whole]
    assert area.min() >= 0.08 - 1e-6
    assert area.min() < 0.1
    assert ratio.log().abs().max() <= math.log(4 / 3) + 1e-5
    assert abs(ratio.log().mean()) < 0.02
    assert_share(flipped.sum(), 4000, 0.5)
    # Areas are uniform: half of those that cannot be cut are below the middle.
    small = (height * width)[height * width < 0.7]
    assert_share((small < 0.39).sum(), len(small), 0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"least": 2}, "least"), ({"shape": 0.5}, "shape"), ({"flip_share": -1}, "flip_share")],
)
def test_bad_values_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Inception(**options)
