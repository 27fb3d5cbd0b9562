"""The rows of a trial's clients: what `tdcd run` would give each of them, in files that `tdcd client` reads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tdcd.config import Config, SiloSection
from tdcd.config.resolve import Plan
from tdcd.federation.party_names import client_of
from tdcd.runtime.process.client_data import shards
from tdcd.tables.assemble import Assembled
from tdcd.tables.randomized import write_randomized
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.source import open_table
from tdcd.tables.split import deal_rows


def write_rows(planned: Plan, folder: Path) -> dict[str, list[str]]:
    """Write what the clients need into ``folder``; the options of ``tdcd client`` that point each to its rows."""
    folder.mkdir(parents=True, exist_ok=True)
    if planned.assembled is not None:
        return _of_tables(planned.config, planned.assembled, folder)
    options = {}
    for client, rows in shards(planned).items():
        path = folder / f"{client}.safetensors"
        rows.save(path)
        options[client] = ["--data", str(path)]
    return options


def _of_tables(config: Config, assembled: Assembled, folder: Path) -> dict[str, list[str]]:
    """Every client's own table as it is, or its rows of the silo's one table; labels and ids in files beside them."""
    ids = folder / "ids.txt"
    ids.write_text("".join(f"{one}\n" for one in (*assembled.ids, *assembled.test_ids)), encoding="utf-8")
    options: dict[str, list[str]] = {}
    for index, silo in enumerate(config.silos):
        tables = _tables(config, assembled, index, folder)
        has_labels = config.federation.labels in (None, silo.name)
        labels = _labels(config, assembled, silo, tables, folder) if has_labels else []
        for client, path in tables.items():
            options[client_of(silo.name, client)] = ["--data", str(path), "--ids", str(ids), *labels]
    return options


def _tables(config: Config, assembled: Assembled, index: int, folder: Path) -> dict[str, Path]:
    silo, home = config.silos[index], Path(config.data.folder or "")
    if silo.client:
        return {client.name: home / client.table for client in silo.client}
    assert silo.table is not None
    paths, ids = {}, {}
    for number, (client, rows) in enumerate(
        zip(silo.client_names, assembled.federation.silos[index].rows, strict=True)
    ):
        paths[client] = folder / f"{client_of(silo.name, client)}.parquet"
        # Nobody trains on the held-out rows; the clients take turns in holding them.
        test = assembled.test_ids[number :: len(silo.client_names)]
        ids[paths[client]] = {*(assembled.ids[row] for row in rows), *test}
    deal_rows(home / silo.table, Columns.of(config, silo), ids)
    return paths


def _labels(
    config: Config, assembled: Assembled, silo: SiloSection, tables: dict[str, Path], folder: Path
) -> list[str]:
    """The option for a file of labels, for a silo whose tables have none: those of a silo that has.

    Randomised labels are in a file for every silo.
    """
    holder = next(other for other in config.silos if other.label is not None)
    label = silo.label or holder.label
    assert label is not None
    out = folder / f"labels.{silo.name}.parquet"
    if config.federation.label_epsilon is not None:
        federation, names = assembled.federation, assembled.label_encoding.classes
        drawn = [names[int(number)] for number in federation.labels] + [*assembled.test_labels]
        ids = [*assembled.ids, *assembled.test_ids]
        own = [some for some in (federation.weights, federation.test_weights) if some is not None]
        weights = (silo.weight or holder.weight or "", np.concatenate(own).tolist()) if own else None
        write_randomized(out, (silo.id, label), ids, drawn, config.federation.label_epsilon, weights)
        return ["--labels", str(out)]
    needed, weight = {label, *([silo.weight or holder.weight] if holder.weight else [])}, holder.weight
    if all(needed <= _header(path, Columns.of(config, silo)) for path in tables.values()):
        return []
    home = Path(config.data.folder or "")
    sources = [home / client.table for client in holder.client] or [home / (holder.table or "")]
    columns = replace(Columns.of(config, holder).only(()), label=holder.label, weight=weight)
    parts = [read_rows(source, columns) for source in sources]
    ids = [one for part in parts for one in part.ids]
    # Parquet, since the configuration may say that CSV files are written in another way than this one would be.
    written = {silo.id: ids, label: np.concatenate([np.asarray(part.labels) for part in parts])}
    if weight is not None:
        written[silo.weight or weight] = np.concatenate([np.asarray(part.weights) for part in parts])
    pq.write_table(pa.table(written), out)
    return ["--labels", str(out)]


def _header(path: Path, columns: Columns) -> set[str]:
    with open_table(path, columns.id, columns.dialect) as table:
        return {*table.header}
