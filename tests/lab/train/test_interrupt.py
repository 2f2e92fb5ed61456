"""A request to stop is heard between steps."""

from __future__ import annotations

import os
import signal

import pytest

from crsam.lab.train.interrupt import stoppable


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_asks_and_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stoppable() as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
    assert signal.getsignal(number) is before


def test_the_second_interrupt_stops_at_once() -> None:
    with stoppable():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
