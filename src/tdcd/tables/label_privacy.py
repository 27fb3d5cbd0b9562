"""Randomised labels of tables: drawn where the labels are, or read from a file that says with which epsilon."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.config import Config
from tdcd.core import randomized
from tdcd.data.randomized import randomize
from tdcd.tables.errors import TableError
from tdcd.tables.labels import Labels, canonical_label
from tdcd.tables.rows import RawRows
from tdcd.tables.writing import write_table

EPSILON_COLUMN = "label_epsilon"
"""The column that marks a table of randomised labels, with epsilon in every row."""


def classes_of(config: Config) -> tuple[str, ...]:
    """The classes that the file lists, in an order that does not depend on how."""
    return tuple(sorted({canonical_label(name) for name in config.federation.label_classes or ()}))


def randomized_labels(
    config: Config, values: NDArray[Any] | Sequence[str], ids: Sequence[str], key: bytes, where: str
) -> NDArray[np.float64] | list[str]:
    """Labels after randomised response, numbers or names as they were.

    Args:
        where: whose labels they are, for errors.
    """
    epsilon, classes = config.federation.label_epsilon, classes_of(config)
    assert epsilon is not None
    names = [canonical_label(value) for value in np.asarray(values).tolist()]
    _check_known(names, classes, where)
    places = {name: place for place, name in enumerate(classes)}
    drawn = randomize(np.array([places[name] for name in names], np.int64), ids, classes, epsilon, key)
    named = [classes[place] for place in drawn]
    return named if np.asarray(values).dtype.kind in "OU" else np.array(named, np.float64)


def protected(config: Config, silo: str, rows: RawRows, key: Callable[[], bytes]) -> RawRows:
    """A client's rows with labels that may leave it: true ones if nothing else is asked for, else randomised ones.

    Args:
        silo: the client's.
        key: gives the secret to draw with, if labels have to be drawn.
    """
    check_protected(config, silo, rows)
    if rows.labels is None or config.federation.label_epsilon == rows.label_epsilon:
        return rows
    return replace(rows, labels=randomized_labels(config, rows.labels, rows.ids, key(), rows.source))


def check_protected(config: Config, silo: str, rows: RawRows) -> None:
    """Refuse labels that are not what ``federation.label_epsilon`` asks of this silo's clients."""
    epsilon, holder, randomized_with = config.federation.label_epsilon, config.federation.labels, rows.label_epsilon
    if rows.labels is None or (epsilon is None and randomized_with is None):
        return
    if randomized_with is not None:
        check_ready(config, randomized_with, rows.source)
    elif silo != holder:
        raise TableError(
            [
                f"federation.label_epsilon = {epsilon:g}: the labels of {rows.source} are not randomised, and silo "
                f"'{silo}' is not the only one that has labels. Randomise them once where they come from, with "
                "tdcd labels, and give every client that file with --labels; or set federation.labels "
                "to the one silo that keeps its labels"
            ]
        )
    _check_known(
        [canonical_label(label) for label in np.asarray(rows.labels).tolist()], classes_of(config), rows.source
    )


def check_ready(config: Config, randomized_with: float | None, source: str) -> None:
    """Refuse labels that are not randomised as ``federation.label_epsilon`` says, where no party randomises them later.

    Args:
        found: with which epsilon they were randomised; None if they are true ones.
    """
    epsilon = config.federation.label_epsilon
    if randomized_with == epsilon:
        return
    are = "are not randomised" if randomized_with is None else f"were randomised with epsilon = {randomized_with:g}"
    asked = "the file has no federation.label_epsilon" if epsilon is None else f"federation.label_epsilon = {epsilon:g}"
    why = "true labels would leave the client" if randomized_with is None else "training would correct them wrongly"
    raise TableError([f"the labels of {source} {are}, and {asked}: {why}; make both the same"])


def _check_known(names: Sequence[str], classes: Sequence[str], where: str) -> None:
    unknown = sorted(set(names) - set(classes))
    if unknown:
        raise TableError(
            [
                f"the labels of {where}: {unknown[0]!r} is none of federation.label_classes ({', '.join(classes)}): "
                "add it, if it is a class; amounts cannot be randomised, since randomised response needs classes"
            ]
        )


def check_all_classes(config: Config, labels: Labels) -> None:
    """Refuse randomised labels without one of the classes: the correction is for all of them."""
    epsilon, wanted = config.federation.label_epsilon, classes_of(config)
    if epsilon is None or not wanted:
        return
    if labels.task == "regression":
        raise ValueError(
            f"federation.label_epsilon = {epsilon:g}: the labels are read as amounts, and randomised response needs "
            'classes: set model.loss = "softmax" if they are'
        )
    missing = sorted(set(wanted) - set(labels.classes))
    if missing:
        raise ValueError(
            f"federation.label_classes: no label is {missing[0]!r} after randomisation: leave it out if there is no "
            "such class, or take more samples"
        )


def with_noise(config: Config, words: str, num_classes: int) -> str:
    """How labels were interpreted, in words, and what was done to them."""
    epsilon = config.federation.label_epsilon
    if epsilon is None:
        return words
    return f"{words or f'{num_classes} classes'}; {randomized.in_words(epsilon, num_classes)}"


def write_randomized(
    path: Path,
    columns: tuple[str, str],
    ids: Sequence[str],
    labels: Sequence[Any],
    epsilon: float,
    weights: tuple[str, Sequence[float]] | None = None,
) -> None:
    """Write a table of randomised labels, which ``tdcd client --labels`` reads.

    Args:
        columns: the names of the id column and of the label column.
        weights: what the samples weigh, as they are, and the name of that column.
    """
    id_column, label = columns
    written = {id_column: ids, label: labels, EPSILON_COLUMN: [epsilon] * len(ids)}
    write_table(path, written if weights is None else {**written, weights[0]: [*weights[1]]})
