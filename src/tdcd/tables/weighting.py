"""What samples weigh: from a column next to the labels, and from the weights of their classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.config import Config
from tdcd.core.losses import Task
from tdcd.federation.weights import scaled, weigh
from tdcd.tables.errors import TableError
from tdcd.tables.rows import RawRows


def weight_column(config: Config) -> str | None:
    """The column that says what samples weigh, as the first silo that has one calls it."""
    return next((silo.weight for silo in config.silos if silo.weight is not None), None)


def raw_weights(
    config: Config, tables: Mapping[str, Sequence[RawRows]], numbers: Mapping[str, int]
) -> NDArray[np.float64] | None:
    """``[total]``: what the tables say that samples weigh, in sample order; None if they say nothing.

    Args:
        numbers: of the samples, by id.
    """
    by_silo = {}
    for section in config.silos:
        if section.weight is not None:
            by_silo[section.name] = np.empty(len(numbers))
            for part in tables[section.name]:
                places = part.places(numbers)
                by_silo[section.name][places[places >= 0]] = np.asarray(part.weights)[places >= 0]
    for name, theirs in by_silo.items():
        first = next(iter(by_silo))
        differ = np.flatnonzero(by_silo[first] != theirs)
        if len(differ):
            ours, other = by_silo[first][differ[0]], theirs[differ[0]]
            sample = f"id {[*numbers][differ[0]]!r} weighs {ours:g} in silo '{first}'"
            raise TableError([f"{sample} and {other:g} in silo '{name}': correct one"])
    return next(iter(by_silo.values()), None)


def gathered_weights(
    config: Config, reported: Mapping[str, NDArray[np.float64] | None], order: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """``[total]``: what a silo's clients, by name, say that their rows weigh, in sample order; None if nothing."""
    column = weight_column(config)
    for client, weights in reported.items():
        if (weights is None) != (column is None):
            has, says = ("no weights", f"is {column!r}") if column else ("weights", "is not set")
            raise ValueError(f"{client} has {has} of its rows, and weight {says} in the shared file")
    known = [weights for weights in reported.values() if weights is not None]
    return np.concatenate(known)[order] if known else None


def sample_weights(
    config: Config,
    weights: NDArray[np.float64] | None,
    labels: NDArray[Any],
    meaning: tuple[Task, Sequence[str]],
    training: NDArray[np.bool_],
) -> NDArray[np.float64] | None:
    """``[n]``: what samples weigh with their classes' weights, 1 on average of those that train; None if all the same.

    Args:
        weights: what the tables say.
        meaning: the task and the names of the classes; if they have none, their numbers are.
    """
    given, (task, classes) = config.train.class_weights, meaning
    if given is not None:
        where = f"train.class_weights = {given!r}"
        if task == "regression":
            raise ValueError(f"{where}: the labels are amounts, not classes; leave it out")
        names = classes or tuple(str(number) for number in range(int(labels.max()) + 1))
        try:
            weights = weigh(given, names, labels, training, weights)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    if weights is None:
        return None
    if not weights[training].any():
        raise ValueError(f"weight = {weight_column(config)!r}: all training samples weigh 0")
    return scaled(weights, weights[training])
