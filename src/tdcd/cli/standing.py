"""``tdcd party``, ``propose``, ``jobs``, ``show``, ``approve``, ``refuse``, ``policy``: a federation that stands by."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from tdcd.cli.options import LogLevelOption
from tdcd.cli.terminal import reported, screen, stoppable
from tdcd.core.words import counted, one_line

if TYPE_CHECKING:
    from tdcd.standing.statements import Step

OwnFile = Annotated[Path, typer.Option("--party", help="This party's own small TOML file.", metavar="PARTY.toml")]
JobName = Annotated[str, typer.Argument(help="The job's name, or how it begins.", metavar="JOB")]
OWN_FILE = Path("party.toml")
DAYS = 7.0
SHOWN = 12
"""Letters of a job's name in lists."""


def party(
    own: Annotated[Path, typer.Argument(help="This party's own small TOML file.", metavar="PARTY.toml")] = OWN_FILE,
    log_level: LogLevelOption = "info",
) -> None:
    """Stand by: wait for jobs, and compute those that every organisation has approved.

    Every hub and every client runs this once, as a service. A hub has one port; a client dials out only. With
    `serve` in its file, a hub answers predictions to programs of its own organisation; `metrics` is for Prometheus,
    `memory` and `cores` limit the steps of jobs. What it waits for is in its log, and `tdcd jobs` says it. A service
    that was killed continues when it is started again.

    The last line says why it ended, as JSON where the log is.

    Exit status: 0 stopped by Ctrl-C or SIGTERM, 2 bad input.
    """
    from tdcd.runtime.process.log import event, opened_log
    from tdcd.standing.home import Home
    from tdcd.standing.service import Service

    asked: list[bool] = []
    # Who it is stands in its file, which may be bad.
    with opened_log(str(own), log_level), reported(), stoppable(lambda: asked.append(True)):
        home = Home(own)
        with opened_log(home.party, log_level), reported():
            Service(home).run(lambda: bool(asked))
            event("stopped", why="it was asked to")


def propose(
    federation: Annotated[
        Path | None,
        typer.Argument(help="To train: the job's shared TOML file.", metavar="FEDERATION.toml", show_default=False),
    ] = None,
    *,
    purpose: Annotated[str, typer.Option(help="What the job is for, as policies name it.")],
    predict: Annotated[
        str | None, typer.Option(help="Predict new rows of all silos with the model of this job.", metavar="JOB")
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(help="SILO, once for each that gets the predictions [default: this silo].", metavar="SILO"),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Do not train: attack what would be sent, every client its own rows.")
    ] = False,
    delete: Annotated[
        str | None, typer.Option(help="Delete the folder of this job at every party.", metavar="JOB")
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Do not train: let the hubs and clients join that are new in the file.")
    ] = False,
    contact: Annotated[str, typer.Option(help="Whom the other organisations can ask.")] = "",
    days: Annotated[float, typer.Option(help="For how long it may wait for approvals.", min=0.01, max=365)] = DAYS,
    align: Annotated[bool, typer.Option(help="Find the common ids first.")] = True,
    known: Annotated[
        str | None,
        typer.Option(
            help="Compare ids that are new since this job only; those that it found are taken.", metavar="JOB"
        ),
    ] = None,
    own: OwnFile = OWN_FILE,
) -> None:
    """Propose a job to all organisations, at any hub's machine; yours approves it by that.

    The job is signed with the hub's key. Approved by all, it runs: alignment, training, report; or with --predict, the
    scores of the clients' new rows; or with --audit, figures of what attacks recover from what FEDERATION.toml would
    send; or with --delete, the end of a job's folder everywhere; or with --join, hubs and clients that are new in
    FEDERATION.toml take part from then on. Prints the job's name.
    """
    from tdcd.standing.home import Home

    with reported():
        if [federation, predict, delete].count(None) != 2:
            raise ValueError("give one of FEDERATION.toml, --predict JOB and --delete JOB")
        if to and predict is None:
            raise ValueError("--to goes with --predict JOB")
        if not align and federation is None:
            raise ValueError("--no-align goes with FEDERATION.toml")
        if audit and (federation is None or not align):
            raise ValueError("--audit goes with FEDERATION.toml, and aligns nothing")
        if join and (federation is None or not align or audit):
            raise ValueError("--join goes with FEDERATION.toml alone")
        if known is not None and (federation is None or not align or audit or join):
            raise ValueError("--known goes with FEDERATION.toml, and with an alignment")
        home = Home(own)
        if federation is not None:
            steps: tuple[Step, ...] = ("align", "train") if align else ("train",)
            steps = ("join",) if join else ("audit",) if audit else steps
            former = None if known is None else home.jobs().named(known)
            state = home.propose(federation, steps, purpose, contact, days, former)
        elif predict is not None:
            former = home.jobs().named(predict)
            state = home.propose_about(former, "predict", purpose, contact, days, to or [home.own.silo])
        else:
            state = home.propose_about(home.jobs().named(delete or ""), "delete", purpose, contact, days)
    screen.print(f"Proposed: job {state.name}", soft_wrap=True, highlight=False)


def jobs(own: OwnFile = OWN_FILE) -> None:
    """List all jobs, and what each waits for."""
    from tdcd.runtime.certificates.check import when
    from tdcd.standing.home import Home

    table = Table(box=None, pad_edge=False)
    for column in ("job", "proposed", "by", "purpose", "state"):
        table.add_column(column, overflow="fold")
    with reported():
        known = Home(own).jobs()
        for state in known.states.values():
            entry = state.proposal.entry
            words = known.in_words(state, time.time())
            table.add_row(state.name[:SHOWN], when(entry.time), entry.party, one_line(state.offer.purpose), words)
    screen.print(table if table.rows else "There is no job yet: tdcd propose makes one.", highlight=False)


def show(job: JobName, own: OwnFile = OWN_FILE) -> None:
    """Say in plain words what a job reads, what leaves each site, who gets the model or predictions, and who approved.

    Also what this party's policy makes of it, and what epsilon is left.
    """
    from tdcd.standing.description import describe, epsilon_in_words
    from tdcd.standing.home import Home

    with reported():
        home = Home(own)
        known = home.jobs()
        state = known.named(job)
        now = time.time()
        lines = describe(state, known.newcomers(state.offer))
        for hub in known.members_of(state).hubs:
            signed = state.approvals.get(hub)
            by = getattr(signed.entry.statement, "by", "") if signed else ""
            lines.append(("approved by", f"{hub}, by {by}") if signed else ("not approved by", hub))
        has_part = home.has_part_in(known, state)
        lines += epsilon_in_words(home.policy, home.facts(known, state, int(now))) if has_part else []
        if not has_part:
            lines.append(("your part", "none"))
        elif home.is_hub and home.party not in state.approvals:
            lines += [("your policy", reason) for reason in home.verdict(known, state, int(now)) or ["approves it"]]
        elif not home.is_hub:
            lines += [("your policy", reason) for reason in home.verdict(known, state, int(now)) or ["does not refuse"]]
        lines += [("state", known.in_words(state, now)), ("folder", str(home.job_folder(state)))]
    for heading, words in lines:
        screen.print(f"{heading + ':':<19} {words}", soft_wrap=True, highlight=False)


def approve(job: JobName, own: OwnFile = OWN_FILE) -> None:
    """Approve a job for this organisation, with its hub's key; it takes effect when the party's service is running."""
    from tdcd.standing.home import Home

    with reported():
        home = Home(own)
        state = home.jobs().named(job)
        home.approve(state)
    screen.print(f"Approved: job {state.name}", soft_wrap=True, highlight=False)


def refuse(
    job: JobName,
    because: Annotated[str, typer.Option(help="Why; all parties can read it.")],
    own: OwnFile = OWN_FILE,
) -> None:
    """Refuse a job for good, before it runs or while it does; a client can do that, too."""
    from tdcd.standing.home import Home

    with reported():
        home = Home(own)
        state = home.jobs().named(job)
        home.refuse(state, because)
    screen.print(f"Refused: job {state.name}", soft_wrap=True, highlight=False)


def policy(
    action: Annotated[Literal["test"], typer.Argument(help="Say what the policy makes of a job; nothing is signed.")],
    job: JobName,
    own: OwnFile = OWN_FILE,
) -> None:
    """Say whether this party's policy approves a job, and if not, why; of a client, whether it refuses it.

    Exit status: 0 the policy approves or does not refuse, 1 a person has to decide or a client refuses, 2 bad input.
    """
    from tdcd.standing.home import Home

    with reported():
        home = Home(own)
        known = home.jobs()
        reasons = home.verdict(known, known.named(job), int(time.time()))
    for reason in reasons:
        what = "waits for a person" if home.is_hub else "is refused"
        screen.print(f"{what}: {reason}", soft_wrap=True, highlight=False)
    if reasons:
        raise typer.Exit(1)
    screen.print("the policy approves it" if home.is_hub else "the policy does not refuse it", highlight=False)


def verify_log(folder: Path) -> None:
    """Check every entry of a party's log with the files next to it, and print what was found."""
    from tdcd.standing.home import SHARED_FILE, open_log_of, read_standing
    from tdcd.standing.jobs import Jobs

    log = open_log_of(folder)
    known = Jobs.of(read_standing(folder / SHARED_FILE), log)
    kinds = Counter(type(signed.entry.statement).__name__.lower() for chain in log.chains.values() for signed in chain)
    for name, chain in log.chains.items():
        last = chain[-1].entry.digest if chain else "none"
        screen.print(f"{name}: {counted(len(chain), 'entry', 'entries')}, the last {last}", soft_wrap=True)
    for state in known.states.values():
        screen.print(f"job {state.name[:SHOWN]}: {known.history(state)}", soft_wrap=True, highlight=False)
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    screen.print(f"All entries are signed and in order: {words or 'none yet'}.", soft_wrap=True, highlight=False)
    screen.print(f"Authority (SHA-256): {log.authority.fingerprint}", soft_wrap=True, highlight=False)
