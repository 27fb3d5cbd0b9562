"""How a CSV file is written: what separates its fields, its encoding, its decimal mark, what stands for a blank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tdcd.config import Config

BLANKS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""The texts that always stand for a value that is not known."""
DELIMITERS = (",", ";", "\t", "|")
"""What is tried where no delimiter is given."""


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written. For a Parquet file only ``decimal`` and ``blank`` count, in its texts."""

    delimiter: str | None = None
    """What separates fields; by default found in the header."""
    encoding: str = "utf-8"
    decimal: str = "."
    blank: tuple[str, ...] = BLANKS
    """The texts that stand for a value that is not known."""
    ids: str = "exact"
    """Whether ids are exact texts, or ``"plain"``: see :func:`plain_id`."""

    @classmethod
    def of(cls, config: "Config") -> Self:
        """What the configuration says about all tables."""
        data = config.data
        return cls(data.delimiter, data.encoding, data.decimal, (*BLANKS, *data.blank), data.ids)

    @property
    def blank_numbers(self) -> list[float]:
        """The numbers that stand for a value that is not known, such as -999."""
        numbers = []
        for text in self.blank[len(BLANKS) :]:
            try:
                numbers.append(self.number(text))
            except ValueError:
                continue
        return numbers

    def as_ids(self, texts: Sequence[str]) -> Sequence[str]:
        """Texts of a column of ids, as they are compared."""
        return texts if self.ids == "exact" else [plain_id(text) for text in texts]

    def number(self, text: str) -> float:
        """The number that a text is."""
        return float(text.replace(self.decimal, "."))

    @property
    def arrow_encoding(self) -> str:
        """The encoding as Arrow calls it, which checks and converts others than its own more slowly."""
        return "utf8" if self.encoding == "utf-8" else self.encoding

    def not_decoded(self, cells: int = 1) -> str:
        """What is wrong with a cell that is not in the encoding, the first of so many."""
        remedy = 'save the file in that encoding, or set data.encoding = "latin-1" if all tables are'
        others = "" if cells == 1 else f", like {cells - 1} other cell" + ("s" if cells > 2 else "")
        return (
            f"is not {self.encoding.upper()}{others}: {remedy if self.encoding == 'utf-8' else 'correct data.encoding'}"
        )


def plain_id(sample: str) -> str:
    """An id without what spreadsheets add or remove: case, blanks around it, leading zeros, ``.0`` at the end.

    >>> plain_id(" 007 "), plain_id("7.0"), plain_id("AB-07")
    ('7', '7', 'ab-07')
    """
    text = sample.strip().lower()
    whole = text.removesuffix(".0")
    return (whole.lstrip("0") or "0") if whole.isdecimal() else text


DEFAULT = Dialect()
"""The dialect of tables for which none is given."""


def is_decoded(text: str) -> bool:
    """Whether a text that was decoded with ``surrogateescape`` was in its encoding throughout."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
