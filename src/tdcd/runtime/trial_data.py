"""The rows of a trial's clients: what `tdcd run` would give each of them, in files that `tdcd client` reads."""

import csv
from pathlib import Path

import numpy as np

from tdcd.config import Config, SiloSection
from tdcd.run import Plan
from tdcd.runtime.client_data import shards
from tdcd.runtime.job import client_of
from tdcd.tables.assemble import Assembled
from tdcd.tables.reading import read_header, read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.split import pick_rows


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
        labels = _labels(config, silo, tables, folder)
        for client, path in tables.items():
            options[client_of(silo.name, client)] = ["--data", str(path), "--ids", str(ids), *labels]
    return options


def _tables(config: Config, assembled: Assembled, index: int, folder: Path) -> dict[str, Path]:
    silo, home = config.silos[index], Path(config.data.folder or "")
    if silo.client:
        return {client.name: home / client.table for client in silo.client}
    assert silo.table is not None
    whole, paths = home / silo.table, {}
    for number, (client, rows) in enumerate(
        zip(silo.client_names, assembled.federation.silos[index].rows, strict=True)
    ):
        paths[client] = folder / f"{client_of(silo.name, client)}{whole.suffix}"
        # Nobody trains on the held-out rows; the clients take turns in holding them.
        test = assembled.test_ids[number :: len(silo.client_names)]
        pick_rows(whole, paths[client], silo.id, {*(assembled.ids[row] for row in rows), *test})
    return paths


def _labels(config: Config, silo: SiloSection, tables: dict[str, Path], folder: Path) -> list[str]:
    """The option for a file of labels, for a silo whose tables have none: those of a silo that has."""
    holder = next(other for other in config.silos if other.label is not None)
    label = silo.label or holder.label
    assert label is not None
    if all(label in read_header(path, silo.id) for path in tables.values()):
        return []
    home = Path(config.data.folder or "")
    sources = [home / client.table for client in holder.client] or [home / (holder.table or "")]
    out = folder / f"labels.{silo.name}.csv"
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([silo.id, label])
        for source in sources:
            rows = read_rows(source, Columns(id=holder.id, label=holder.label, features=()))
            writer.writerows(zip(rows.ids, np.asarray(rows.labels).tolist(), strict=True))
    return ["--labels", str(out)]
