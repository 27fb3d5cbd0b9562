"""The list of all samples, where some silos lack some of them: what one silo knows of it.

Samples have numbers, the same in every silo. Those of the first silo with labels come first, in the order of their ids,
then those of the next one that the first lacks, and so on: with nothing missing, the order of the ids. A silo knows the
numbers of its own samples, how many there are in all, and which of its own each silo has that it was compared with.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.config import Config, ConfigError
from tdcd.federation.missing_rows import Presence, stood_in_for
from tdcd.records.files import parse_json, read_plain, write_durably
from tdcd.tables.errors import TableError
from tdcd.tables.rows import RawRows

MOST_BYTES = 2 << 30
"""The largest file that is read."""


@dataclass(frozen=True, eq=False)
class SampleList:
    """What ``tdcd align`` writes for a hub, and ``tdcd hub --samples`` reads."""

    total: int
    """How many samples there are in all."""
    ids: Sequence[str]
    """``[n]``: the silo's own samples, in the order of their numbers."""
    numbers: NDArray[np.int64]
    """``[n]``, rising."""
    held_by: Mapping[str, NDArray[np.bool_]]
    """``[n]`` by silo: whether it has them too; of the silos that this one was compared with."""

    def __post_init__(self) -> None:
        """Refuse numbers that are none."""
        size, numbers = len(self.ids), self.numbers
        if not 0 < size == len(numbers) <= self.total or numbers[0] < 0 or numbers[-1] >= self.total:
            raise ValueError(f"{size} ids, {len(numbers)} numbers and {self.total} samples do not go together")
        if (np.diff(numbers) <= 0).any() or len({*self.ids}) < size:
            raise ValueError("an id or a number is there twice, or they are not in order")
        if any(len(held) != size for held in self.held_by.values()):
            raise ValueError("it does not say of every id which silos have it")

    @classmethod
    def of_tables(cls, config: Config, tables: Mapping[str, Sequence[RawRows]], ids: Sequence[str]) -> dict[str, Self]:
        """The list of every silo, from all silos' tables in one place and the ids of all samples in order."""
        held = {name: {sample for part in parts for sample in part.ids} for name, parts in tables.items()}
        lists = {}
        for silo, own in held.items():
            numbers = np.array([number for number, sample in enumerate(ids) if sample in own], np.int64)
            named, others = [ids[number] for number in numbers.tolist()], compared_with(config, silo)
            has = {other: np.array([sample in held[other] for sample in named], bool) for other in others}
            lists[silo] = cls(len(ids), named, numbers, has)
        return lists

    def stood_in_for(self, names: Sequence[str], silo: int, labelled: Sequence[int]) -> Presence:
        """``[N, n]``: for which absent silos the samples need stand-ins of this one, see :mod:`tdcd.blocks.absent`."""
        present = np.ones((len(names), len(self.ids)), bool)
        for index, name in enumerate(names):
            if index != silo and silo in labelled:
                present[index] = self.held_by[name]
        return stood_in_for(present, silo, labelled)

    @property
    def is_complete(self) -> bool:
        """Whether every silo that this one was compared with has all samples, as this one has."""
        return len(self.ids) == self.total and all(held.all() for held in self.held_by.values())

    def lacking(self, names: Sequence[str], silo: int) -> Presence:
        """``[N, n]``: which other silos lack the samples, as far as this one knows."""
        nothing = np.ones(len(self.ids), bool)
        return np.array(
            [~(nothing if index == silo else self.held_by.get(name, nothing)) for index, name in enumerate(names)]
        )

    def shared(self) -> dict[str, list[str]]:
        """By silo: the ids that it has too."""
        return {silo: [self.ids[row] for row in np.flatnonzero(has).tolist()] for silo, has in self.held_by.items()}

    def digests(self, silo: str, secret: bytes) -> dict[str, str]:
        """By silo: a keyed digest of the ids and numbers that this one and that one have; both must say the same."""
        digests = {}
        for other, has in self.held_by.items():
            rows = np.flatnonzero(has)
            content = json.dumps([sorted((silo, other)), self.total, [self.ids[row] for row in rows.tolist()]]).encode()
            digests[other] = hmac.new(secret, content + self.numbers[rows].tobytes(), hashlib.sha256).hexdigest()
        return digests

    @property
    def digest(self) -> str:
        """A digest of the whole list."""
        held_by = {silo: has.tobytes().hex() for silo, has in self.held_by.items()}
        content = json.dumps([self.total, [*self.ids], self.numbers.tolist(), held_by], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        held_by = {silo: "".join(np.where(has, "1", "0")) for silo, has in self.held_by.items()}
        content = {"total": self.total, "ids": [*self.ids], "numbers": self.numbers.tolist(), "held_by": held_by}
        write_durably(path, json.dumps(content).encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """What :meth:`write` wrote."""
        try:
            return cls._of_json(parse_json(read_plain(path, MOST_BYTES)))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            problem = f"{path} is no list of samples, as tdcd align writes it for a hub: {error}"
            raise TableError([problem]) from None

    @classmethod
    def _of_json(cls, content: Any) -> Self:
        total, ids, numbers = content["total"], content["ids"], content["numbers"]
        if type(total) is not int or not all(isinstance(sample, str) for sample in ids):
            raise ValueError("'total' must be a number and 'ids' texts")
        if not all(type(number) is int for number in numbers):
            raise ValueError("'numbers' must be whole numbers")
        held_by = {}
        for silo, has in content["held_by"].items():
            if not {*has} <= {"0", "1"}:
                raise ValueError("'held_by' must be a 0 or a 1 for every id")
            held_by[str(silo)] = np.array([digit == "1" for digit in has], bool)
        return cls(total, tuple(ids), np.array(numbers, np.int64), held_by)


def compared_with(config: Config, silo: str) -> list[str]:
    """The silos whose ids a silo's are compared with: all others, or the one that alone has the labels."""
    holder = config.federation.labels
    return [name for name in config.silo_names if name != silo and holder in (None, name, silo)]


def labelled_silos(config: Config) -> list[int]:
    """The silos whose tables have labels: every id of theirs is a sample."""
    labelled = [index for index, section in enumerate(config.silos) if section.label is not None]
    if not labelled:
        raise ConfigError(['silos: no silo has a label: name the column to predict, label = "...", in one of them'])
    return labelled
