"""Datasets and what is done to their images."""
