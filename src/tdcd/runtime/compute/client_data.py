"""A client's rows: a table as its owner keeps it, or arrays that are ready for training."""

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tdcd.config.resolve import Plan
from tdcd.core.settings import Dtype
from tdcd.core.shared_rows import Index, distinct
from tdcd.federation import client_of
from tdcd.records.files import digest_of
from tdcd.records.model_file import read_metadata
from tdcd.tables.label_privacy import EPSILON_COLUMN
from tdcd.tables.preparation import Preparation
from tdcd.tables.rows import Category, RawRows
from tdcd.tables.summary import summarize

NO_FEATURES = np.empty((0, 0), np.float32)


@dataclass(frozen=True, eq=False)
class ClientData:
    """The rows of one client."""

    ids: list[str]
    labels: NDArray[Any] | list[str] | None
    """Numbers, or names of classes; None in a silo without labels."""
    features: NDArray[Any] = field(default_factory=lambda: NO_FEATURES)
    """``[n, ...]``, ready for training; unused if there is a ``table``."""
    table: RawRows | None = None
    """Columns that the silo's preparation has yet to turn into features."""
    held_out: NDArray[np.bool_] | None = None
    """``[n]``: held-out rows, where the data itself marks them."""
    target: dict[str, Any] | None = None
    """What ready labels mean: ``task``, ``label_scale`` and ``label_mean``."""
    weights: NDArray[np.float64] | None = None
    """``[n]``: how much each row counts, where the data says so."""
    label_epsilon: float | None = None
    """With which epsilon ready labels were randomised; None if they are true ones."""

    @cached_property
    def digest(self) -> str:
        """A digest of everything here: a client that comes back with other rows is detected."""
        arrays: dict[str, NDArray[Any]] = {"features": self.features}
        words: list[Any] = [self.ids, self.target]
        if isinstance(self.labels, list):
            words.append(self.labels)
        elif self.labels is not None:
            arrays["labels"] = np.asarray(self.labels, np.float64)
        if self.held_out is not None:
            arrays["held_out"] = self.held_out
        if self.weights is not None:
            arrays["weights"] = self.weights
        if self.table is not None and self.table.shared is not None:
            arrays["shared"] = self.table.shared
        for name, column in () if self.table is None else self.table.features.items():
            words.append([name, column.levels if isinstance(column, Category) else None])
            arrays[f"column {name}"] = column.codes if isinstance(column, Category) else column
        return digest_of(words, arrays)

    def summary(self, chosen: NDArray[np.bool_], bins: int | None) -> Any:
        """Sums and counts of the chosen rows' columns, for so many bins."""
        assert self.table is not None
        return summarize(self.table, chosen, bins).to_json()

    def prepared(
        self, preparation: Preparation, bias: bool, dtype: Dtype, absent: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[Any], Index | None]:
        """The table as features, with a column of ones at the end if the silo carries the bias.

        Where rows belong to many samples, the features are those of the distinct ones, and which each sample has.

        Args:
            absent: ``[n, S]``: for which of the silos that there are stand-ins for each row needs them.
        """
        assert self.table is not None
        if self.table.shared is None:
            return preparation.apply(self.table, dtype, int(bias), absent), None
        index = distinct(self.table.shared, absent)
        _, first = np.unique(index, return_index=True)
        marks = None if absent is None else absent[first]
        return preparation.apply(self.table.take(first), dtype, int(bias), marks), index

    def save(self, path: Path) -> None:
        """Write ready arrays to a safetensors file, which ``tdcd client --data`` reads."""
        arrays = {"features": np.ascontiguousarray(self.features)}
        if self.labels is not None:
            arrays["labels"] = np.asarray(self.labels)
        arrays["ids"] = np.frombuffer(json.dumps(self.ids).encode(), np.uint8)
        if self.held_out is not None:
            arrays["held_out"] = self.held_out.astype(np.uint8)
        facts = {"tdcd": json.dumps(self.target), EPSILON_COLUMN: json.dumps(self.label_epsilon)}
        path.write_bytes(save(arrays, facts))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote."""
        try:
            content = path.read_bytes()
            arrays, facts = load(content), read_metadata(content)
            target, epsilon = json.loads(facts["tdcd"]), json.loads(facts.get(EPSILON_COLUMN, "null"))
            ids = json.loads(arrays["ids"].tobytes())
            held_out = arrays["held_out"].astype(bool) if "held_out" in arrays else None
            data = cls(ids, arrays.get("labels"), arrays["features"], None, held_out, target, label_epsilon=epsilon)
        except (SafetensorError, ValueError, KeyError) as error:
            raise ValueError(f"{path} does not hold a client's rows: {error}") from None
        num_labels = len(data.ids) if data.labels is None else len(data.labels)
        if not len(data.ids) == num_labels == len(data.features):
            counts = f"{len(data.ids)} ids, {num_labels} labels and {len(data.features)} rows"
            raise ValueError(f"{path} has {counts}: there must be as many of each")
        return data


def shards(planned: Plan) -> dict[str, ClientData]:
    """What each client of a simulated federation would hold, by the client's name: ready arrays, held-out rows too."""
    federation, held = planned.federation, {}
    num_test = 0 if federation.test_labels is None else len(federation.test_labels)
    scale, mean = float(federation.label_scale), float(federation.label_mean)
    target: dict[str, Any] = {"task": planned.objective.kind.tasks[0], "label_scale": scale, "label_mean": mean}
    if federation.classes:
        target["classes"] = [*federation.classes]
    for number, silo in enumerate(federation.silos):
        has_labels = planned.variant.knowledge.scored_at(number) == number
        for index, (name, rows) in enumerate(zip(silo.clients, silo.rows, strict=True)):
            # No client trains on the held-out rows, which are dealt out to the clients in turn.
            test = np.arange(index, num_test, silo.num_clients)
            features, labels = [silo.features[rows]], [federation.labels[rows]]
            if silo.test_features is not None and federation.test_labels is not None:
                features.append(silo.test_features[test])
                labels.append(federation.test_labels[test])
            ids = [str(sample) for sample in (*rows, *(test + federation.num_samples))]
            held_out = np.repeat([False, True], [len(rows), len(test)])
            rows_of = ClientData(ids, None, np.concatenate(features), None, held_out)
            if has_labels:
                epsilon = planned.config.federation.label_epsilon
                rows_of = replace(rows_of, labels=np.concatenate(labels), target=target, label_epsilon=epsilon)
            held[client_of(silo.name, name)] = rows_of
    return held
