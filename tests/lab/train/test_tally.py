"""Means of what steps report."""

from __future__ import annotations

import torch

from crsam.lab.train.tally import Tally


def number(x: float) -> torch.Tensor:
    return torch.tensor(x)


def test_a_value_that_some_steps_lack_is_averaged_over_the_others() -> None:
    tally = Tally()
    for x in (1.0, 2.0, 6.0):
        tally.add({"loss": number(x)})
    tally.add({"loss": number(3.0), "sharpness": number(0.5)})
    assert tally.means() == {"loss": 3.0, "sharpness": 0.5}


def test_reading_empties_it() -> None:
    tally = Tally()
    tally.add({"loss": number(1.0)})
    tally.means()
    assert tally.means() == {}
    tally.add({"loss": number(5.0)})
    assert tally.means() == {"loss": 5.0}


def test_its_state_goes_into_a_checkpoint_and_comes_back() -> None:
    one, other = Tally(), Tally()
    one.add({"loss": number(0.1), "accuracy": number(3.0)})
    one.add({"loss": number(0.7)})
    other.load_state_dict(one.state_dict())
    for tally in (one, other):
        tally.add({"loss": number(0.4)})
    assert one.means() == other.means()
