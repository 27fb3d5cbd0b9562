"""``tdcd init``: a first federation.toml."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tdcd.cli.terminal import reported, screen

BLOCKS = ("linear", "mlp")


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
    block: Annotated[str | None, typer.Option(help="linear or mlp [default: linear].")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there already.")] = False,
) -> None:
    """Write a first federation.toml, with comments, that `tdcd run` takes. Asks for what is not given as an option.

    Tables that are there are looked at: which columns hold names, who has labels, how large a minibatch may be.

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
            _answer("--block", block, f"Block ({' or '.join(BLOCKS)})", BLOCKS[0]),
            files,
        )
        if answers.block not in BLOCKS:
            raise ValueError(f"--block {answers.block}: choose {' or '.join(BLOCKS)}; docs/configuration.md has others")
        text, missing = first_file(answers, out.parent)
        out.write_text(text, encoding="utf-8")
    screen.print(Text(f"Written: {out}"), soft_wrap=True)
    for table in missing:
        screen.print(Text(f"{out.parent / table} is not there yet: put it there, or change 'table' in {out}"))
    screen.print(Text(f"Next: tdcd run {out}"), soft_wrap=True)


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
