"""How what was written is known again: marks of the lines of a file that only grows, and digests of arrays."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted


class Mark(NamedTuple):
    """The first lines of a file. The mark one line further follows from this one and the line, without a look back."""

    lines: int = 0
    digest: str = ""

    def after(self, line: str) -> "Mark":
        """The mark one line further."""
        content = f"{self.digest}\n{line}".encode("utf-8", "surrogatepass")
        return Mark(self.lines + 1, hashlib.blake2b(content, digest_size=16).hexdigest())

    @classmethod
    def read(cls, value: Any) -> Self:
        """A mark that was saved as JSON; raises unless it is one."""
        match value:
            case [int(lines), str(digest)] if lines >= 0 and len(digest) == (32 if lines else 0):
                return cls(lines, digest)
        raise ValueError(f"{value!r:.80} does not say how many lines there are, and their digest")

    def difference(self, marks: list["Mark"]) -> str:
        """How a file with ``marks``, see :func:`marks_of`, differs in these first lines; nothing if it does not."""
        if self.lines >= len(marks):
            return f"has {counted(len(marks) - 1, 'readable line')} of the {self.lines} that were written"
        return (
            ""
            if marks[self.lines] == self
            else f"is not as it was written: its first {counted(self.lines, 'line')} differ"
        )


NO_LINES = Mark()


def marks_of(lines: Iterable[str]) -> list[Mark]:
    """The marks after no line, after the first, and so on."""
    return [*accumulate(lines, Mark.after, initial=NO_LINES)]


def digest_of(words: Any, arrays: Mapping[str, NDArray[Any]]) -> str:
    """A digest of words, as JSON, and of named arrays in any order."""
    names = sorted(arrays)
    shapes = [[name, arrays[name].dtype.str, arrays[name].shape] for name in names]
    found = hashlib.blake2b(json.dumps([words, shapes], sort_keys=True).encode(), digest_size=16)
    for name in names:
        found.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
