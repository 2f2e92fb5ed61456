"""Random signs are even and independent, and each purpose has its own seed."""

from __future__ import annotations

import math

import pytest
import torch

from crsam._states import seed_of
from crsam.curvature.random_vectors import VectorSpace, rademacher


def test_signs_are_even_and_independent() -> None:
    space = VectorSpace(4099, torch.float32, torch.device("cpu"))  # no multiple of eight
    draws = torch.stack([rademacher(space, "probe", 0, i) for i in range(64)])
    assert set(draws.unique().tolist()) == {-1.0, 1.0}
    assert abs(draws.mean()) < 5 / math.sqrt(draws.numel())
    between = draws @ draws.T / space.size - torch.eye(64)
    assert between.abs().max() < 6 / math.sqrt(space.size)
    neighbours = draws.T @ draws / 64 - torch.eye(space.size)
    assert neighbours.square().mean().sqrt() == pytest.approx(1 / 8, rel=0.02)


def test_seeds_differ_by_every_part() -> None:
    seeds = {
        seed_of(*p) for p in [("a", 0, 1), ("a", 1, 0), ("a", 0, 11), ("a", 0, 1), ("b", 0, 1)]
    }
    assert len(seeds) == 4
