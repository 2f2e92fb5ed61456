"""What is shown of a photograph: the window, the middle, and how large it is decoded."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from crsam.lab.data import decoder
from crsam.lab.data.decoder import View, middle_of, random_window, shown
from lab.data.photos import photo

BILINEAR = Image.Resampling.BILINEAR


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


@given(
    st.integers(1, 900), st.integers(1, 900), st.integers(0, 2**62), st.floats(0.01, 1),
    st.floats(1, 3),
)  # fmt: skip
def test_a_window_lies_within_the_image_and_is_of_the_area_and_shape_asked_for(
    width: int, height: int, seed: int, least: float, shape: float
) -> None:
    left, top, right, bottom = random_window(width, height, seed, least, shape)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    w, h = right - left, bottom - top
    # Sides are whole numbers: each may be off by half a pixel.
    assert (w - 0.5) / (h + 0.5) <= shape
    assert (h - 0.5) / (w + 0.5) <= shape
    fallback = w == width or h == height
    assert (w + 0.5) * (h + 0.5) >= least * width * height or fallback


def test_windows_are_drawn_evenly_over_areas_shapes_and_places() -> None:
    boxes = np.array([random_window(4000, 4000, seed, 0.08, 4 / 3) for seed in range(4000)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = w * h / 16e6, np.log(w / h) / math.log(4 / 3)
    small = area < 0.6  # larger ones do not fit in every shape
    assert area.min() == pytest.approx(0.08, abs=0.01)
    assert np.mean(area[small] < 0.34) == pytest.approx(0.5, abs=0.03)
    assert np.mean(ratio[small] < 0) == pytest.approx(0.5, abs=0.03)
    assert np.abs(ratio[small]).mean() == pytest.approx(0.5, abs=0.03)
    room = 4000 - w[small]
    assert np.mean(boxes[small, 0] / room) == pytest.approx(0.5, abs=0.02)
    assert np.mean(boxes[small, 1] / (4000 - h[small])) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("size", "box"),
    [((1000, 10), (493, 0, 506, 10)), ((10, 1000), (0, 493, 10, 506)), ((30, 30), (0, 0, 30, 30))],
)
def test_where_no_window_fits_it_is_the_middle(size: tuple[int, int], box: tuple[int, ...]) -> None:
    assert random_window(*size, 0, 1.0, 4 / 3) == box


def test_a_window_is_cut_out_of_the_whole_photograph_and_scaled() -> None:
    image, view = photo(3, 90, 70), View(16, 16, least=0.08, draft=False)
    for seed in range(20):
        box = random_window(90, 70, seed, view.least, view.shape)
        expected = image.crop(box).resize((16, 16), BILINEAR)
        assert shown(encoded(image), view, seed).tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (333, 251), (224, 224), (100, 60)])
def test_the_middle_is_that_of_torchvision(size: tuple[int, int]) -> None:
    # Resize(256), CenterCrop(224), in their arithmetic.
    image = photo(1, *size)
    short = min(size)
    scaled = [256 if side == short else int(256 * side / short) for side in size]
    whole = image.resize((scaled[0], scaled[1]), BILINEAR)
    left, top = (int(round((side - 224) / 2.0)) for side in scaled)  # noqa: RUF046
    expected = whole.crop((left, top, left + 224, top + 224))
    seen = shown(encoded(image), View(224, 224, middle=0.875, draft=False), None)
    assert seen.tobytes() == expected.tobytes()


def decoded_sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    sizes: list[tuple[int, int]] = []
    real: Callable[[Image.Image], Image.Image] = decoder.in_colour

    def in_colour(image: Image.Image) -> Image.Image:
        sizes.append(image.size)
        return real(image)

    monkeypatch.setattr(decoder, "in_colour", in_colour)
    return sizes


def test_a_jpeg_is_decoded_no_larger_than_needed_and_no_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = decoded_sizes(monkeypatch)
    content = encoded(photo(2, 800, 600), "JPEG")
    seen = set()
    for seed in range(60):
        left, top, right, bottom = random_window(800, 600, seed, 0.08, 4 / 3)
        shown(content, View(64, 64, least=0.08), seed)
        scale = 800 // sizes[-1][0]
        seen.add(scale)
        assert min(right - left, bottom - top) / scale >= 64
        assert scale == 8 or min(right - left, bottom - top) / (2 * scale) < 64
    assert seen == {2, 4, 8}
    for middle, scale in ((None, 8), (0.875, 4), (0.51, 4), (0.49, 2)):
        shown(content, View(75, 75, middle=middle, draft=True), None)
        assert 800 // sizes[-1][0] == scale
        shown(content, View(75, 75, middle=middle), None)
        assert sizes[-1] == (800, 600)


def test_what_is_decoded_smaller_is_much_the_same_picture() -> None:
    content = encoded(photo(4).resize((805, 603), Image.Resampling.BICUBIC), "JPEG")
    for seed, middle in [(None, None), (None, 0.875), *((seed, None) for seed in range(30))]:
        drafted, full = (
            np.asarray(shown(content, View(48, 48, True, middle, 0.08, draft=draft), seed), float)
            for draft in (True, False)
        )
        assert np.abs(drafted - full).mean() < 1


def test_draft_changes_nothing_where_all_pixels_are_needed() -> None:
    content = encoded(photo(4, 120, 90), "JPEG")
    for seed in (None, *range(5)):
        a, b = (
            shown(content, View(80, 80, least=0.08, draft=draft), seed) for draft in (True, False)
        )
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("share", [None, 0.875, 0.6])
def test_what_is_cut_out_of_an_image_is_what_is_shown_of_its_file(share: float | None) -> None:
    for width, height in ((50, 34), (33, 61), (40, 40), (27, 20)):
        image = photo(0, width, height)
        view = View(20, 20, middle=share)
        cut = middle_of(image, view, image.size)
        assert np.array_equal(np.asarray(cut), np.asarray(shown(encoded(image), view, None)))
