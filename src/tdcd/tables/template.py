"""A first ``federation.toml``, with comments, from a few answers and a look at the tables."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tdcd.config import check_config
from tdcd.core.words import there_are
from tdcd.tables.source import open_table
from tdcd.tables.split import FIRST_PORT, holds_names_in


@dataclass(frozen=True)
class Answers:
    """What there is to know before a first trial."""

    silos: Sequence[str]
    clients: Sequence[int]
    """How many per silo."""
    label: str
    labels_at: str | None = None
    """The only silo with labels; by default those whose tables have the column."""
    id_column: str = "id"
    block: str = "linear"
    tables: Sequence[str] = ()
    """One per silo, relative to the new file; NAME.csv by default."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """More keys of ``[model]``, and the block in place of :attr:`block`."""
    reasons: Sequence[str] = ()
    """Comments on the model."""


class Survey(NamedTuple):
    """What a look at a whole table shows."""

    columns: list[str]
    categorical: list[str]
    """Columns of which most values are not numbers."""
    num_rows: int


def survey(path: Path, id_column: str) -> Survey:
    """Look at a table: its columns, which of them hold names, and how many rows it has."""
    with open_table(path, id_column) as source:
        table = source.table()
    categorical = [name for name in source.header if holds_names_in(table.column(name))]
    return Survey(source.header, categorical, table.num_rows)


def first_file(answers: Answers, folder: Path) -> tuple[str, list[str]]:
    """The text of a federation.toml that lies in ``folder``, and which tables are not there yet.

    Raises:
        ValueError: the answers do not fit together, or do not fit the tables.
    """
    names, tables = [*answers.silos], [*answers.tables] or [f"{name}.csv" for name in answers.silos]
    counts = [*answers.clients] * len(names) if len(answers.clients) == 1 else [*answers.clients]
    for option, given in (("--clients", counts), ("--tables", tables)):
        if len(given) != len(names):
            raise ValueError(
                f"{option}: {there_are(len(names), 'silo')}, {', '.join(names)}, but {len(given)} are given"
            )
    surveys = [survey(folder / table, answers.id_column) if (folder / table).exists() else None for table in tables]
    holders = _holders(answers, names, tables, surveys)
    parts = [_head(answers, names, holders)]
    for index, (name, table, count, seen) in enumerate(zip(names, tables, counts, surveys, strict=True)):
        parts.append(_silo(answers, name, FIRST_PORT + index, table, count, seen, name in holders))
    text = "\n".join(parts)
    check_config(tomllib.loads(text), "the new file")
    return text, [table for table, seen in zip(tables, surveys, strict=True) if seen is None]


def _holders(
    answers: Answers, names: Sequence[str], tables: Sequence[str], surveys: Sequence[Survey | None]
) -> list[str]:
    """The silos that have labels."""
    have = [
        name for name, seen in zip(names, surveys, strict=True) if seen is not None and answers.label in seen.columns
    ]
    if answers.labels_at is not None:
        if answers.labels_at not in names:
            raise ValueError(f"--labels-at {answers.labels_at}: there is no such silo; there are {', '.join(names)}")
        return [answers.labels_at]
    if not have and None not in surveys:
        raise ValueError(f"--label {answers.label}: no table has such a column: {', '.join(tables)}")
    return have or [names[0]]


def _head(answers: Answers, names: Sequence[str], holders: Sequence[str]) -> str:
    only = (
        f"labels = {_quoted(holders[0])}" if len(holders) == 1 and len(names) > 1 else f"# labels = {_quoted(names[0])}"
    )
    return f"""# The federation: who takes part, what each holds, how the model is trained. All parties share this file.
#
#   tdcd run federation.toml        simulates it here, from the tables below
#   tdcd up federation.toml         the same with a process for every party
#   tdcd check federation.toml --silo {names[0]} --client c1 --data FILE     is a site's table ready?
#   tdcd doctor federation.toml     is this machine ready?
#
# Every other key has a default.

[data]
source = "files"                # CSV or Parquet tables; ids say which rows are about the same sample
# align = true                  # train on the ids that all silos have; without it, a missing id is an error
# samples = "all"               # or train on every id with a label, whichever silos know it

[federation]
{only:<31} # the only silo that has labels; without this line every silo must have them

[model]
{_model(answers)}

[train]
rounds = 200                    # times that silos exchange what they computed, at most: it ends when converged
# step_size = 0.05              # the learning rate; by default it is chosen and steered for you

[evaluate]
every = 10                      # rounds between two evaluations
holdout = 0.2                   # part of the samples that is not trained on
"""


def _model(answers: Answers) -> str:
    block = _quoted(answers.model.get("block", answers.block))
    first = f'block = {block:<23} # "linear" for coefficients to read, "mlp" a network, "ensemble" the strongest'
    others = [f"{key} = {_quoted(value)}" for key, value in answers.model.items() if key != "block"]
    return "\n".join([*(f"# {line}" for line in answers.reasons), first, *others])


def _silo(answers: Answers, name: str, port: int, table: str, count: int, seen: Survey | None, has_labels: bool) -> str:
    skipped = (answers.id_column, answers.label)
    categorical = [] if seen is None else [column for column in seen.categorical if column not in skipped]
    label = f"label = {_quoted(answers.label)}" if has_labels else "# label: this silo has none"
    address = _quoted(f"127.0.0.1:{port}")
    ignored = seen is not None and not has_labels and answers.label in seen.columns
    lines = [
        "[[silos]]",
        f"name = {_quoted(name)}",
        f"hub = {address:<25} # where the others reach its hub; for real, a host name and an open port",
        f'clients = {count:<21} # its sites, c1 to c{count}; or their names: ["north", "south"]',
        f"table = {_quoted(table):<23} # a simulation splits it over the clients; for real each site gives --data",
        f"id = {_quoted(answers.id_column)}",
        label,
        f"categorical = {json.dumps(categorical, ensure_ascii=False)}",
    ]
    if ignored:
        lines.append(f"ignore = [{_quoted(answers.label)}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
