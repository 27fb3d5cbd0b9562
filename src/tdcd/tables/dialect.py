"""How a CSV file is written: what separates its fields, its encoding, its decimal mark, what stands for a blank."""

import csv
import gzip
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from tdcd.tables.errors import TableError

if TYPE_CHECKING:
    from tdcd.config import Config

BLANKS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""The texts that always stand for a value that is not known."""
DELIMITERS = (",", ";", "\t", "|")
"""What is tried where nobody says what separates the fields."""
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written. For a Parquet file only ``decimal`` and ``blank`` count, in its texts."""

    delimiter: str | None = None
    """What separates fields; by default found in the header."""
    encoding: str = "utf-8"
    decimal: str = "."
    blank: tuple[str, ...] = BLANKS
    """The texts that stand for a value that is not known."""

    @classmethod
    def of(cls, config: "Config") -> Self:
        """What the configuration says about all tables."""
        data = config.data
        return cls(data.delimiter, data.encoding, data.decimal, (*BLANKS, *data.blank))

    @property
    def blank_numbers(self) -> list[float]:
        """The numbers that stand for a value that is not known, such as -999."""
        found = []
        for text in self.blank[len(BLANKS) :]:
            try:
                found.append(self.number(text))
            except ValueError:
                continue
        return found

    def number(self, text: str) -> float:
        """The number that a text is."""
        return float(text.replace(self.decimal, "."))

    @property
    def arrow_encoding(self) -> str:
        """The encoding as Arrow calls it, which checks and converts others than its own more slowly."""
        return "utf8" if self.encoding == "utf-8" else self.encoding

    def open(self, path: Path) -> IO[str]:
        """A CSV file as text; bytes that are not in the encoding become surrogates, see :func:`is_decoded`."""
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        return io.TextIOWrapper(open_bytes(path), encoding=encoding, errors="surrogateescape", newline="")

    def header(self, path: Path, id_column: str | None) -> tuple[list[str], Self]:
        """The columns of a CSV file, and the dialect with the delimiter of this file.

        Where it is not given, it is the one that gives the most columns; one that gives a column of ids is preferred.
        """
        headers = {mark: self._header(path, mark) for mark in (self.delimiter or "".join(DELIMITERS))}
        mark = max(headers, key=lambda one: (id_column in headers[one], len(headers[one])))
        if not headers[mark]:
            raise TableError([f"{path}: is empty: it needs a header line with the columns' names, and rows"])
        if not is_decoded("".join(headers[mark])):
            raise TableError([f"{path}, line 1: {self.not_decoded()}"])
        return headers[mark], replace(self, delimiter=mark)

    def _header(self, path: Path, delimiter: str) -> list[str]:
        with self.open(path) as file:
            return next(csv.reader(file, delimiter=delimiter), [])

    def not_decoded(self, cells: int = 1) -> str:
        """What is wrong with a cell that is not in the encoding, the first of so many."""
        told = 'save the file in that encoding, or set data.encoding = "latin-1" if all tables are'
        others = "" if cells == 1 else f", like {cells - 1} other cell" + ("s" if cells > 2 else "")
        return (
            f"is not {self.encoding.upper()}{others}: {told if self.encoding == 'utf-8' else 'correct data.encoding'}"
        )


DEFAULT = Dialect()
"""Where nobody says otherwise."""


def is_decoded(text: str) -> bool:
    """Whether a text that was decoded with ``surrogateescape`` was in its encoding throughout."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def open_bytes(path: Path) -> IO[bytes]:
    """A file's bytes, uncompressed if its name ends in .gz."""
    return cast("IO[bytes]", gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def arrow_stream(path: Path) -> Any:
    """The same bytes for Arrow."""
    return pa.input_stream(path, compression="gzip" if path.suffix.lower() == ".gz" else None)


def is_parquet(path: Path) -> bool:
    """Whether the file's name says Parquet; one that says neither that nor CSV is refused."""
    if not path.name.lower().endswith(ENDINGS):
        raise TableError([f"{path}: the name of a table must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"])
    return path.suffix.lower() == ".parquet"
