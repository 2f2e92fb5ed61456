"""Whole steps as CUDA graphs."""

from crsam.graph.captured import CannotCapture, Captured, capture_blocker

__all__ = ["CannotCapture", "Captured", "capture_blocker"]
