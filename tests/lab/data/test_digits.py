"""The digits that come with scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from crsam.errors import UserError
from crsam.lab.data import digits as digits_module
from crsam.lab.data import load
from crsam.lab.data.augment import normalize
from crsam.lab.data.digits import as_bytes, read_digits
from crsam.lab.data.images import Images


def fetched(images: Images) -> torch.Tensor:
    return images.fetch(torch.arange(len(images)))


def test_all_images_are_there_once_with_their_labels_and_nothing_is_lost() -> None:
    digits, raw = read_digits(), load_digits()
    seen = []
    for images in (digits.train, digits.test):
        values = (16 / 255 * fetched(images).double()).round()
        rows = zip(values.flatten(1).tolist(), images.labels.tolist())
        seen += [(*row, label) for row, label in rows]
    given = [(*row, label) for row, label in zip(raw.data.tolist(), raw.target.tolist())]
    assert sorted(seen) == sorted(given)


def test_every_value_has_a_byte_of_its_own_close_to_its_share_of_the_range() -> None:
    values = torch.arange(17.0)
    pixels = as_bytes(values)
    assert torch.equal((16 / 255 * pixels.double()).round(), values.double())
    assert (pixels.double() / 255 - values / 16).abs().max() <= 0.5 / 255
    assert pixels[0] == 0
    assert pixels[16] == 255


def test_sizes_and_shares_of_the_split() -> None:
    digits = read_digits()
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert digits.train.shape == digits.test.shape == (1, 8, 8)
    assert digits.classes == tuple("0123456789")
    of_each = digits.train.labels.bincount() + digits.test.labels.bincount()
    assert ((digits.test.labels.bincount() - of_each * 360 / 1797).abs() < 1).all()


def test_the_split_does_not_depend_on_the_seed() -> None:
    one, other = (load("digits", seed=seed, label_noise=0.2) for seed in (0, 1))
    assert torch.equal(fetched(one.train), fetched(other.train))
    assert torch.equal(fetched(one.test), fetched(other.test))
    assert torch.equal(one.test.labels, other.test.labels)
    assert not torch.equal(one.train.labels, other.train.labels)


def test_pixels_are_fed_as_they_are_between_0_and_1() -> None:
    digits = read_digits()
    x = normalize(fetched(digits.train), digits.mean, digits.std).double()
    assert (x.min().item(), x.max().item()) == (0, 1)


def test_without_scikit_learn_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match="pip install scikit-learn"):
        read_digits()


def test_where_the_file_is_elsewhere_scikit_learn_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = read_digits()
    elsewhere = ModuleSpec("sklearn", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(digits_module, "find_spec", lambda name: elsewhere)
    after = read_digits()
    for one, other in ((before.train, after.train), (before.test, after.test)):
        assert torch.equal(fetched(one), fetched(other))
        assert torch.equal(one.labels, other.labels)


def test_scikit_learn_is_not_imported() -> None:
    program = "import sys; from crsam.lab.data import load; load('digits'); "
    program += "print('sklearn' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout == "False\n", ended.stderr
