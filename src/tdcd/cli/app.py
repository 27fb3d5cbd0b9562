"""The command line: parse, call, print.

What needs JAX is imported by the commands that train: the others, and --help, start faster without it.
"""

import sys
from typing import Annotated

import typer

from tdcd import __version__
from tdcd.cli.align import align
from tdcd.cli.audit import audit
from tdcd.cli.certificates import certs_app
from tdcd.cli.compare import compare
from tdcd.cli.compiled import keep_compiled, silence_alarms
from tdcd.cli.doctor import doctor
from tdcd.cli.federation import client, hub, up
from tdcd.cli.init import init
from tdcd.cli.labels import labels
from tdcd.cli.planning import bound, plan
from tdcd.cli.predict import export, predict
from tdcd.cli.reproduce import reproduce
from tdcd.cli.run import report, run
from tdcd.cli.status import status
from tdcd.cli.tables import check, split
from tdcd.cli.track import track
from tdcd.cli.verify import verify
from tdcd.cli.watch import watch

app = typer.Typer(
    help="Train one model over data that is split by columns between organisations and by rows inside each.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tdcd {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train one model over data that is split by columns between organisations and by rows inside each."""


for command in (
    run,
    report,
    reproduce,
    compare,
    plan,
    bound,
    audit,
    hub,
    client,
    up,
    status,
    watch,
    align,
    check,
    labels,
    split,
    predict,
    export,
    verify,
    track,
    init,
    doctor,
):
    app.command()(command)
app.add_typer(certs_app, name="certs")


def main() -> None:
    """The ``tdcd`` command."""
    silence_alarms()
    keep_compiled()
    sys.exit(app())
