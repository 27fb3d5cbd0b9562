"""A federation of data frames in memory, by the steps that files take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tdcd.config import Config, check_config
from tdcd.federation.silos import Federation
from tdcd.tables.assemble import Assembled, assemble
from tdcd.tables.errors import TableError
from tdcd.tables.frames import arrow_of, frame_rows
from tdcd.tables.rows import PLACE, Columns

SECTIONS = ("seed", "dtype", "data", "federation", "model", "evaluate")
"""The sections of a configuration that say how a federation is made."""


def federation_from_frames(
    frames: Mapping[str, Any],
    *,
    id_column: str | None,
    label: str,
    weight: str | None = None,
    clients: int | Sequence[int | Sequence[str]] = 1,
    bias: bool = True,
    **keys: Any,
) -> Federation:
    """See :meth:`tdcd.Federation.from_frames`; ``keys`` are sections of a configuration."""
    for section in keys:
        if section not in SECTIONS:
            raise ValueError(f"{section}: says how to train, not how a federation is made: give it to tdcd.train")
    tables = {silo: arrow_of(frame, f"frame '{silo}'") for silo, frame in frames.items()}
    holders = [silo for silo, table in tables.items() if label in table.column_names]
    if not holders:
        raise TableError([f"no frame has the column '{label}', which is to be predicted"])
    given = [clients] * len(tables) if isinstance(clients, int | np.integer) else [*clients]
    if len(given) != len(tables):
        raise ValueError(f"there are {len(tables)} frames, but client counts for {len(given)}: {given}")
    silos = [
        {
            "name": silo,
            "clients": int(one) if isinstance(one, int | np.integer) else [*one],
            "id": id_column or PLACE,
            **({"label": label} if silo in holders else {}),
            **({"weight": weight} if weight is not None and silo in holders else {}),
        }
        for silo, one in zip(tables, given, strict=True)
    ]
    config = frames_config({"silos": silos, **keys})
    if id_column is None and len({len(table) for table in tables.values()}) > 1:
        counts = ", ".join(f"'{silo}' has {len(table)}" for silo, table in tables.items())
        raise TableError([f"frames without ids must have the same rows in the same order: {counts}; give id=COLUMN"])
    return assemble_frames(config, tables, bias=bias).federation


def frames_config(keys: Mapping[str, Any]) -> Config:
    """The checked configuration of a federation whose tables are at hand."""
    return check_config({**keys, "data": {"source": "files", **keys.get("data", {})}}, "the arguments")


def assemble_frames(config: Config, tables: Mapping[str, pa.Table], *, bias: bool) -> Assembled:
    """A federation of Arrow tables, one per silo."""
    rows = {
        silo.name: [frame_rows(tables[silo.name], f"frame '{silo.name}'", Columns.of(config, silo))]
        for silo in config.silos
    }
    assembled = assemble(config, rows, bias=bias)
    federation = assembled.federation
    # Where rows have no ids, nobody will give any at a prediction.
    silos = tuple(replace(one, id_column="" if one.id_column == PLACE else one.id_column) for one in federation.silos)
    return assembled._replace(federation=replace(federation, silos=silos))
