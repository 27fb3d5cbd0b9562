"""``tdcd init``, ``tdcd check``, ``tdcd split`` and ``tdcd labels``: tables and files before anything is trained."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import rich.box
import typer
from rich.table import Table
from rich.text import Text

from tdcd.cli.options import Force
from tdcd.cli.terminal import EXIT_INPUT, refuse_existing, reported, screen, show_labels
from tdcd.config import Config, ConfigError, check_config, read_config
from tdcd.core.settings import AUTO
from tdcd.core.words import counted
from tdcd.tables.client_table import cautions, describe, find_silo, label_balance, read_client, taken_for
from tdcd.tables.errors import TableError
from tdcd.tables.label_privacy import check_protected
from tdcd.tables.rows import RawRows
from tdcd.tables.source import is_parquet

if TYPE_CHECKING:
    from tdcd.config.resolve import Plan
    from tdcd.tables.template import Answers

BLOCKS = ("linear", "mlp", "ensemble")


def init(
    out: Annotated[Path, typer.Argument(help="The file to write.", metavar="FEDERATION.toml")] = Path(
        "federation.toml"
    ),
    silos: Annotated[str | None, typer.Option(help="The organisations: bank,bureau.", show_default=False)] = None,
    clients: Annotated[str | None, typer.Option(help="Sites per silo: 3, or 3,2 [default: 1].")] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.", show_default=False)] = None,
    labels_at: Annotated[
        str | None, typer.Option(help="The only silo with labels [default: those whose tables have the column].")
    ] = None,
    tables: Annotated[
        str | None, typer.Option(help="A table per silo, CSV or Parquet: bank.csv,bureau.csv [default: NAME.csv].")
    ] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="The column of ids [default: id].")] = None,
    block: Annotated[str | None, typer.Option(help="linear, mlp or ensemble [default: linear].")] = None,
    model: Annotated[
        str | None, typer.Option(help="auto: train candidates on the tables, and take the best.", show_default=False)
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for --model auto [default: 300].", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there already.")] = False,
) -> None:
    """Write a first federation.toml, with comments, that `tdcd run` takes. Asks for what is not given as an option.

    Tables that are there are looked at: which columns hold names, who has labels, how large a minibatch may be.

    With --model auto a linear model, bins, an ensemble of networks and the same with a head are trained here by a
    simulation of the federation, and compared on a fifth of the samples. FILE has the chosen settings and the figures.
    Candidates that the time limit cuts count as they are then; so the choice can depend on the machine, and what is
    trained from FILE later does not. All tables have to be here.

    Exit status: 0 written, 2 bad input.
    """
    from tdcd.tables.template import Answers, first_file

    with reported():
        if out.exists() and not force:
            raise FileExistsError(f"{out} is there already: choose another name, or replace it with --force")
        names = _parts(_answer("--silos", silos, "Silos, the organisations, by name (bank,bureau)"))
        counts = _parts(_answer("--clients", clients, "Clients, the sites of each silo (3, or 3,2)", "1"))
        wrong = [count for count in counts if not re.fullmatch(r"[1-9][0-9]{0,5}", count)]
        if wrong:
            raise ValueError(f"--clients {wrong[0]}: write a number, or one for each silo: 5,3")
        usual = ",".join(f"{name}.csv" for name in names)
        files = _parts(_answer("--tables", tables, "Tables, one per silo", usual))
        answers = Answers(
            names,
            [int(count) for count in counts],
            _answer("--label", label, "Column to predict"),
            labels_at,
            _answer("--id", id_column, "Column of ids", "id"),
            BLOCKS[0] if model else _answer("--block", block, f"Block ({' or '.join(BLOCKS)})", BLOCKS[0]),
            files,
        )
        _check_model(model, block, time_limit)
        if answers.block not in BLOCKS:
            raise ValueError(f"--block {answers.block}: choose {' or '.join(BLOCKS)}; docs/configuration.md has others")
        text, missing = first_file(answers, out.parent)
        if model is not None:
            text, missing = first_file(_chosen(answers, text, missing, out.parent, time_limit), out.parent)
        out.write_text(text, encoding="utf-8")
    screen.print(Text(f"Written: {out}"), soft_wrap=True)
    for table in missing:
        screen.print(Text(f"{out.parent / table} is not there yet: put it there, or change 'table' in {out}"))
    screen.print(Text(f"Next: tdcd run {out}"), soft_wrap=True)


def _check_model(model: str | None, block: str | None, time_limit: float | None) -> None:
    if model not in (None, AUTO):
        raise ValueError(f"--model {model}: it takes auto; a block of your choice is --block")
    if model is not None and block is not None:
        raise ValueError(f"--block {block}: --model auto chooses the block; leave one out")
    if model is None and time_limit is not None:
        raise ValueError(f"--time-limit {time_limit:g}: it goes with --model auto")


def _chosen(answers: "Answers", text: str, missing: list[str], folder: Path, time_limit: float | None) -> "Answers":
    """The answers with the model that suits the tables best."""
    from tdcd.config.resolve import plan
    from tdcd.training.choice import TIME_LIMIT, choose

    if missing:
        raise ValueError(f"--model auto trains on all tables here, and {folder / missing[0]} is not there")
    keys = tomllib.loads(text)
    keys["data"]["folder"] = str(folder.absolute())

    def planned(model: Mapping[str, Any]) -> "Plan":
        return plan(check_config({**keys, "model": {**keys["model"], **model}}, "the new file"))

    def show(line: str) -> None:
        screen.print(Text(line), soft_wrap=True)

    choice = choose(planned, TIME_LIMIT if time_limit is None else time_limit, report=show)
    show(choice.in_words)
    model = {key: value for key, value in choice.keys.items() if value is not None}
    return replace(answers, model=model, reasons=[choice.in_words, *(trial.in_words for trial in choice.trials)])


def _answer(option: str, given: str | None, question: str, usual: str | None = None) -> str:
    """What was given, or what the user says; without a terminal the usual answer, if there is one."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        return str(typer.prompt(question, default=usual))
    if usual is None:
        raise ValueError(f"{option} is missing: give it, or start tdcd init on a terminal, where it asks")
    return usual


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


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
    from tdcd.cli.console import show_alignment, show_table
    from tdcd.pages.report import presence_table
    from tdcd.tables.client_table import check_tables

    readiness = check_tables(config)
    shown = Table(box=rich.box.SIMPLE_HEAD)
    for heading in ("silo", "client", "table", "rows", "features", "labels"):
        shown.add_column(heading, overflow="fold", justify="right" if heading in ("rows", "features") else "left")
    for table in readiness.tables:
        state = "not usable" if table.is_here else "not here"
        counts = [state, ""] if table.rows is None else [f"{len(table.rows):,}", f"{len(table.rows.features):,}"]
        shown.add_row(*map(Text, [table.silo, table.client, _from_here(table.path), *counts, table.labels]))
    screen.print(shown)
    if config.data.samples == "common":
        show_alignment(screen, readiness.overlap)
    if readiness.presence is not None and len(readiness.presence.patterns) > 1:
        show_table(screen, presence_table(readiness.presence))
    for caution in readiness.cautions:
        screen.print(Text(f"Warning: {caution}", "yellow"), soft_wrap=True)
    if readiness.problems:
        _not_ready(str(TableError(readiness.problems)))
    here = f"{len(readiness.tables) - readiness.absent} of {len(readiness.tables)} tables are here and ready"
    rest = "; check the others where they are." if readiness.absent else "."
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
    from tdcd.tables.split import split_table

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


def labels(
    federation: Annotated[Path, typer.Argument(help="The federation's TOML file.", metavar="FEDERATION.toml")],
    silo: Annotated[str, typer.Option(help="The organisation that the labels come from, as the file calls it.")],
    data: Annotated[Path, typer.Option(help="Its table with ids and true labels, CSV or Parquet.")],
    out: Annotated[Path, typer.Option(help="The table of randomised labels to write, .csv or .parquet.")],
    key: Annotated[Path, typer.Option(help="The secret to draw with. It is made if it is not there; keep it.")] = Path(
        "labels.key"
    ),
    force: Force = False,
) -> None:
    """Randomise labels once, so that they can be shared: every client then reads OUT with `tdcd client --labels OUT`.

    `federation.label_epsilon` says how much. Give OUT to the others, never the key or the true labels. With the same
    key the same labels come out; another key is a second release of the same labels, which doubles epsilon.

    Exit status: 0 done, 2 bad input.
    """
    from tdcd.runtime.storage.keys import NEW_KEY, label_key
    from tdcd.tables.client_table import read_labels, taken_for
    from tdcd.tables.label_privacy import randomized_labels, write_randomized
    from tdcd.tables.labels import canonical_label
    from tdcd.tables.writing import check_name

    with reported():
        config = check_config(read_config(federation), str(federation))
        epsilon = config.federation.label_epsilon
        if epsilon is None:
            raise ConfigError(["federation.label_epsilon: is missing; it says how much to randomise"], str(federation))
        check_name(out)
        refuse_existing(out, force)
        true = read_labels(config, silo, data)
        assert true.labels is not None
        is_new = not key.exists()
        drawn = randomized_labels(config, true.labels, true.ids, label_key(key), str(data))
        section = next(section for section in config.silos if section.name == silo)
        weights = None if true.weights is None else (section.weight or "", true.weights.tolist())
        names = [canonical_label(label) for label in drawn]
        write_randomized(out, (section.id, section.label or ""), true.ids, names, epsilon, weights)
        words = taken_for(config, true)
    show_labels(words)
    screen.print(f"Randomised labels: {out}\nKeep secret:       {key}", soft_wrap=True, highlight=False)
    if is_new:
        screen.print(f"Warning: {NEW_KEY}", style="yellow", soft_wrap=True, highlight=False)
