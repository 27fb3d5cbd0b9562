"""``tdcd check`` and ``tdcd split``: parse, call, print."""

from pathlib import Path
from typing import Annotated, NoReturn

import rich.box
import typer
from rich.table import Table
from rich.text import Text

from tdcd.cli.terminal import EXIT_INPUT, reported, screen, show_labels
from tdcd.config import Config, check_config, read_config
from tdcd.core.words import counted
from tdcd.tables.client_table import cautions, describe, find_silo, label_balance, read_client, taken_for
from tdcd.tables.errors import TableError
from tdcd.tables.label_privacy import check_protected
from tdcd.tables.rows import RawRows
from tdcd.tables.source import is_parquet


def check(
    federation: Annotated[Path, typer.Argument(help="The federation's TOML file.", metavar="FEDERATION.toml")],
    silo: Annotated[str | None, typer.Option(help="Your organisation, as the file calls it.")] = None,
    client: Annotated[str | None, typer.Option(help="Your site, as the file calls it.")] = None,
    data: Annotated[Path | None, typer.Option(help="Your table, CSV or Parquet.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="A second table with ids and labels, if yours has no labels.")
    ] = None,
    ids: Annotated[Path | None, typer.Option(help="A text file of the ids to train on, as tdcd align writes.")] = None,
) -> None:
    """Say whether tables are ready for the federation: what they hold, and what is wrong with them.

    With --silo, --client and --data it is a site's own table. Without any option it is every table that FEDERATION.toml
    names and that is on this machine, and which ids they have in common.

    Nothing is sent. Exit status: 0 ready, 2 not ready.
    """
    with reported():
        config = check_config(read_config(federation), str(federation))
        if silo is None and client is None and data is None and labels is None and ids is None:
            _check_all(config)
            return
        if silo is None or client is None or data is None:
            raise ValueError("give --silo, --client and --data to check one table, or no option to check all")
        section = find_silo(config, silo, client)
        try:
            rows = read_client(config, section, data, labels, ids)
            check_protected(config, silo, rows)
            labels_in_words = taken_for(config, rows)
        except TableError as error:
            _not_ready(str(error))
    _show(rows, labels_in_words)
    screen.print(Text(f"Ready: {data} can join as client '{client}' of silo '{silo}'.", "bold green"), soft_wrap=True)


def _check_all(config: Config) -> None:
    """Check every table that is here."""
    from tdcd.cli.console import show_alignment  # noqa: PLC0415 - see tdcd.cli.app
    from tdcd.tables.client_table import check_tables  # noqa: PLC0415

    found = check_tables(config)
    shown = Table(box=rich.box.SIMPLE_HEAD)
    for heading in ("silo", "client", "table", "rows", "features", "labels"):
        shown.add_column(heading, overflow="fold", justify="right" if heading in ("rows", "features") else "left")
    for one in found.tables:
        state = "not usable" if one.is_here else "not here"
        counts = [state, ""] if one.rows is None else [f"{len(one.rows):,}", f"{len(one.rows.features):,}"]
        shown.add_row(*map(Text, [one.silo, one.client, _from_here(one.path), *counts, one.labels]))
    screen.print(shown)
    show_alignment(screen, found.overlap)
    for caution in found.cautions:
        screen.print(Text(f"Warning: {caution}", "yellow"), soft_wrap=True)
    if found.problems:
        _not_ready(str(TableError(found.problems)))
    here = f"{len(found.tables) - found.absent} of {len(found.tables)} tables are here and ready"
    rest = "; check the others where they are." if found.absent else "."
    screen.print(Text(f"Ready: {here}{rest}", "bold green"), soft_wrap=True)


def _from_here(path: Path) -> str:
    """A path as a person would type it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _not_ready(problems: str) -> NoReturn:
    screen.print(Text(problems), soft_wrap=True)
    screen.print(Text("Not ready: correct what is listed above, then check again.", "bold red"), soft_wrap=True)
    raise typer.Exit(EXIT_INPUT)


def split(
    table: Annotated[Path, typer.Argument(help="A CSV or Parquet file.")],
    silos: Annotated[list[str], typer.Option(help="How many, or NAME=COLUMN,COLUMN,... once for each.")],
    label: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    clients: Annotated[str, typer.Option(help="How many per silo: 5, or 5,3 for two silos.")] = "3",
    id_column: Annotated[str, typer.Option("--id", help="The column that says which sample a row is about.")] = "id",
    labels_at: Annotated[
        str | None, typer.Option(help="The only silo that gets labels [default: all].", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows that each client gets.")] = 0,
    parquet: Annotated[
        bool | None, typer.Option("--parquet/--csv", help="What to write [default: as TABLE is].", show_default=False)
    ] = None,
) -> None:
    """Cut one table into a folder of per-client files and a federation.toml, for trials and teaching.

    `tdcd run FOLDER/federation.toml` then simulates that federation.

    Exit status: 0 done, 2 bad input.
    """
    from tdcd.tables.split import split_table  # noqa: PLC0415 - see tdcd.cli.app

    with reported():
        written = split_table(
            table,
            out,
            silos=_parse_silos(silos),
            clients=_parse_counts(clients),
            id_column=id_column,
            label=label,
            labels_at=labels_at,
            seed=seed,
            parquet=is_parquet(table) if parquet is None else parquet,
        )
    screen.print(f"Federation: {written}", soft_wrap=True, highlight=False)


def _show(rows: RawRows, labels_in_words: str) -> None:
    """Print what a site's table holds."""
    facts = describe(rows)
    screen.print(
        Text(f"{rows.source}: {counted(len(rows), 'row')}, {counted(len(facts), 'feature')}, every id once"),
        soft_wrap=True,
    )
    show_labels(labels_in_words)
    if rows.labels is not None:
        screen.print(Text(f"Label values: {label_balance(rows)}"), soft_wrap=True)
    shown = Table(box=rich.box.SIMPLE_HEAD)
    for heading in ("column", "holds", "blank", "values"):
        shown.add_column(heading, overflow="fold", justify="right" if heading == "blank" else "left")
    for column in facts:
        shown.add_row(Text(column.name), column.kind, str(column.blank), Text(column.values))
    screen.print(shown)
    for caution in cautions(rows):
        screen.print(Text(f"Warning: {caution}", "yellow"), soft_wrap=True)


def _parse_silos(given: list[str]) -> int | dict[str, list[str]]:
    if len(given) == 1 and given[0].isdecimal():
        return int(given[0])
    silos: dict[str, list[str]] = {}
    for text in given:
        name, equals, columns = text.partition("=")
        if not equals or not columns or name in silos:
            raise ValueError(f"--silos {text}: write a number, or NAME=COLUMN,COLUMN,... once for each silo")
        silos[name] = columns.split(",")
    return silos


def _parse_counts(text: str) -> list[int]:
    try:
        return [int(count) for count in text.split(",")]
    except ValueError:
        raise ValueError(f"--clients {text}: write a number, or one for each silo: 5,3") from None
