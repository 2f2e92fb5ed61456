"""Doctests are collected where the frameworks that they need are installed."""

import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

# A shell ignores Ctrl-C in what it starts in the background, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

NEEDS = {
    "src/crsam/integrations/_lightning_steps.py": ["torchmetrics"],
    "src/crsam/integrations/accelerate.py": ["accelerate"],
    "src/crsam/integrations/lightning.py": ["lightning"],
    "src/crsam/integrations/pytorch_lightning.py": ["pytorch_lightning"],
    "src/crsam/integrations/transformers.py": ["accelerate", "transformers"],
    "tests/integrations/programs/ranks.py": ["accelerate", "lightning", "transformers"],
}


@pytest.fixture(autouse=True)
def only_our_own_names() -> Iterator[None]:
    """What a test or an example registers is gone after it."""
    from crsam.lab.models import _MODELS
    from crsam.optim.methods import METHODS

    kept = [(known, dict(known)) for known in (METHODS, _MODELS)]
    yield
    for known, before in kept:
        if known != before:
            known.clear()
            known.update(before)


collect_ignore = [
    file
    for file, packages in NEEDS.items()
    if any(find_spec(package) is None for package in packages)
]
