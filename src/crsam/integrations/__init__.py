"""Bridges to the frameworks people train with; each is imported only by those who use it."""

from crsam.integrations.scalars import scalars as scalars
