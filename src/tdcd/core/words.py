"""Words for people: counts, figures and tables as pages and the terminal show them, and texts that others wrote.

What cannot be seen of a text is written out: escape sequences move a terminal's cursor and change its title; characters
for the direction of writing, and those without a width, make a line read as what it is not.
"""

import math
from collections.abc import Sequence
from decimal import ROUND_DOWN, Decimal
from typing import Any, NamedTuple
from unicodedata import category

_BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
METRIC_TITLES = {"auc": "AUC", "rmse": "RMSE", "r2": "R²", "d2": "D²", "mae": "MAE"}
SPLITS = {"train": "train", "test": "held-out"}
"""What the history calls a set of samples, and what the page does."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things; ``plural`` where an s is not enough.

    >>> counted(1, "silo"), counted(2000, "client"), counted(2, "minibatch", "minibatches")
    ('1 silo', '2,000 clients', '2 minibatches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def there_are(number: int, noun: str = "", plural: str = "") -> str:
    """A count as a clause.

    >>> there_are(1, "silo"), there_are(3, "class", "classes"), there_are(2)
    ('there is 1 silo', 'there are 3 classes', 'there are 2')
    """
    return f"there {are(number)} {counted(number, noun, plural) if noun else format(number, ',')}"


def are(number: int) -> str:
    """The verb that goes with a number.

    >>> are(1), are(0)
    ('is', 'are')
    """
    return "is" if number == 1 else "are"


def byte_unit(largest: float) -> tuple[str, int]:
    """The decimal unit that suits counts up to ``largest``, and its size in bytes.

    >>> byte_unit(2_500_000)
    ('MB', 1000000)
    """
    power = min(len(str(int(largest))) - 1, 3 * len(_BYTE_UNITS) - 1) // 3
    return _BYTE_UNITS[power], 1000**power


def bytes_in_words(count: int) -> str:
    """A count of bytes, to three figures.

    >>> bytes_in_words(0), bytes_in_words(999_600), bytes_in_words(12_345_678)
    ('0 bytes', '1000 kB', '12.3 MB')
    """
    unit, size = byte_unit(count)
    scaled = count / size
    return f"{count} {unit}" if size == 1 else f"{scaled:.{max(0, 3 - len(str(int(scaled))))}f} {unit}"


def spans(numbers: Sequence[int], most: int = 8) -> str:
    """Ascending numbers, runs of them shortened, and no more than ``most`` runs; a dash where there is none.

    >>> spans([3, 4, 5, 8]), spans([]), spans(range(0, 100, 2), most=2)
    ('3–5, 8', '–', '0, 2, …')
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    words = [f"{first:,}" if first == last else f"{first:,}–{last:,}" for first, last in runs[:most]]
    return ", ".join(words + ["…"] * (len(runs) > most)) or "–"


def duration(seconds: float) -> str:
    """A time span.

    >>> duration(0.0312), duration(75), duration(3725)
    ('0.031 s', '1 min 15 s', '1 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def milliseconds(seconds: float) -> str:
    """A short time.

    >>> milliseconds(0.0312), milliseconds(2.5)
    ('31.2 ms', '2,500 ms')
    """
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{1e3 * seconds:,.0f} ms"


def figure(value: float | None) -> str:
    """A measured number, always to four figures; a dash where there is none.

    >>> figure(0.123456), figure(1), figure(12345.6), figure(None), figure(float("nan"))
    ('0.1235', '1.000', '12,346', '–', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:#.4g}"


def rounded_down(value: float) -> str:
    """A largest allowed value, to three figures, which never says more than is allowed.

    >>> rounded_down(0.017872), rounded_down(0.01789), rounded_down(0.3), rounded_down(1234.5), rounded_down(2.5e-07)
    ('0.0178', '0.0178', '0.3', '1230', '2.5e-07')
    """
    exact = Decimal(repr(value))
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), ROUND_DOWN)):g}"


class TextTable(NamedTuple):
    """The first column names the row."""

    head: list[str]
    rows: list[list[str]]


def metric_title(metric: str) -> str:
    """What the page calls a metric."""
    return METRIC_TITLES.get(metric, metric)


_KEPT = "\n\t"
MOST_LETTERS = 1000
"""The most letters of a sentence from another party."""


def visible(text: str) -> str:
    r"""A text whose control characters, other than ends of lines and tabs, are written out.

    >>> visible("a\x1b[31mb\u202ec")
    'a\\x1b[31mb\\u202ec'
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(letter: str) -> str:
    is_seen = letter.isprintable() or letter in _KEPT or category(letter) == "Zs"
    return letter if is_seen else letter.encode("unicode_escape").decode()


def one_line(text: str, most: int = MOST_LETTERS) -> str:
    r"""The same in one line of ``most`` letters at most.

    >>> one_line("it failed:\n  the disk is full", 14)
    'it failed: ...'
    """
    # No more is looked at than can be shown.
    line = visible(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 3]}..."


def all_visible(value: Any) -> Any:
    """The same document, with all its texts made visible."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): all_visible(inner) for key, inner in value.items()}
    return [*map(all_visible, value)] if isinstance(value, list | tuple) else value
