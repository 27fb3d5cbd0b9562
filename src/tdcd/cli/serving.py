"""``tdcd publish`` and ``tdcd serve``: predictions from phi that is known ahead."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tdcd.cli.federation import AccountFile, Certs, FederationFile, PartyFile, SiloName, text_of
from tdcd.cli.options import AllowCode, Force, LogLevelOption
from tdcd.cli.terminal import EXIT_INTERRUPTED, refuse_existing, reported, screen, stoppable
from tdcd.core.words import counted
from tdcd.federation import hub_of

if TYPE_CHECKING:
    from tdcd.serving.scorer import PartsScorer

Ids = Annotated[Path | None, typer.Option(help="The ids that all silos have, as tdcd align writes them: one per line.")]
DAYS = 7.0
NEEDS_EXTRA = "tdcd serve needs an HTTP framework: pip install 'tdcd[serve]'"


def publish(
    federation: FederationFile,
    silo: SiloName,
    ids: Ids = None,
    data: Annotated[
        Path | None, typer.Option(help="The silo's new rows, CSV or Parquet. Without it the hub asks its clients.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write, for the silos that predict.")] = None,
    days: Annotated[float, typer.Option(help="For how long it may be used.", min=0.001, max=366)] = DAYS,
    run: Annotated[Path | None, typer.Option(help="The hub's run folder [default: as for tdcd hub].")] = None,
    account: AccountFile = None,
    certs: Certs = None,
    party: PartyFile = None,
    force: Force = False,
    allow_code: AllowCode = False,
) -> None:
    """Publish a silo's phi of common ids ahead, so that partners can predict for them while this silo is offline.

    The file is signed with the key of the hub's certificate and expires. An id is a place in the list that all silos
    have from the same tdcd align: no id is in it. Give it to the silos that predict, over a private channel, for
    `tdcd serve --phi`. Where the rows are at clients, every client gives `tdcd predict FEDERATION.toml --silo bank
    --client north --data new.csv` at the same time. Refused where training protects single silos' phi, by masks or by
    noise: this would show it.

    Exit status: 0 done, 2 bad input, 130 interrupted.
    """
    from tdcd.cli.console import WaitingDisplay
    from tdcd.core.execution import Interrupted
    from tdcd.records.files import digest_of
    from tdcd.records.model_file import ModelFiles, read_block
    from tdcd.runtime.certificates.agreement import Certified
    from tdcd.runtime.certificates.check import when
    from tdcd.runtime.process.party import account_for_predictions, own_file, read_job, secret_of
    from tdcd.runtime.process.predict import model_of, own_scores, receivers_of
    from tdcd.serving.publication import CommonIds
    from tdcd.serving.publication import publish as write_publication

    waiting = WaitingDisplay(screen, "scoring")
    try:
        with reported(), stoppable(waiting.stop), waiting:
            if ids is None or out is None:
                raise ValueError(f"--{'ids' if ids is None else 'out'} FILE is missing")
            refuse_existing(out, force)
            own, job = own_file(party, certs=text_of(certs), account=text_of(account)), read_job(federation)
            if own.insecure:
                raise ValueError("insecure: what is published is signed with the hub's certificate")
            if job.config.exchange.protect == "mask":
                raise ValueError(
                    "exchange.protect = 'mask': published phi would show this silo's part of the sum, which masks "
                    "hide: use tdcd predict between all hubs"
                )
            folder = run or Path(own.out or f"runs/hub-{silo}")
            trained = model_of(folder)
            _check_finished(folder, trained.run, trained.status)
            others = [hub.removeprefix("hub.") for hub in receivers_of(job) if hub != hub_of(silo)]
            spending = account_for_predictions(own) if others else None
            signer = Certified(Path(own.certs), job.hubs[job.silo_index(silo)])
            model, scores = own_scores(job, silo, folder, data, own, waiting=waiting, allow_code=allow_code)
            common = CommonIds(ids, model.part(silo).columns.dialect, secret_of(job, own))
            digest = digest_of("", read_block(ModelFiles(folder).file(silo))[0])
            if spending is not None:
                for other in others:
                    spending.predicted(job, trained.run, other, len({*common.ids} & {*scores.ids}))
            published = write_publication(out, silo, scores, common, trained, digest, days, signer)
    except Interrupted as stopped:
        screen.print(str(stopped), highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    count, total = len(published.scores.ids), len(common.ids)
    until = when(published.statement.expires)
    screen.print(
        f"Published: {out}, phi of {count} of {counted(total, 'common id')}, until {until}",
        soft_wrap=True,
        highlight=False,
    )
    holder = job.config.federation.labels
    if holder == silo:
        screen.print(
            Text("It is for this silo's own service: the others do not get its phi.", "yellow"), soft_wrap=True
        )
    elif holder is not None:
        screen.print(f"It is for silo '{holder}', which alone has labels, and for no other.", soft_wrap=True)


def serve(
    run: Annotated[
        Path, typer.Argument(help="The run folder of this hub, or of a run with all blocks.", metavar="RUN")
    ],
    phi: Annotated[
        list[Path] | None, typer.Option(help="A file that a silo published, once for each; read again when replaced.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="SILO=FILE: rows of a silo whose block is in RUN; read again when replaced."),
    ] = None,
    ids: Ids = None,
    without: Annotated[list[str] | None, typer.Option(help="SILO, once for each that is missing.")] = None,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing",
            help="Score ids that a silo lacks, or whose phi has expired or is revoked, without its part.",
        ),
    ] = False,
    listen: Annotated[
        str, typer.Option(help="A port of this machine alone, 127.0.0.1:PORT, or the path of a Unix socket.")
    ] = "8400",
    certs: Certs = None,
    allow_code: AllowCode = False,
    log_level: LogLevelOption = "info",
) -> None:
    """Serve predictions by id to programs of this organisation: POST /predict with {"ids": ["203", "201"]}.

    Own rows come from --data, the partners' part from what they published ahead with `tdcd publish`: a partner that is
    offline costs nothing until its file expires. The answer has the predictions, what every silo added to the scores,
    and which silos did not speak. GET /healthz says until when phi may be used, GET /openapi.json is the schema. The
    service listens on this machine alone, and asks for no password. Needs the extra tdcd[serve].

    Exit status: 0 stopped by Ctrl-C or SIGTERM, 2 bad input.
    """
    from tdcd.runtime.process.log import event, opened_log

    # The server ends by itself on a signal, and passes it on: that must not end the process before it is done.
    with opened_log("serve", log_level), reported(), stoppable(lambda: None):
        try:
            from tdcd.serving.address import is_socket
            from tdcd.serving.address import listen as bound_to
            from tdcd.serving.service import PredictionService
            from tdcd.serving.service import run as answer
        except ModuleNotFoundError as error:
            raise ValueError(NEEDS_EXTRA if error.name in ("starlette", "uvicorn") else str(error)) from None
        load, files = _loader(run, data or [], phi or [], ids, certs, without or [], allow_missing, allow_code)
        service = PredictionService(lambda: files, load, is_private=not is_socket(listen))
        answer(service, bound_to(listen))
        event("stopped")


def _loader(
    run: Path,
    data: Sequence[str],
    phi: Sequence[Path],
    ids: Path | None,
    certs: Path | None,
    without: Sequence[str],
    allow_missing: bool,
    allow_code: bool,
) -> tuple[Callable[[], "PartsScorer"], list[Path]]:
    """What reads all tables and published files, and the files that it reads."""
    from tdcd.cli.predict import tables_by_silo
    from tdcd.prediction.model import Model
    from tdcd.prediction.scores import check_without
    from tdcd.runtime.certificates.agreement import Authority
    from tdcd.runtime.certificates.check import read_secret
    from tdcd.runtime.certificates.issue import SECRET
    from tdcd.runtime.certificates.revocation import REVOKED
    from tdcd.runtime.process.predict import model_of
    from tdcd.serving.publication import CommonIds, Publication, read_publication
    from tdcd.serving.scorer import KnownPhi, PartsScorer

    model, trained = Model.load(run, allow_code=allow_code), model_of(run)
    model.check_meaning()
    model.check_complete("phi that is known ahead")
    tables, folder = tables_by_silo(data, model.silos), certs or Path("certs")
    check_without(model.silos, without, tables)
    if bool(phi) != (ids is not None):
        raise ValueError("--phi and --ids go together: published phi is about the ids that tdcd align wrote")
    if phi:
        _check_finished(run, trained.run, trained.status)

    in_use: dict[str, tuple[Publication, KnownPhi]] = {}

    def load() -> PartsScorer:
        published: dict[str, tuple[Publication, KnownPhi]] = {}
        if ids is not None:
            authority = Authority(folder)
            # First of all: what is revoked is dropped, even if another file is bad.
            for publication, part in in_use.values():
                part.refusal = publication.refusal(authority)
            dialect = next(iter(model.parts.values())).columns.dialect
            common = CommonIds(ids, dialect, read_secret(folder / SECRET))
            for path in phi:
                publication = read_publication(path, authority, common, trained, model.phi_width, model.dtype)
                silo, refusal = publication.statement.silo, publication.refusal(authority)
                if silo in published or silo in tables or silo in without or silo not in model.silos:
                    what = "no silo of this model" if silo not in model.silos else "given twice, or also otherwise"
                    raise ValueError(f"--phi {path}: it is of silo '{silo}', which is {what}")
                # Anything may replace what is revoked: whoever had its key could date it as they liked.
                if silo in in_use and not in_use[silo][1].refusal:
                    publication.check_newer(in_use[silo][0], f"--phi {path}")
                    if refusal:
                        raise ValueError(f"--phi {path}: {refusal}")
                part = KnownPhi(publication.scores, publication.statement.expires, refusal)
                published[silo] = publication, part
        known = {silo: part for silo, (_, part) in published.items()}
        known |= {silo: KnownPhi(model.silo_scores(silo, table)) for silo, table in tables.items()}
        if lacking := [silo for silo in model.silos if silo not in known and silo not in without]:
            raise ValueError(
                f"silo '{lacking[0]}': give --phi with the file that it published, or --data {lacking[0]}=FILE where "
                f"its block is here, or leave it out with --without {lacking[0]}"
            )
        scorer = PartsScorer(model, known, without=without, allow_missing=allow_missing)
        in_use.clear()
        in_use.update(published)
        return scorer

    given = [*phi, *tables.values()]
    return load, given if ids is None else [*given, ids, folder / REVOKED]


def _check_finished(folder: Path, run: str | None, status: str | None) -> None:
    if run is None or status != "finished":
        raise ValueError(f"{folder} is no run folder of a hub whose training has finished: phi is published from such")
