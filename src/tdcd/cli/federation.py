"""``tdcd hub``, ``tdcd client`` and ``tdcd up``.

What they need is imported when they run: simulations start faster, and work where zenoh is not installed.
"""
# ruff: noqa: PLC0415

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcd.cli.options import checked_config
from tdcd.cli.terminal import (
    EXIT_DIVERGED,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    ended_at_once,
    errors,
    reported,
    screen,
    show_labels,
    stoppable,
)
from tdcd.cli.watch import LivePage, Watch
from tdcd.federation.party_names import client_of, hub_of

if TYPE_CHECKING:
    from tdcd.runtime.machine.instructions import RunOutcome
    from tdcd.runtime.process.trial import Trial

FederationFile = Annotated[
    Path, typer.Argument(help="The TOML file that all parties of the federation share.", metavar="FEDERATION.toml")
]
SiloName = Annotated[str, typer.Option("--silo", help="The silo that this party belongs to.")]
Certs = Annotated[
    Path | None,
    typer.Option(
        help="The folder with ca.pem, the party's certificate and key, and a hub's federation.secret [default: certs]."
    ),
]
LabelKey = Annotated[
    Path | None,
    typer.Option(help="The secret to randomise labels with; made if it is not there [default: CERTS/labels.key]."),
]
Own = Annotated[Path | None, typer.Option("--party", help="This party's own small TOML file, for the options below.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS. Refused unless every hub's address is this machine's own.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it is there already.")]


class _Stop:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        self.asked = True

    def announced(self) -> bool:
        """Whether somebody asked; says so on the screen if so."""
        if self.asked:
            screen.print("Stopping the parties; once more to end them at once.", highlight=False)
        return self.asked


def hub(
    federation: FederationFile,
    silo: SiloName,
    certs: Certs = None,
    out: Annotated[Path | None, typer.Option(help="The run folder [default: runs/hub-SILO].")] = None,
    listen: Annotated[
        str | None, typer.Option(help="host:port to listen at, if that is not the hub's address in the shared file.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Answer Prometheus here, at /metrics; without a host, for this machine only [default: nowhere].",
        ),
    ] = None,
    party: Own = None,
    insecure: Insecure = False,
) -> None:
    """Run a silo's hub: lead its clients, exchange phi with the other hubs, keep the silo's block.

    It listens on one port, for its clients and for other hubs, and writes a run folder. It waits for whoever is
    missing, and says who. A hub that was stopped or killed continues when the same command is given again.

    Exit status: 0 finished, 2 bad input or parties that do not fit together, 3 the run diverged, 130 interrupted.
    """
    from tdcd.runtime.process.log import open_log
    from tdcd.runtime.process.party import own_file, read_job, run_hub

    stop = _Stop()
    open_log(hub_of(silo))
    with reported(), stoppable(stop.ask):
        given = {"certs": text_of(certs), "out": text_of(out), "listen": listen, "metrics": metrics}
        own = own_file(party, **given, insecure=insecure)
        outcome = run_hub(read_job(federation), silo, own, lambda: stop.asked)
    end(outcome)


def client(
    federation: FederationFile,
    silo: SiloName,
    name: Annotated[str, typer.Option("--client", help="The client's name in the shared file.")],
    data: Annotated[Path | None, typer.Option(help="This site's rows, as CSV or Parquet.")] = None,
    labels: Annotated[Path | None, typer.Option(help="A table with the rows' labels, if --data has none.")] = None,
    ids: Annotated[Path | None, typer.Option(help="A text file of the ids to train on, as tdcd align writes.")] = None,
    label_key: LabelKey = None,
    certs: Certs = None,
    out: Annotated[Path | None, typer.Option(help="A folder for status.json, for tdcd status [default: none].")] = None,
    party: Own = None,
    insecure: Insecure = False,
) -> None:
    """Run a client next to its data: it answers its hub, and dials out only.

    No port has to be open. What leaves the site: ids of its rows, their labels if the silo has them (randomised
    ones, with federation.label_epsilon), sums and counts of its columns, phi and blocks; never a row of features. A
    client that was killed continues when the same command is run again.

    Exit status: 0 finished, 2 bad input or parties that do not fit together, 3 the run diverged, 130 interrupted.
    """
    from tdcd.runtime.process.log import open_log
    from tdcd.runtime.process.party import own_file, read_job, run_client

    stop = _Stop()
    open_log(client_of(silo, name))
    with reported(), stoppable(stop.ask):
        files = {"certs": certs, "data": data, "labels": labels, "ids": ids, "label_key": label_key, "out": out}
        own = own_file(party, **{name: text_of(path) for name, path in files.items()}, insecure=insecure)
        outcome = run_client(read_job(federation), silo, name, own, lambda: stop.asked)
    end(outcome)


def up(
    federation: FederationFile,
    out: Annotated[Path | None, typer.Option(help="Where everything goes [default: runs/NAME-up].")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, for example --set train.rounds=50.")
    ] = None,
    watch: Watch = False,
) -> None:
    """Try a federation on this machine: every hub and client a process of its own, with temporary certificates.

    Each client gets the rows that `tdcd run` would give it. Ctrl-C stops all, twice ends all at once; the same command
    continues from there. With federation.client_grace_s a trial continues without a client that ends early.

    Exit status: as for `tdcd hub`.
    """
    with LivePage(watch) as page:
        _up(federation, out, settings or [], page)


def _up(federation: Path, out: Path | None, settings: list[str], page: LivePage) -> None:
    from tdcd.runtime.process.forking import warm_up

    # What follows takes about as long as the parties' imports.
    warm_up()
    from tdcd.cli.console import show_alignment
    from tdcd.runtime.process.trial import Trial
    from tdcd.runtime.process.trial_table import TrialDisplay

    stop = _Stop()
    with reported(), ended_at_once(), stoppable(stop.ask, cleanly=True):
        folder = out or Path("runs") / f"{checked_config(federation, settings).folder_name}-up"
        trial = Trial.prepare(federation, settings, folder)
        show_labels(trial.labels_in_words)
        show_alignment(screen, trial.alignment)
        page.show(folder)
        with TrialDisplay(screen, trial) as display:
            outcome = trial.run(display.show, stop.announced)
        if outcome.status in ("finished", "diverged"):
            report = trial.gather()
            if trial.job.config.evaluate.alone and outcome.status == "finished":
                report = _train_alone(trial, lambda: stop.asked)
            screen.print(f"Run folder: {folder}\nReport: {report}", soft_wrap=True, highlight=False)
    end(outcome)


def _train_alone(trial: "Trial", should_stop: Callable[[], bool]) -> Path:
    """Also train each silo without the others, in a simulation of the same rows; the new report."""
    from tdcd.config.resolve import plan
    from tdcd.report import write_report
    from tdcd.training.silo_only import train_silo_only

    train_silo_only(plan(trial.job.config), trial.folder, should_stop)
    return write_report(trial.folder)


def end(outcome: "RunOutcome") -> None:
    """Exit with the status that says how it ended, and print why."""
    status: dict[str, Any] = {"finished": 0, "diverged": EXIT_DIVERGED, "interrupted": EXIT_INTERRUPTED}
    code = status.get(outcome.status, EXIT_INPUT)
    if not code and outcome.reason:
        screen.print(f"Finished: {outcome.reason}", soft_wrap=True, highlight=False, markup=False)
    if code:
        errors.print(f"{outcome.status.capitalize()}: {outcome.reason}", soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(code)


def text_of(path: Path | None) -> str | None:
    """A path as a party's own file writes it."""
    return None if path is None else str(path)
