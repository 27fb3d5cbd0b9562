"""What one feature of an additive model stands for."""

from typing import NamedTuple

BLANK, OTHER = "(blank)", "other"
"""Levels of rows without a value, and with a rare or unseen one."""


class Cell(NamedTuple):
    """A bin or a level of a raw column."""

    level: str = ""
    """Of a category; ``BLANK`` for blanks of any column; empty for a bin."""
    above: float | None = None
    """A bin has the values above this; None where it is open."""
    up_to: float | None = None
    """And up to this one, itself included."""
    share: float = 0.0
    """Of the training rows, as far as sketches tell."""
