import csv

import typer
from typer.testing import CliRunner

from tdcd.cli.predict import export, predict

ROWS = 80
app = typer.Typer()
app.command()(export)
app.command()(predict)


def called(*arguments, columns=200):
    """The exit status of ``tdcd predict`` or ``tdcd export``, and what it printed on a screen of so many columns."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})
    return result.exit_code, " ".join(result.output.split())


def write_csv(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
