"""Bridges to the frameworks people train with; each is imported only by those who use it."""

from crsam.integrations.loggers import scalars as scalars
