"""What a report reads of ``held-out.csv``: amounts, or classes with their probabilities, and what was predicted."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tdcd.records.files import open_plain

CHANCE = "probability_"
"""How the columns of probabilities begin; the class's name follows."""


@dataclass(frozen=True, eq=False)
class Amounts:
    """A regression's samples, in the label's own unit."""

    true: NDArray[np.float64]
    """``[m]``."""
    predicted: NDArray[np.float64]
    """``[m]``."""


@dataclass(frozen=True, eq=False)
class Classes:
    """A classifier's samples."""

    names: Sequence[str]
    """Of the classes, in order; of two, the second is the one that the probability is of."""
    true: NDArray[np.int64]
    """``[m]``: numbers of classes."""
    predicted: NDArray[np.int64]
    """``[m]``."""
    chances: NDArray[np.float64]
    """``[m, classes]``: the probability of every class."""


def read_held_out(path: Path) -> Amounts | Classes | None:
    """The samples in the file; None if there are none, or if their labels were randomised.

    What was predicted for a randomised label says little of the true one, so nothing is made of it.
    """
    try:
        with io.TextIOWrapper(open_plain(path), encoding="utf-8", newline="") as file:
            _, *header = next(reader := csv.reader(file))
            # The id comes first.
            rows = [row[1:] for row in reader]
            columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else {}
    except FileNotFoundError:
        return None
    except (ValueError, StopIteration, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None
    if not columns or "randomised_label" in columns:
        return None
    try:
        return _classes(columns) if any(name.startswith(CHANCE) for name in columns) else _amounts(columns)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None


def _amounts(columns: Mapping[str, Sequence[str]]) -> Amounts:
    return Amounts(np.array(columns["label"], np.float64), np.array(columns["prediction"], np.float64))


def _classes(columns: Mapping[str, Sequence[str]]) -> Classes:
    named = {name.removeprefix(CHANCE): name for name in columns if name.startswith(CHANCE)}
    chances = np.stack([np.array(columns[name], np.float64) for name in named.values()], axis=1)
    names = [*named]
    if len(names) == 1:
        (second,) = names
        found = sorted({*columns["label"], *columns["prediction"]} - {second})
        names = [*(found or [f"not {second}"]), second]
        chances = np.concatenate([1 - chances, chances], axis=1)
    if len(names) != chances.shape[1]:
        raise ValueError(f"there are probabilities of {chances.shape[1]} classes, but {len(names)} classes")
    places = {name: place for place, name in enumerate(names)}
    true, predicted = (np.array([places[name] for name in columns[key]], np.int64) for key in ("label", "prediction"))
    return Classes(names, true, predicted, chances)
