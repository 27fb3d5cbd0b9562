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
from tdcd.core.words import counted

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

    Every hub and every client runs this once, as a service. A hub has one port; a client dials out only. What it
    waits for is in its log, and `tdcd jobs` says it. A service that was killed continues when it is started again.

    Exit status: 0 stopped by Ctrl-C or SIGTERM, 2 bad input.
    """
    from tdcd.runtime.process.log import opened_log
    from tdcd.standing.home import Home
    from tdcd.standing.service import Service

    asked: list[bool] = []
    # Who it is stands in its file, which may be bad.
    with opened_log(str(own), log_level), reported(), stoppable(lambda: asked.append(True)):
        home = Home(own)
        with opened_log(home.party, log_level), reported():
            Service(home).run(lambda: bool(asked))


def propose(
    federation: Annotated[Path, typer.Argument(help="The job's shared TOML file.", metavar="FEDERATION.toml")],
    purpose: Annotated[str, typer.Option(help="What the model is for, as policies name it.")],
    contact: Annotated[str, typer.Option(help="Whom the other organisations can ask.")] = "",
    days: Annotated[float, typer.Option(help="For how long it may wait for approvals.", min=0.01, max=365)] = DAYS,
    align: Annotated[bool, typer.Option(help="Find the common ids first.")] = True,
    own: OwnFile = OWN_FILE,
) -> None:
    """Propose a job to all organisations, at any hub's machine; yours approves it by that.

    The job is signed with the hub's key. Approved by all, it runs: alignment, training, report. Prints its name.
    """
    from tdcd.standing.home import Home

    with reported():
        steps: tuple[Step, ...] = ("align", "train") if align else ("train",)
        state = Home(own).propose(federation, steps, purpose, contact, days)
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
            table.add_row(state.name[:SHOWN], when(entry.time), entry.party, state.offer.purpose, words)
    screen.print(table if table.rows else "There is no job yet: tdcd propose makes one.", highlight=False)


def show(job: JobName, own: OwnFile = OWN_FILE) -> None:
    """Say in plain words what a job uses, what leaves each site, who gets the model, and who has approved it."""
    from tdcd.standing.home import Home, describe

    with reported():
        home = Home(own)
        known = home.jobs()
        state = known.named(job)
        now = time.time()
        lines = describe(state, home.standing)
        for hub in home.standing.hubs:
            signed = state.approvals.get(hub)
            by = getattr(signed.entry.statement, "by", "") if signed else ""
            lines.append(("approved by", f"{hub}, by {by}") if signed else ("not approved by", hub))
        if home.is_hub and home.party not in state.approvals:
            lines += [("your policy", reason) for reason in home.verdict(state, int(now)) or ["approves it"]]
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
    """Say whether this organisation's policy approves a job, and if not, why.

    Exit status: 0 it does, 1 the job waits for a person, 2 bad input.
    """
    from tdcd.standing.home import Home

    with reported():
        home = Home(own)
        reasons = home.verdict(home.jobs().named(job), int(time.time()))
    for reason in reasons:
        screen.print(f"waits for a person: {reason}", soft_wrap=True, highlight=False)
    if reasons:
        raise typer.Exit(1)
    screen.print("the policy approves it", highlight=False)


def verify_log(folder: Path) -> None:
    """Check every entry of a party's log with the files next to it, and print what was found."""
    from tdcd.standing.home import open_log_of

    log = open_log_of(folder)
    kinds = Counter(type(signed.entry.statement).__name__.lower() for chain in log.chains.values() for signed in chain)
    for name, chain in log.chains.items():
        last = chain[-1].entry.digest if chain else "none"
        screen.print(f"{name}: {counted(len(chain), 'entry', 'entries')}, the last {last}", soft_wrap=True)
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    screen.print(f"All entries are signed and in order: {words or 'none yet'}.", soft_wrap=True, highlight=False)
    screen.print(f"Authority (SHA-256): {log.authority.fingerprint}", soft_wrap=True, highlight=False)
