"""Words for people: counts, and text that others wrote, made fit to be shown.

What cannot be seen is written out: escape sequences move a terminal's cursor and change its title; characters for the
direction of writing, and those without a width, make a line read as what it is not.
"""

from typing import Any
from unicodedata import category


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
