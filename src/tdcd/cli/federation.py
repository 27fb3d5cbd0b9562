"""``tdcd hub``, ``client``, ``up``, ``align``, ``status`` and ``doctor``: a federation of several organisations.

What they need is imported when they run: simulations start faster, and work where zenoh is not installed.
"""
# ruff: noqa: PLC0415

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.style import Style
from rich.text import Text

from tdcd.cli.options import Force, LogLevelOption, WatchOption, checked_config, live_page
from tdcd.cli.terminal import (
    EXIT_DIVERGED,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    ended_at_once,
    refuse_existing,
    report_failure,
    reported,
    screen,
    show_labels,
    stoppable,
)
from tdcd.config import Config, ConfigError, check_config, read_config
from tdcd.core.words import are, counted
from tdcd.federation import client_of, hub_of
from tdcd.records.timeline import TIMELINE, Timeline
from tdcd.runtime.storage.status import in_words, read_status

if TYPE_CHECKING:
    from tdcd.alignment import Answer
    from tdcd.runtime.machine.instructions import RunOutcome
    from tdcd.runtime.process.doctor import Finding, Party
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
PartyFile = Annotated[
    Path | None, typer.Option("--party", help="This party's own small TOML file, for the options below.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS. Refused unless every hub's address is this machine's own.")
]
AccountFile = Annotated[
    Path | None,
    typer.Option(help="A file of what this silo's runs have spent of its rows and labels [default: none]."),
]


class _StopRequest:
    """Whether the user asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        self.asked = True

    def announced(self) -> bool:
        """Whether the user asked; says so on the screen if so."""
        if self.asked:
            screen.print("Stopping the parties; once more to end them at once.", highlight=False)
        return self.asked


def hub(
    federation: FederationFile,
    silo: SiloName,
    samples: Annotated[
        Path | None,
        typer.Option(help='The silo\'s list of samples, as tdcd align writes it; needed with data.samples = "all".'),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="Where the former run is that train.start names [default: where train.start says]."),
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="The silo was not in that run: its block begins as it is drawn.")
    ] = False,
    account: AccountFile = None,
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
    party: PartyFile = None,
    insecure: Insecure = False,
    log_level: LogLevelOption = "info",
) -> None:
    """Run a silo's hub: lead its clients, exchange phi with the other hubs, keep the silo's block.

    It listens on one port, for its clients and for other hubs, and writes a run folder. It waits for whoever is
    missing, and says who. A hub that was stopped or killed continues when the same command is given again.

    Exit status: 0 finished, 2 bad input or parties that do not fit together, 3 the run diverged, 130 interrupted.
    """
    from tdcd.runtime.process.log import opened_log
    from tdcd.runtime.process.party import own_file, read_job, run_hub

    stop = _StopRequest()
    with opened_log(hub_of(silo), log_level), reported(), stoppable(stop.ask):
        files = {"certs": text_of(certs), "out": text_of(out), "samples": text_of(samples), "account": text_of(account)}
        given = {**files, "start": text_of(start), "cold": cold, "listen": listen, "metrics": metrics}
        own = own_file(party, **given, insecure=insecure)
        end(run_hub(read_job(federation), silo, own, lambda: stop.asked))


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
    party: PartyFile = None,
    insecure: Insecure = False,
    log_level: LogLevelOption = "info",
) -> None:
    """Run a client next to its data: it answers its hub, and dials out only.

    No port has to be open. What leaves the site: ids of its rows, their labels if the silo has them (randomised
    ones, with federation.label_epsilon), sums and counts of its columns, phi and blocks; never a row of features. A
    client that was killed continues when the same command is run again.

    Exit status: 0 finished, 2 bad input or parties that do not fit together, 3 the run diverged, 130 interrupted.
    """
    from tdcd.runtime.process.log import opened_log
    from tdcd.runtime.process.party import own_file, read_job, run_client

    stop = _StopRequest()
    with opened_log(client_of(silo, name), log_level), reported(), stoppable(stop.ask):
        files = {"certs": certs, "data": data, "labels": labels, "ids": ids, "label_key": label_key, "out": out}
        own = own_file(party, **{name: text_of(path) for name, path in files.items()}, insecure=insecure)
        end(run_client(read_job(federation), silo, name, own, lambda: stop.asked))


def up(
    federation: FederationFile,
    out: Annotated[Path | None, typer.Option(help="Where everything goes [default: runs/NAME-up].")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, for example --set train.rounds=50.")
    ] = None,
    watch: WatchOption = False,
) -> None:
    """Try a federation on this machine: every hub and client a process of its own, with temporary certificates.

    Each client gets the rows that `tdcd run` would give it. Ctrl-C stops all, twice ends all at once; the same command
    continues from there. With federation.client_grace_s a trial continues without a client that ends early.

    Exit status: as for `tdcd hub`.
    """
    with live_page(watch) as show_page:
        _up(federation, out, settings or [], show_page)


def _up(federation: Path, out: Path | None, settings: list[str], show_page: Callable[[Path], None]) -> None:
    from tdcd.runtime.process.forking import warm_up

    # What follows takes about as long as the parties' imports.
    warm_up()
    from tdcd.cli.console import show_alignment
    from tdcd.runtime.process.trial import Trial, TrialDisplay

    stop = _StopRequest()
    with reported(), ended_at_once(), stoppable(stop.ask, cleanly=True):
        folder = out or Path("runs") / f"{checked_config(federation, settings).folder_name}-up"
        trial = Trial.prepare(federation, settings, folder)
        show_labels(trial.labels_in_words)
        show_alignment(screen, trial.alignment)
        show_page(folder)
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
    from tdcd.pages.report import write_report
    from tdcd.training.train import train_silo_only

    train_silo_only(plan(trial.job.config), trial.folder, should_stop)
    return write_report(trial.folder)


def end(outcome: "RunOutcome") -> None:
    """Exit with the status that says how it ended, and print why."""
    status: dict[str, Any] = {"finished": 0, "diverged": EXIT_DIVERGED, "interrupted": EXIT_INTERRUPTED}
    code = status.get(outcome.status, EXIT_INPUT)
    if not code and outcome.reason:
        screen.print(f"Finished: {outcome.reason}", soft_wrap=True, highlight=False, markup=False)
    if code:
        report_failure(outcome.status.capitalize(), outcome.reason)
        raise typer.Exit(code)


def text_of(path: Path | None) -> str | None:
    """A path as a party's own file writes it."""
    return None if path is None else str(path)


def align(
    federation: FederationFile,
    silo: SiloName,
    out: Annotated[
        Path | None,
        typer.Option(help='The text file to write: one id per line. A hub with data.samples = "all" writes JSON.'),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--client", help="Take part as this client; otherwise as the silo's hub.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Tables with the ids. A hub without any asks its clients, who then run this command too."),
    ] = None,
    counts: Annotated[
        bool,
        typer.Option(
            "--counts",
            help="Learn only how many ids each other silo shares with this one; all parties give it, or none.",
        ),
    ] = False,
    known: Annotated[
        Path | None,
        typer.Option(
            help="What a former alignment wrote, the same for all hubs: its ids are not compared again, only new rows "
            "and those that were not common."
        ),
    ] = None,
    force: Force = False,
    certs: Certs = None,
    party: PartyFile = None,
    insecure: Insecure = False,
) -> None:
    """Find the ids that every silo has, before training: every hub runs this command, with --data or with its clients.
    With data.samples = "all" in the file, find the samples that have a label anywhere, whichever silos know them.

    It is a private set intersection between every two hubs. It protects against curious silos that follow the protocol,
    not against silos that cheat: a silo can claim ids that it does not have. All learn how many ids each silo has, and
    which of their own ids every single other silo has; with --counts only how many. `tdcd client --ids OUT` trains on
    the ids in OUT. With data.samples = "all" OUT of a hub is its list of samples, for `tdcd hub --samples OUT`, and
    silos without labels are compared with the one that has them alone. The terminal says how many of your rows are
    lost, and what that does to the labels in them, if your tables have any. About 17 s for 100,000 ids in each of two
    silos, both on one machine with two cores.

    Exit status: 0 done, 2 bad input or parties that do not fit together, 130 interrupted.
    """
    from tdcd.cli.console import WaitingDisplay, show_table
    from tdcd.pages.report import alignment_table, counts_table
    from tdcd.runtime.process.align import align_as_client, align_as_hub
    from tdcd.runtime.process.party import own_file, read_job

    waiting = WaitingDisplay(screen, "aligning")
    with reported(), stoppable(waiting.stop), waiting:
        answer: Answer = "counts" if counts else "ids"
        if known is not None and name is not None:
            raise ValueError("--known is for hubs: a client sends its hub all its ids")
        job = read_job(federation)
        _check_out(out, force, counts=counts, is_list=job.may_lack_samples and name is None)
        own = own_file(party, certs=text_of(certs), insecure=insecure)
        if name is not None:
            aligned = align_as_client(job, silo, name, data or [], own, waiting, answer=answer)
        else:
            aligned = align_as_hub(job, silo, data or [], own, waiting, answer=answer, known=known)
        outcome, ids, lost, shared, listed = aligned
        is_done = outcome.status == "finished"
        if is_done and out is not None:
            aligned.write(out)
    if is_done and counts and name is not None:
        screen.print("The hubs know how many ids they share; no party knows which.", highlight=False)
    elif is_done and counts:
        show_table(screen, counts_table(silo, lost.ids, shared))
    elif is_done and job.may_lack_samples:
        of_all = "" if listed is None else f", of {listed.total:,} in all"
        words = f"{counted(len(ids), 'id')} {are(len(ids))} samples with a label{of_all}: {out}"
        screen.print(words, soft_wrap=True, highlight=False)
        if shared:
            show_table(screen, counts_table(silo, lost.ids, shared))
    elif is_done:
        screen.print(f"{counted(len(ids), 'id')} {are(len(ids))} in every silo: {out}", soft_wrap=True, highlight=False)
        show_table(screen, alignment_table({silo if name is None else f"{silo}, {name}": lost}))
        if not ids:
            screen.print("Ids are compared as data.ids says; by default '001' is not '1'.", highlight=False)
    end(outcome)


def _check_out(out: Path | None, force: bool, *, counts: bool, is_list: bool) -> None:
    """Refuse --out where nothing is written, or what is written is called otherwise; and no --out where it is."""
    if counts and out is not None:
        raise ValueError("--counts writes no file: leave out --out")
    if out is None and not counts:
        raise ValueError("--out: is missing: the file for the common ids")
    if out is None:
        return
    if is_list and out.suffix != ".json":
        raise ValueError(f"--out {out}: with data.samples = 'all' a hub writes its list of samples: call it NAME.json")
    refuse_existing(out, force)


CELLS = 24
HEIGHTS, PLAIN_HEIGHTS = " ▁▂▃▄▅▆▇█·", " .:-=+*%#x"
"""How much of a cell's time was work, and last a hub that did not run; the second for terminals of ASCII only."""
WORK, WAIT = "blue", "yellow"
TRIAL_HUBS = "silos"
"""Where the hubs of a trial have their folders."""

Folder = Annotated[
    Path,
    typer.Argument(
        help="A hub's run folder, the folder of `tdcd up` or of `tdcd party`, or --out of a client.", metavar="FOLDER"
    ),
]


def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="The facts as JSON, one line per hub.")] = False,
) -> None:
    """Say what a hub is doing: its round and loss, who is connected, who is missing and for how long.

    A client that was given --out says its round and whether its hub is connected, and a party that stands by says what
    it does and which jobs are open. The bar is a hub's time in training
    so far: the higher, the more of it was work; the rest was waiting for others.

    Exit status: 0 the party is alive or its run is over, 1 its process is gone in the middle of a run, 2 bad input.
    """
    with reported():
        hubs = _hubs_in(folder)
        statuses = [(read_status(hub), _timeline(hub)) for hub in hubs]
    for hub, (facts, timeline) in zip(hubs, statuses, strict=True):
        if as_json:
            print(json.dumps({**facts, **_as_facts(timeline)}))
        else:
            # The certificates of a trial are for a day, and are not renewed.
            is_trial = hub.absolute().parent.name == TRIAL_HUBS
            screen.print(
                in_words({**facts, "certificate_days": {}} if is_trial else facts), soft_wrap=True, highlight=False
            )
            for line in _as_lines(timeline):
                screen.print(line, soft_wrap=True, highlight=False)
    if any(not facts["alive"] and facts["status"] is None for facts, _ in statuses):
        raise typer.Exit(1)


def _hubs_in(folder: Path) -> list[Path]:
    """The folder itself, or those of all hubs of a trial."""
    return sorted(path.parent for path in folder.glob(f"{TRIAL_HUBS}/*/status.json")) or [folder]


def _timeline(folder: Path) -> Timeline | str | None:
    """The hub's time; why it cannot be read; None before its first round."""
    try:
        timeline = Timeline.read(folder / TIMELINE) if (folder / TIMELINE).exists() else None
    except ValueError as damage:
        return str(damage)
    return timeline if timeline is not None and timeline.shares(CELLS) else None


def _as_facts(timeline: Timeline | str | None) -> dict[str, Any]:
    if not isinstance(timeline, Timeline):
        return {}
    waited = {party: round(seconds, 3) for party, seconds in timeline.waited.items()}
    return {"worked_s": round(timeline.worked, 3), "waited_s": waited}


def _as_lines(timeline: Timeline | str | None) -> list[Text]:
    if timeline is None:
        return []
    if isinstance(timeline, str):
        return [Text(f"  time        {timeline}")]
    total = timeline.worked + sum(timeline.waited.values())
    percent = round(100 * timeline.worked / total)
    words = f"  worked {percent} %, waited {100 - percent} %"
    most = next(iter(timeline.waited), None)
    if most is not None and percent < 100:
        words += f", {'most of it ' * (len(timeline.waited) > 1)}for {most}"
    return [Text("  time        ").append_text(_bar(timeline)).append(words)]


def _bar(timeline: Timeline) -> Text:
    """Cells of equal time."""
    heights = HEIGHTS if screen.encoding.startswith("utf") else PLAIN_HEIGHTS
    bar = Text()
    for worked, waited in timeline.shares(CELLS):
        # What is not work is below the top, and what is work is above the bottom, however little it is.
        height = min(max(round(8 * worked), worked > 0.01), 8 - (waited > 0.01)) if worked + waited > 0.01 else -1
        bar.append(heights[height], Style(color=WORK, bgcolor=WAIT if waited > 0.01 else None))
    return bar


STYLES = {"ok": "green", "caution": "yellow", "wrong": "bold red"}


def doctor(
    federation: Annotated[
        Path | None,
        typer.Argument(help="Also check this federation's hubs.", metavar="[FEDERATION.toml]", show_default=False),
    ] = None,
    silo: Annotated[str | None, typer.Option(help="As this silo's hub; with --client, as a client of it.")] = None,
    client: Annotated[str | None, typer.Option(help="As this client.")] = None,
    certs: Annotated[
        Path | None, typer.Option(help="The folder of certificates to check [default: certs, if it is there].")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="host:port, if the hub is to listen elsewhere.")] = None,
    out: Annotated[Path, typer.Option(help="Where runs are to go.")] = Path("runs"),
) -> None:
    """Check this machine: versions, devices, disk space, clock; with a file, also ports, addresses and certificates.

    Nothing is trained, and nothing is sent but an attempt to connect to the hubs. Every line that is not ok says what
    to do.

    Exit status: 0 nothing is wrong, 1 something is.
    """
    from tdcd.runtime.process.doctor import Party, examine_machine

    folder = certs or (Path("certs") if Path("certs").is_dir() else None)
    levels = [_show_finding(finding) for finding in examine_machine(out)]
    levels += [_show_finding(finding) for finding in _of_file(federation, Party(silo, client, folder, listen))]
    if "wrong" in levels:
        raise typer.Exit(1)


def _of_file(path: Path | None, party: "Party") -> Iterator["Finding"]:
    from tdcd.runtime.process.doctor import Finding, examine_federation

    if path is None:
        if party.silo or party.client:
            yield Finding("federation", "wrong", "--silo and --client need the federation's file: give it, too")
        return
    try:
        config = check_config(read_config(path), str(path))
        _check_party(config, party)
    except ConfigError as error:
        yield Finding("federation", "wrong", str(error))
        return
    yield Finding("federation", "ok", f"{path} is valid: silos {', '.join(config.silo_names)}")
    yield from examine_federation(config, party)


def _check_party(config: Config, party: "Party") -> None:
    silos = {silo.name: silo.client_names for silo in config.silos}
    if party.client is not None and party.silo is None:
        raise ConfigError(["--client needs --silo, the silo that it belongs to"])
    if party.silo is not None and party.silo not in silos:
        raise ConfigError([f"--silo {party.silo}: there is no such silo; there are {', '.join(silos)}"])
    if party.silo is not None and party.client is not None and party.client not in silos[party.silo]:
        known = ", ".join(silos[party.silo])
        raise ConfigError([f"--client {party.client}: silo '{party.silo}' has no such client; it has {known}"])


def _show_finding(finding: "Finding") -> str:
    line = Text.assemble((f"{finding.level:<8}", STYLES[finding.level]), f"{finding.subject}: {finding.words}")
    screen.print(line, soft_wrap=True)
    return finding.level
