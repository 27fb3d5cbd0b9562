"""``tdcd align``: find the ids that every silo has."""
# ruff: noqa: PLC0415 - see tdcd.cli.federation

from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.federation import Certs, FederationFile, Force, Insecure, Own, SiloName, end, text_of
from tdcd.cli.terminal import refuse_existing, reported, screen, stoppable
from tdcd.core.words import are, counted


def align(
    federation: FederationFile,
    silo: SiloName,
    out: Annotated[Path, typer.Option(help="The text file to write: one id per line.")],
    name: Annotated[
        str | None, typer.Option("--client", help="Take part as this client; otherwise as the silo's hub.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Tables with the ids. A hub without any asks its clients, who then run this command too."),
    ] = None,
    psi: Annotated[
        bool,
        typer.Option(
            "--psi/--digests",
            help="Private set intersection: no silo learns an id that it lacks; or keyed digests, for silos that trust "
            "each other: anybody who has the federation's secret can test any id.",
        ),
    ] = True,
    force: Force = False,
    certs: Certs = None,
    party: Own = None,
    insecure: Insecure = False,
) -> None:
    """Find the ids that every silo has, before training: every hub runs this command, with --data or with its clients.

    Private set intersection protects against curious silos that follow the protocol, not against silos that cheat: a
    silo can claim ids that it does not have. All learn how many ids each silo has. With three silos or more, each also
    learns which of its own ids every single other silo has. `tdcd client --ids OUT` trains on the ids in OUT. The
    terminal says how many of your rows are lost, and what that does to the labels in them, if your tables have any.
    About 17 s for 100,000 ids in each of two silos, both on one machine with two cores.

    Exit status: 0 done, 2 bad input or parties that do not fit together, 130 interrupted.
    """
    from tdcd.cli.console import show_table
    from tdcd.cli.waiting import Waiting
    from tdcd.pages.report import alignment_table
    from tdcd.runtime.process.align import align_as_client, align_as_hub
    from tdcd.runtime.process.party import own_file, read_job

    waiting = Waiting(screen, "aligning")
    with reported(), stoppable(waiting.stop), waiting:
        refuse_existing(out, force)
        job = read_job(federation)
        own = own_file(party, certs=text_of(certs), insecure=insecure)
        if name is not None:
            outcome, ids, lost = align_as_client(job, silo, name, data or [], own, waiting)
        else:
            outcome, ids, lost = align_as_hub(job, silo, data or [], "psi" if psi else "digests", own, waiting)
        if outcome.status == "finished":
            out.write_text("".join(f"{one}\n" for one in ids), encoding="utf-8")
    if outcome.status == "finished":
        screen.print(f"{counted(len(ids), 'id')} {are(len(ids))} in every silo: {out}", soft_wrap=True, highlight=False)
        show_table(screen, alignment_table({silo if name is None else f"{silo}, {name}": lost}))
        if not ids:
            screen.print("Ids are compared as exact texts: '001' is not '1'. Write them alike.", highlight=False)
    end(outcome)
