"""A federation of data frames in memory, by the steps that files take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tdcd.config import Config, ConfigError, check_config
from tdcd.config.losses import chosen_loss
from tdcd.core.words import are, counted
from tdcd.federation.silos import Federation
from tdcd.tables.assembly import Assembled, assemble
from tdcd.tables.errors import TableError, caution
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import PLACE, Columns
from tdcd.tables.source import Frame, arrow_of

HONOURED: Mapping[str, Sequence[str]] = {
    "data": (
        "standardize",
        "seed",
        "missing",
        "rare",
        "delimiter",
        "encoding",
        "decimal",
        "blank",
        "ids",
        "align",
        "samples",
        "standin",
    ),
    "federation": ("rows", "sizes", "alpha", "aligned", "labels", "label_epsilon", "label_classes"),
    "model": ("loss", "huber_delta", "folder", "encoding", "bins"),
    "evaluate": ("holdout", "stratify"),
}
"""The keys of a configuration that say how a federation is made of frames, or what its training must keep to."""
SINGLE = ("name", "seed", "dtype")
"""The keys that are in no section."""
BLOCKS = "give tdcd.train the block: Linear(), Mlp(...), Ensemble(...), Cnn(...) or one of your own"
REAL = "it is about a real federation: write it into the file that tdcd hub and tdcd client are given"
ELSEWHERE: Mapping[str, str] = {
    "data.source": "the frames are the data; leave it out",
    "data.rows": "give frames with fewer rows",
    "data.folder": "the frames are the data; leave it out",
    "data.keep": "give it to tdcd.train: execution=Execution(keep=...), from tdcd.core.execution",
    "federation.silos": "there is one silo per frame; leave it out",
    "federation.clients": "give it to from_frames itself: clients=...",
    "federation.strips": "it is about images; leave it out",
    "federation.bias": "give it to from_frames itself: bias=...",
    "federation.name": REAL,
    "federation.run": REAL,
    "federation.share_model": REAL,
    "federation.client_grace_s": REAL,
    "federation.protect_labels": "it is about what parties send: write it into the file of tdcd run or tdcd hub",
    **{
        f"model.{key}": BLOCKS
        for key in ("block", "hidden", "members", "dropout", "channels", "kernel", "embedding", "module")
    },
    "model.l2": "give it to tdcd.train: Objective(..., l2=...)",
    **{
        f"model.{key}": "give it to tdcd.train: Objective(..., combine=Hidden(...)) or combine=Pairs(...)"
        for key in ("head", "head_units", "head_rank")
    },
    "evaluate.every": "give it to tdcd.train: evaluate_every=...",
    "evaluate.patience": "give it to tdcd.train: patience=...",
    "evaluate.keep": "give it to tdcd.train: keep=...",
    "evaluate.alone": "it is for tdcd run; leave it out",
    "train": "says how to train, not how a federation is made: give it to tdcd.train, in Settings(...) and variant=...",
    "exchange": "says how to train, not how a federation is made: give it to tdcd.train, in variant=...",
    "silos": "there is one silo per frame; leave it out",
    "network": "it is for tdcd plan and tdcd compare; leave it out",
    "runtime": REAL,
}
"""Where every other key and section is set, or why it is not."""


def refuse_dropped(keys: Mapping[str, Any]) -> None:
    """Refuse the keys of a configuration that would have no effect on a federation of frames and its training.

    Keys that no configuration has are left to its checks.
    """
    problems = []
    for section, given in keys.items():
        if section in HONOURED and isinstance(given, Mapping):
            others = [f"{section}.{key}" for key in given if key not in HONOURED[section]]
        else:
            others = [] if section in (*SINGLE, *HONOURED) else [section]
        problems += [f"{key}: {ELSEWHERE[key]}" for key in others if key in ELSEWHERE]
    if problems:
        raise ConfigError(problems, "Federation.from_frames")


def federation_from_frames(
    frames: Mapping[str, Any],
    *,
    id_column: str | Mapping[str, str] | None,
    label: str,
    weight: str | None = None,
    clients: int | Sequence[int | Sequence[str]] = 1,
    bias: bool = True,
    aggregate: Mapping[str, Sequence[str]],
    link: Mapping[str, tuple[Any, str]],
    **keys: Any,
) -> Federation:
    """See :meth:`tdcd.Federation.from_frames`; ``keys`` are sections of a configuration."""
    refuse_dropped(keys)
    tables = {silo: arrow_of(frame, f"frame '{silo}'") for silo, frame in frames.items()}
    for name, given in (("aggregate", aggregate), ("link", link)):
        if unknown := [silo for silo in given if silo not in tables]:
            raise ValueError(f"{name}: there is no frame {unknown[0]!r}; there are {', '.join(tables)}")
        if given and id_column is None:
            raise ValueError(f"{name}: rows are put together by ids: give id=COLUMN")
    section = keys.get("federation")
    owner = section.get("labels") if isinstance(section, Mapping) else None
    sections = silo_sections(tables, id_column, label, weight, clients, owner)
    links: dict[str, pa.Table] = {}
    for section in sections:
        silo = section["name"]
        if silo in aggregate:
            section["aggregate"] = [*aggregate[silo]]
        if silo in link:
            samples, section["key"] = link[silo]
            section["link"] = f"link of frame '{silo}'"
            links[silo] = arrow_of(samples, section["link"])
    config = frames_config({"silos": sections, **keys})
    assembled = assemble_frames(config, tables, links, bias=0 if bias else None)
    chosen, loss = config.federation, chosen_loss(config.model)
    terms = replace(
        assembled.federation.terms,
        label_silo=chosen.labels,
        label_epsilon=chosen.label_epsilon,
        task=assembled.label_encoding.task,
        loss=loss,
        dtype=config.dtype,
    )
    if losses := losses_in_words(assembled.federation):
        caution(f"data.align = true: {losses}")
    return replace(assembled.federation, terms=terms)


def silo_sections(
    tables: Mapping[str, pa.Table],
    id_column: str | Mapping[str, str] | None,
    label: str,
    weight: str | None,
    clients: int | Sequence[int | Sequence[str]],
    owner: str | None,
) -> list[dict[str, Any]]:
    """The ``[[silos]]`` of a federation of frames.

    Args:
        tables: by silo.
        id_column: of all frames, or of each by silo; None where rows at the same place are about the same sample.
        label: the column to predict, in at least one of them.
        weight: the column next to it that says how much samples count, if there is one.
        owner: the only silo that may have labels, if there is one.
    """
    if isinstance(id_column, Mapping):
        if unknown := [silo for silo in id_column if silo not in tables]:
            raise ValueError(f"id: there is no frame {unknown[0]!r}; there are {', '.join(tables)}")
        if missing := [silo for silo in tables if silo not in id_column]:
            raise ValueError(f"id: name the id column of frame '{missing[0]}', too")
    holders = [silo for silo, table in tables.items() if label in table.column_names]
    if not holders:
        raise TableError([f"no frame has the column '{label}', which is to be predicted"])
    if others := [silo for silo in holders if owner in tables and silo != owner]:
        only = f"only silo '{owner}' may have it (federation.labels)"
        raise TableError([f"frame '{others[0]}': column '{label}' is the label, and {only}: remove the column"])
    if id_column is None and len({len(table) for table in tables.values()}) > 1:
        counts = ", ".join(f"'{silo}' has {len(table)}" for silo, table in tables.items())
        raise TableError([f"frames without ids must have the same rows in the same order: {counts}; give id=COLUMN"])
    given = [clients] * len(tables) if isinstance(clients, int | np.integer) else [*clients]
    if len(given) != len(tables):
        raise ValueError(f"there are {len(tables)} frames, but client counts for {len(given)}: {given}")
    return [
        {
            "name": silo,
            "clients": int(clients) if isinstance(clients, int | np.integer) else [*clients],
            "id": (id_column[silo] if isinstance(id_column, Mapping) else id_column) or PLACE,
            **({"label": label} if silo in holders else {}),
            **({"weight": weight} if weight is not None and silo in holders else {}),
        }
        for silo, clients in zip(tables, given, strict=True)
    ]


def losses_in_words(federation: Federation) -> str:
    """How many ids all silos have, and how many rows each silo loses by keeping to those; nothing if none does."""
    lost = {silo: ids for silo, ids in federation.alignment.items() if ids.lost}
    if not lost:
        return ""
    counts = "; ".join(f"silo '{silo}' has {ids.ids}, and loses {ids.lost}" for silo, ids in lost.items())
    common = next(iter(lost.values())).common
    return f"{counted(common, 'id')} {are(common)} in every silo: {counts}"


def frames_config(keys: Mapping[str, Any]) -> Config:
    """The checked configuration of a federation whose tables are at hand."""
    return check_config({**keys, "data": {"source": "files", **keys.get("data", {})}}, "the arguments")


def assemble_frames(
    config: Config, tables: Mapping[str, pa.Table], links: Mapping[str, pa.Table] | None = None, *, bias: int | None
) -> Assembled:
    """A federation of Arrow tables, one per silo; ``links`` say which rows of theirs are about which samples."""
    rows = {}
    for silo in config.silos:
        columns = replace(Columns.of(config, silo), repeat_advice="")
        if links is not None:
            advice = f'; or give aggregate={{"{silo.name}": ["sum", "mean", "count"]}}, where a sample may have several'
            columns = replace(columns, repeat_advice=advice)
        if links is not None and silo.link is not None:
            columns = replace(columns, link=Frame(links[silo.name], silo.link))
        rows[silo.name] = [read_rows(Frame(tables[silo.name], f"frame '{silo.name}'"), columns)]
    assembled = assemble(config, rows, bias=bias)
    federation = assembled.federation
    # Where rows have no ids, none will be given at a prediction.
    silos = tuple(
        replace(silo, id_column="" if silo.id_column == PLACE else silo.id_column) for silo in federation.silos
    )
    return assembled._replace(federation=replace(federation, silos=silos))
