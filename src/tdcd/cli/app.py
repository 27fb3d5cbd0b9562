"""The command line: parse, call, print.

A command's module is imported when the command is given: one run needs nothing of the others. What needs JAX is
imported by the commands that train: the others, and --help, start faster without it.
"""

import faulthandler
import os
import platform
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from tdcd import __version__

CACHE = "TDCD_CACHE"
"""The environment variable that names the cache folder; if it is empty, nothing is kept."""


def keep_compiled() -> Path | None:
    """Keep compiled programs in ``$TDCD_CACHE/compiled``, by default ``~/.cache/tdcd/compiled``.

    Each machine has its own folder there, since programs are compiled for its processor. A cache that JAX is set up
    to use, and a folder that cannot be written, are left alone. JAX reads these settings from the environment
    when it is imported, so this comes before that; commands that need no JAX can then do without it.

    Returns:
        The folder; None if this changed nothing.
    """
    chosen = os.environ.get(CACHE, "~/.cache/tdcd")
    if not chosen or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    try:
        folder = Path(chosen).expanduser().absolute() / "compiled" / (platform.node() or "machine")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        # A user without a home folder, as in containers, is a RuntimeError.
        return None
    if not os.access(folder, os.W_OK):
        return None
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    return folder


def silence_alarms() -> None:
    """Keep XLA's own log off the screen, such as its warning about slow compilations; failures raise an error anyway.

    It is read when JAX is imported, so this comes before that. A level that the user set stays.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


TRAIN, LOOK, FEDERATION, STUDY = "Train and predict", "Look at runs", "Several organisations", "Plan and study"
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    TRAIN: {
        "init": ("tables", "tdcd init --silos bank,bureau --label default"),
        "check": ("tables", "tdcd check federation.toml --silo bank --client c1 --data c1.csv"),
        "split": ("tables", "tdcd split table.csv --silos 2 --clients 5,3 --label y --out trial"),
        "run": ("run", "tdcd run my.toml --set train.local_steps=20 --watch"),
        "predict": ("predict", "tdcd predict runs/my-1 --data bank=new_bank.csv --data bureau=new_bureau.csv"),
        "serve": ("serving", "tdcd serve runs/hub-bank --data bank=bank.csv --phi bureau.phi --ids common.txt"),
        "export": ("predict", "tdcd export runs/my-1 --out coefficients.csv"),
    },
    LOOK: {
        "watch": ("watch", "tdcd watch runs"),
        "report": ("run", "tdcd report runs/my-1"),
        "verify": ("records", "tdcd verify runs/my-1 --replay"),
        "spent": ("records", "tdcd spent account.jsonl"),
        "track": ("records", "tdcd track runs/my-1 --to mlflow --at mlruns"),
    },
    FEDERATION: {
        "up": ("federation", "tdcd up federation.toml --watch"),
        "doctor": ("federation", "tdcd doctor federation.toml --silo bank"),
        "align": ("federation", "tdcd align federation.toml --silo bank --data bank.csv"),
        "labels": ("tables", "tdcd labels federation.toml --silo bank --data bank.csv --out labels.csv"),
        "hub": ("federation", "tdcd hub federation.toml --silo bank"),
        "client": ("federation", "tdcd client federation.toml --silo bank --client c1 --data c1.csv"),
        "status": ("federation", "tdcd status runs/hub-bank"),
        "publish": (
            "serving",
            "tdcd publish federation.toml --silo bureau --data new.csv --ids common.txt --out b.phi",
        ),
        "party": ("standing", "tdcd party party.toml"),
        "propose": ("standing", "tdcd propose credit.toml --purpose 'credit risk'"),
        "jobs": ("standing", "tdcd jobs --party party.toml"),
        "show": ("standing", "tdcd show 3fa9"),
        "approve": ("standing", "tdcd approve 3fa9"),
        "refuse": ("standing", "tdcd refuse 3fa9 --because 'not before the audit'"),
        "policy": ("standing", "tdcd policy test 3fa9"),
    },
    STUDY: {
        "plan": ("study", "tdcd plan my.toml --network mobile"),
        "bound": ("study", "tdcd bound runs/my-1"),
        "compare": ("study", "tdcd compare my.toml --with sgd,fedavg --seeds 5"),
        "audit": ("study", "tdcd audit my.toml"),
        "reproduce": ("reproduce", "tdcd reproduce fig2a"),
    },
}
"""What ``tdcd --help`` shows together: by name the module of each command, and an example."""
CERTIFICATES = "certs"
"""The one command that has others."""


class Commands(Mapping[str, Any]):
    """All commands by name; each is imported when it is looked up."""

    def __iter__(self) -> Iterator[str]:
        """Their names, in the order of ``--help``."""
        yield from (name for commands in GROUPS.values() for name in commands)
        yield CERTIFICATES

    def __len__(self) -> int:
        """How many there are."""
        return sum(map(len, GROUPS.values())) + 1

    def __getitem__(self, name: str) -> Any:
        """The command, as click has it."""
        alone = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
        if name == CERTIFICATES:
            certificates = import_module("tdcd.cli.certificates").certs_app
            alone.add_typer(certificates, name=name, rich_help_panel=FEDERATION)
        else:
            panel = next((panel for panel, commands in GROUPS.items() if name in commands), None)
            if panel is None:
                raise KeyError(name)
            module, example = GROUPS[panel][name]
            function = getattr(import_module(f"tdcd.cli.{module}"), name)
            alone.command(rich_help_panel=panel, epilog=f"Example: `{example}`")(function)
        return typer.main.get_group(alone).commands[name]


class CommandGroup(TyperGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        """Take no commands, and have all."""
        super().__init__(**options)
        self.commands: Any = Commands()


app = typer.Typer(
    cls=CommandGroup,
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


def show_where_on_demand() -> None:
    """Let SIGUSR1 write to standard error what every thread of this process is at, also one that answers nothing."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=2)


def main() -> None:
    """The ``tdcd`` command."""
    show_where_on_demand()
    silence_alarms()
    keep_compiled()
    sys.exit(app())
