"""One table cut into a folder of per-client files with a configuration: for trials and teaching."""

import csv
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tdcd.config import check_config
from tdcd.core.words import there_are
from tdcd.federation.partition import contiguous_columns, equal_sizes, named_columns, shuffled_rows
from tdcd.records.run_folder import toml_text
from tdcd.tables.cells import as_amounts, holds_names
from tdcd.tables.dialect import DEFAULT
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.source import Source, open_table

FIRST_PORT = 7447
"""The port of the first hub; those of the others follow."""


def split_table(
    path: Path,
    out: Path,
    *,
    silos: int | Mapping[str, Sequence[str]],
    clients: Sequence[int],
    id_column: str = "id",
    label: str,
    labels_at: str | None = None,
    seed: int = 0,
    parquet: bool = False,
) -> Path:
    """Cut a table into silos by columns and clients by rows, and write a file for each client to ``out``.

    Every silo deals out and shuffles the rows in its own way. Every client's file has the labels of its rows, or only
    those of one silo. Columns of which most values are not numbers are categorical.

    Args:
        silos: how many, or the columns of each by name.
        clients: how many per silo, one number for each or one for all.
        labels_at: the only silo that gets labels; all by default.
        parquet: write Parquet rather than CSV files.

    Returns:
        The configuration file, ``out/federation.toml``.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is there already and is not an empty folder: choose another one")
    with open_table(path, id_column) as source:
        groups = _groups(source, id_column, label, silos)
        counts = [*clients] * len(groups) if len(clients) == 1 else [*clients]
        if len(counts) != len(groups):
            raise ValueError(f"{there_are(len(groups), 'silo')}, but client counts for {len(counts)}: {counts}")
        table = source.table()
        sizes = [equal_sizes(table.num_rows, count) for count in counts]
        used = [name for names in groups.values() for name in names]
        categorical = [name for name in used if holds_names_in(table.column(name))]
        # Only to refuse what is wrong.
        read_rows(source, Columns(id_column, label, tuple(used), tuple(categorical)))
    table = _with_numbers(table, set(used) - set(categorical), parquet)
    suffix = "parquet" if parquet else "csv"
    keys = _configuration(groups, counts, id_column, label, categorical, suffix, table.num_rows)
    if labels_at is not None:
        keys["federation"] = {"labels": labels_at}
        for section in keys["silos"]:
            section["label"] = label if section["name"] == labels_at else None
    check_config(keys, "the split")
    for index, (names, section) in enumerate(zip(groups.values(), keys["silos"], strict=True)):
        rng = np.random.default_rng([seed, index])
        (out / section["name"]).mkdir(parents=True)
        parts = shuffled_rows(table.num_rows, sizes[index], rng)
        for client, rows in zip(section["client"], parts, strict=True):
            labelled = [] if section["label"] is None else [label]
            part = table.select([id_column, *labelled, *names]).take(pa.array(rng.permutation(rows)))
            _write(part, out / client["table"])
    (out / "federation.toml").write_text(_toml(keys), encoding="utf-8")
    return out / "federation.toml"


def deal_rows(path: Path, columns: Columns, ids: Mapping[Path, Collection[str]]) -> None:
    """Write rows of a table, every cell as it is, to Parquet files: to each those that are known by its ``ids``."""
    with open_table(path, columns.row_id, columns.dialect) as source:
        table = source.table()
    texts = columns.dialect.as_ids(table.column(columns.row_id).cast(pa.string()).to_pylist())
    for out, own in ids.items():
        _write(table.take(pa.array([place for place, sample in enumerate(texts) if sample in own], pa.int64())), out)


def _groups(
    source: Source, id_column: str, label: str, silos: int | Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """The columns of each silo by name."""
    # Silos that name their columns may leave some out, whatever those are.
    asked = Columns(id_column, label, None if isinstance(silos, int) else ())
    columns = asked.among(source.name, source.header).features
    columns = columns or tuple(name for name in source.header if name not in (id_column, label))
    if isinstance(silos, int):
        parts = contiguous_columns(len(columns), silos)
        return {f"silo{index + 1}": [columns[place] for place in part] for index, part in enumerate(parts)}
    named_columns(columns, silos)
    return {name: [*names] for name, names in silos.items()}


def _with_numbers(table: pa.Table, names: set[str], parquet: bool) -> pa.Table:
    """The table with these columns as numbers, where they would not be written as such; dates stay as they are."""
    for name in names:
        numbers, kind = as_amounts(table.column(name), DEFAULT)
        if kind != "date" and (parquet or pa.types.is_boolean(table.column(name).type)):
            column = pa.array(numbers, from_pandas=True)
            table = table.set_column(table.column_names.index(name), name, column)
    return table


def holds_names_in(column: pa.ChunkedArray) -> bool:
    """Whether the values are names; those of Parquet's own types are none."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    return bool(pa.types.is_string(column.type)) and holds_names(column, DEFAULT)


def _configuration(
    groups: Mapping[str, Sequence[str]],
    counts: Sequence[int],
    id_column: str,
    label: str,
    categorical: Sequence[str],
    suffix: str,
    num_rows: int,
) -> dict[str, Any]:
    """The keys of a federation of these silos."""
    silos: list[dict[str, Any]] = []
    for index, ((name, columns), count) in enumerate(zip(groups.items(), counts, strict=True)):
        named = [column for column in columns if column in categorical]
        clients = [{"name": f"c{k + 1}", "table": f"{name}/c{k + 1}.{suffix}"} for k in range(count)]
        section: dict[str, Any] = {"name": name, "hub": f"127.0.0.1:{FIRST_PORT + index}"}
        section |= {"id": id_column, "label": label, "categorical": named, "client": clients}
        silos.append(section)
    # A fifth of the rows is held out; a minibatch cannot be larger than the rest.
    train = {"batch_size": min(128, max(1, num_rows * 4 // 5 - 1))}
    return {"data": {"source": "files"}, "model": {"block": "linear"}, "train": train, "silos": silos}


def _toml(keys: Mapping[str, Any]) -> str:
    """The configuration as people write it: a heading for every silo and client."""
    parts = [toml_text({key: value for key, value in keys.items() if key != "silos"}).lstrip()]
    for silo in keys["silos"]:
        parts.append("[[silos]]\n" + toml_text({key: value for key, value in silo.items() if key != "client"}))
        parts += ["[[silos.client]]\n" + toml_text(client) for client in silo["client"]]
    return "\n".join(parts)


def _write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    # Arrow's writer would put every text in quotes.
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.column_names)
        writer.writerows(zip(*(column.to_pylist() for column in table.columns), strict=True))
