"""The command line: parse, call, print.

What needs JAX is imported by the commands that train: the others, and --help, start faster without it.
"""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from tdcd import __version__
from tdcd.cli.certificates import certs_app
from tdcd.cli.compiled import keep_compiled, silence_alarms
from tdcd.cli.federation import align, client, doctor, hub, status, up
from tdcd.cli.predict import export, predict
from tdcd.cli.records import track, verify
from tdcd.cli.reproduce import reproduce
from tdcd.cli.run import report, run
from tdcd.cli.study import audit, bound, compare, plan
from tdcd.cli.tables import check, init, labels, split
from tdcd.cli.watch import watch

app = typer.Typer(
    help="Train one model over data that is split by columns between organisations and by rows inside each.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


TRAIN, LOOK, FEDERATION, STUDY = "Train and predict", "Look at runs", "Several organisations", "Plan and study"
GROUPS: dict[str, dict[Callable[..., None], str]] = {
    TRAIN: {
        init: "tdcd init --silos bank,bureau --label default",
        check: "tdcd check federation.toml --silo bank --client c1 --data c1.csv",
        split: "tdcd split table.csv --silos 2 --clients 5,3 --label y --out trial",
        run: "tdcd run my.toml --set train.local_steps=20 --watch",
        predict: "tdcd predict runs/my-1 --data bank=new_bank.csv --data bureau=new_bureau.csv",
        export: "tdcd export runs/my-1 --out coefficients.csv",
    },
    LOOK: {
        watch: "tdcd watch runs",
        report: "tdcd report runs/my-1",
        verify: "tdcd verify runs/my-1 --replay",
        track: "tdcd track runs/my-1 --to mlflow --at mlruns",
    },
    FEDERATION: {
        up: "tdcd up federation.toml --watch",
        doctor: "tdcd doctor federation.toml --silo bank",
        align: "tdcd align federation.toml --silo bank --data bank.csv",
        labels: "tdcd labels federation.toml --silo bank --data bank.csv --out labels.csv",
        hub: "tdcd hub federation.toml --silo bank",
        client: "tdcd client federation.toml --silo bank --client c1 --data c1.csv",
        status: "tdcd status runs/hub-bank",
    },
    STUDY: {
        plan: "tdcd plan my.toml --network mobile",
        bound: "tdcd bound runs/my-1",
        compare: "tdcd compare my.toml --with sgd,fedavg --seeds 5",
        audit: "tdcd audit my.toml",
        reproduce: "tdcd reproduce fig2a",
    },
}
"""What ``tdcd --help`` shows together, and an example of each command."""


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


for panel, commands in GROUPS.items():
    for command, example in commands.items():
        app.command(rich_help_panel=panel, epilog=f"Example: `{example}`")(command)
app.add_typer(certs_app, name="certs", rich_help_panel=FEDERATION)


def main() -> None:
    """The ``tdcd`` command."""
    silence_alarms()
    keep_compiled()
    sys.exit(app())
