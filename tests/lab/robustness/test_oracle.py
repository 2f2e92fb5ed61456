"""Beside the package ``imagecorruptions-imaug``, where it is installed, or what it once gave.

It is an independent descendant of the authors' programs. It departs from them in `pixelate`
(enlarged by nearest pixel), `elastic_transform` (no affine map, one strength for all sizes) and
`zoom_blur` (enlarged images not cut in the middle), which are therefore not compared here.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from crsam.lab.robustness import blur, corrupt
from crsam.lab.robustness.constants import IMAGENET, SEVERITIES
from lab.robustness.photos import floats, photo


def motion_blurred(severity: int, angle: float) -> np.ndarray:
    class Fixed(np.random.Generator):
        def uniform(self, *_: object, **__: object) -> float:  # type: ignore[override]
            return angle

    row = IMAGENET["motion_blur"][severity - 1]
    return 255 * blur.motion_blur(floats(side=96), Fixed(np.random.PCG64(0)), *row)


GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["pixels"]


@pytest.mark.parametrize("which", GOLDEN)
def test_what_the_package_once_gave(which: str) -> None:
    name, severity = which.split()
    found = (
        motion_blurred(int(severity), 33)
        if name == "motion_blur"
        else corrupt(photo(side=96), name, int(severity)).astype(int)
    )
    tolerance = 4 if name == "jpeg_compression" else 1  # other versions of libjpeg round otherwise
    assert np.abs(found[8::40, 8::40] - np.array(GOLDEN[which])).max() <= tolerance


@pytest.fixture
def package() -> ModuleType:
    return pytest.importorskip("imagecorruptions")


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", ["defocus_blur", "brightness", "contrast", "jpeg_compression"])
def test_what_has_no_chance_in_it_is_the_same(
    package: ModuleType, name: str, severity: int
) -> None:
    image = photo(side=96)
    theirs = package.corrupt(image, corruption_name=name, severity=severity).astype(int)
    difference = np.abs(theirs - corrupt(image, name, severity))
    assert difference.max() <= 1  # 99.99999 is 99 for them


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("angle", [-45, -10, 0, 33])
def test_motion_blur_is_the_same_at_the_same_angle(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch, severity: int, angle: float
) -> None:
    monkeypatch.setattr(np.random, "uniform", lambda *_: angle)
    theirs = package.corrupt(photo(side=96), corruption_name="motion_blur", severity=severity)
    assert np.abs(theirs - motion_blurred(severity, angle)).max() <= 1


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "glass_blur"])
def test_what_is_drawn_has_the_same_mean_and_spread(
    package: ModuleType, name: str, severity: int
) -> None:
    image = photo(side=96)
    np.random.seed(0)  # noqa: NPY002
    theirs = [package.corrupt(image, corruption_name=name, severity=severity) for _ in range(8)]
    ours = [corrupt(image, name, severity, key=str(k)) for k in range(8)]
    for statistic in (np.mean, np.std):
        assert statistic(ours) == pytest.approx(statistic(theirs), rel=0.01)
    distances = [
        np.mean([np.sqrt(np.mean((x - 1.0 * image) ** 2)) for x in some]) for some in (ours, theirs)
    ]
    assert distances[0] == pytest.approx(distances[1], rel=0.03)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", ["snow", "fog"])
def test_weather_is_as_bright_on_the_average(package: ModuleType, name: str, severity: int) -> None:
    image = photo(side=96)
    np.random.seed(0)  # noqa: NPY002
    theirs = [package.corrupt(image, corruption_name=name, severity=severity) for _ in range(60)]
    ours = [corrupt(image, name, severity, key=str(k)) for k in range(60)]
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.05)
    assert np.mean([x.std() for x in ours]) == pytest.approx(
        np.mean([x.std() for x in theirs]), rel=0.08
    )
