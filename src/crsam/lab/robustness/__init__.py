"""Corrupted images, and how well models stand them: ImageNet-C, ImageNet-R, CIFAR-10-C."""

from __future__ import annotations

from crsam.lab.robustness.corrupt import corrupt, corruptions

__all__ = ["corrupt", "corruptions"]
