"""A table in words, for pages and for the terminal."""

from typing import NamedTuple


class TextTable(NamedTuple):
    """The first column names the row."""

    head: list[str]
    rows: list[list[str]]
