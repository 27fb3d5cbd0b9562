"""Whether the tables of a federation that are on this machine are ready: each by itself, and all together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tdcd.config import Config, ConfigError
from tdcd.federation.silos import SiloIds
from tdcd.tables.client_table import cautions, label_balance, read_table, tables_of, taken_for
from tdcd.tables.errors import TableError
from tdcd.tables.overlap import alignment, are_amounts, common_ids, held_twice
from tdcd.tables.rows import RawRows


@dataclass(frozen=True)
class TableState:
    """A table that a configuration names."""

    silo: str
    client: str
    """The client that it is of; how many there are, if they share it."""
    path: Path
    is_here: bool
    rows: RawRows | None = None
    """None if it is not here, or cannot be used."""

    @property
    def labels(self) -> str:
        """How its labels are spread."""
        return "" if self.rows is None or self.rows.labels is None else label_balance(self.rows)


@dataclass(frozen=True)
class Readiness:
    """What was found."""

    tables: Sequence[TableState]
    problems: Sequence[str] = ()
    cautions: Sequence[str] = ()
    """What is allowed, but may be a mistake."""
    overlap: dict[str, SiloIds] = field(default_factory=dict)
    """By silo, of those with a table here."""

    @property
    def absent(self) -> int:
        """How many tables are not on this machine."""
        return sum(not one.is_here for one in self.tables)


def check_tables(config: Config) -> Readiness:
    """Read every table of a configuration that is on this machine, as a simulation does, and compare their ids."""
    if config.data.source != "files":
        raise ConfigError([f"data.source = {config.data.source!r}: has no tables of the silos to check"])
    states, errors, found = [], list[TableError](), list[str]()
    held: dict[str, list[RawRows]] = {}
    for section in config.silos:
        shared = f"{len(section.client_names)} clients" if len(section.client_names) > 1 else section.client_names[0]
        names = [client.name for client in section.client] or [shared]
        for name, table in zip(names, tables_of(section), strict=True):
            path = Path(config.data.folder or "") / table
            state = TableState(section.name, name, path, bool(table) and path.exists())
            if state.is_here:
                try:
                    rows = read_table(config, section, path)
                    if rows.labels is not None:
                        taken_for(config, rows)
                    state = TableState(section.name, name, path, True, rows)
                    held.setdefault(section.name, []).append(rows)
                    found += [f"{path}: {sentence}" for sentence in cautions(rows)]
                except TableError as error:
                    errors.append(error)
            states.append(state)
    if not any(one.is_here for one in states):
        named = ", ".join(str(one.path) for one in states[:3]) + (", ..." if len(states) > 3 else "")
        raise ConfigError([f"no table of the silos is on this machine, such as {named}; give --silo, --client, --data"])
    errors += [error for section in config.silos for error in held_twice(section, held.get(section.name, []))]
    overlap: dict[str, SiloIds] = {}
    if len(held) > 1 and not errors:
        everywhere = set.intersection(*({one for part in parts for one in part.ids} for parts in held.values()))
        overlap = alignment(
            held, everywhere, amounts=are_amounts(config, [part for parts in held.values() for part in parts])
        )
        if all(one.is_here for one in states):
            try:
                common_ids(config, held)
            except TableError as error:
                errors.append(error)
    return Readiness(states, [problem for error in errors for problem in error.problems], found, overlap)
