"""The report of one run: ``report.html`` in its folder."""

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tdcd.config.user_code import resume_command
from tdcd.core.choices import PYTHON
from tdcd.records.history import Record
from tdcd.records.run_folder import RunFolder
from tdcd.report import html
from tdcd.report.alignment import alignment_table
from tdcd.report.drawing import federation_svg
from tdcd.report.figures import Curve, line_figure
from tdcd.report.folder import SPLITS, FederationFacts, Run, metric_title
from tdcd.report.html import Html
from tdcd.report.predictions import predictions
from tdcd.report.protection import protections
from tdcd.report.settings import settings
from tdcd.report.subsets import subsets
from tdcd.report.time_section import time_section
from tdcd.report.units import byte_unit, bytes_in_words, counted, duration, figure, spans
from tdcd.report.weights import weights

LINKS = {"client_to_hub": "client to hub", "hub_to_client": "hub to client", "hub_to_hub": "hub to hub"}

READING = [
    (
        "Round",
        "Each hub averages its clients' blocks, the hubs exchange what their columns contribute to the scores (phi), "
        "and every client takes its local steps. Round 0 is the model before training.",
    ),
    (
        "Train loss",
        "The objective over all training samples, regularisation included, for the model of all hub blocks.",
    ),
    ("Held-out", "The same figures over samples that no client trained on."),
    ("Bytes sent", "Payload over all links since the start. Clients and hubs exchange blocks and phi; hubs only phi."),
    ("Time", "Spent in training rounds; evaluation and start-up are left out."),
]


def write_report(run_folder: Path) -> Path:
    """Write ``report.html`` into a run folder, from nothing but what the folder holds.

    The page is one file, needs no network, and is the same bytes for the same folder. Its only script is the button to
    print.

    Returns:
        The page's path.
    """
    return RunFolder(run_folder).write_report(_page(Run.read(run_folder)))


def _page(run: Run) -> Html:
    federation = run.federation
    return html.page(
        f"{run.name} · tdcd run",
        html.header(
            "tdcd run",
            run.name,
            [
                *run.data,
                counted(len(federation.silos), "silo"),
                counted(federation.num_clients, "client"),
                counted(federation.num_samples, "training sample"),
                f"{federation.num_test:,} held out",
            ],
            badge="synthetic data" if "synthetic" in federation.name.lower() else "",
        ),
        *_notices(run),
        html.cards(_cards(run)),
        *_training(run),
        html.section("Final figures", *_final_figures(run)),
        *predictions(run),
        *weights(run),
        *_joining(run),
        *subsets(run),
        *time_section(run),
        *_absences(run.history),
        html.section("Bytes by kind of link", html.bars(_traffic(run.history[-1]))),
        html.section(
            "Federation",
            html.wide(federation_svg(federation)),
            *_federation_words(federation),
            *_alignment(federation),
            *protections(run.config),
        ),
        settings(run),
        html.section("How to read this", html.definitions(READING)),
        html.section("Run it again", *_again(run)),
    )


def _notices(run: Run) -> Iterator[Html]:
    if run.diverged:
        yield html.notice(
            f"This run diverged: {run.verdict}. The figures below are those of round {run.final.round:,}. "
            "Start a new run with a smaller step_size, or with fewer local_steps.",
            "alarm",
        )
    if run.ending:
        yield html.notice(f"{run.ending[:1].upper()}{run.ending[1:]}.")
    elif len(run.history) == 1:
        yield html.notice(
            "So far the history holds only the evaluation before training; curves appear with the next one."
        )


def _cards(run: Run) -> Iterator[html.Card]:
    first, last = run.history[0], run.history[-1]
    start = f"{figure(first.train_loss)} before training"
    yield html.Card("train loss", "diverged" if run.history[-1].diverged else figure(run.final.train_loss), start)
    split = "test" if run.final.metrics.get("test") else "train"
    for name, value in run.final.metrics.get(split, {}).items():
        before = first.metrics.get(split, {}).get(name)
        yield html.Card(f"{SPLITS[split]} {metric_title(name)}", figure(value), f"{figure(before)} before training")
    yield html.Card("rounds", f"{last.round:,}", counted(last.iteration, "local step"))
    each = f"{bytes_in_words(last.bytes.total // last.round)} per round" if last.round else ""
    yield html.Card("sent in rounds", bytes_in_words(last.bytes.total), each)
    if last.evaluation_bytes is not None:
        each = f"{bytes_in_words(last.evaluation_bytes.total // len(run.history))} per evaluation"
        yield html.Card("sent for evaluation", bytes_in_words(last.evaluation_bytes.total), each)
    pace = f"{duration(last.seconds / last.round)} per round" if last.round else ""
    yield html.Card("time", duration(last.seconds), pace)


def _training(run: Run) -> Iterator[Html]:
    if len(run.history) > 1:
        yield html.section("Training", html.figures(_curves(run)))


def _curves(run: Run) -> Iterator[tuple[Html, str]]:
    """The figures and their captions."""
    rounds = [record.round for record in run.history]
    sent = [record.bytes.total for record in run.history]
    unit, size = byte_unit(max(sent))
    losses = {"train": _numbers(record.train_loss for record in run.history)}
    if any(record.test_loss is not None for record in run.history):
        losses["test"] = _numbers(record.test_loss for record in run.history)
    yield line_figure(_lines(rounds, losses), "round", "loss"), "Loss over rounds"
    yield line_figure(_lines([count / size for count in sent], losses), f"{unit} sent", "loss"), "Loss over bytes sent"
    for name in run.metric_names:
        figures = {
            split: _numbers(record.metrics.get(split, {}).get(name) for record in run.history)
            for split in SPLITS
            if any(record.metrics.get(split, {}).get(name) is not None for record in run.history)
        }
        title = metric_title(name)
        caption = f"{title[:1].upper()}{title[1:]} over rounds"
        yield line_figure(_lines(rounds, figures), "round", title, log_y=False), caption


def _numbers(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _lines(x: Sequence[float], by_split: Mapping[str, Sequence[float]]) -> list[Curve]:
    return [Curve(SPLITS[split], x, y) for split, y in by_split.items()]


def _final_figures(run: Run) -> Iterator[Html]:
    record = run.final
    rows = [["loss", figure(record.train_loss), figure(record.test_loss)]]
    for name in run.metric_names:
        rows.append([metric_title(name), *(figure(record.metrics.get(split, {}).get(name)) for split in SPLITS)])
    if run.federation.labels:
        yield html.paragraph(f"Labels: {run.federation.labels}.")
    yield html.paragraph(f"The global model after round {record.round:,}.")
    yield html.table(["figure", *SPLITS.values()], rows, numbers=True)


def _joining(run: Run) -> Iterator[Html]:
    """What each silo reached alone, if the folder says so."""
    folder = RunFolder(run.path)
    alone = folder.alone()
    if not alone:
        return
    try:
        rows = [[f"{silo} alone", *(figure(found[name]) for name in run.metric_names)] for silo, found in alone.items()]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder.alone_file} is damaged: {error!r}") from None
    split = "test" if run.final.metrics.get("test") else "train"
    together = ["together", *(figure(run.final.metrics[split].get(name)) for name in run.metric_names)]
    yield html.section(
        "What joining gains",
        html.paragraph(
            "The same kind of model on one silo's columns, trained by its own clients for as many local steps, "
            "beside the federation's."
        ),
        html.table(
            ["", *(f"{SPLITS[split]} {metric_title(name)}" for name in run.metric_names)],
            [*rows, together],
            numbers=True,
        ),
    )


def _absences(history: Sequence[Record]) -> Iterator[Html]:
    """The clients that were left out."""
    rounds: dict[str, list[int]] = {}
    unscored: dict[str, int] = {}
    for record in history:
        for client, absent in record.absent.items():
            rounds.setdefault(client, []).extend(absent)
        for client in record.unscored:
            unscored[client] = unscored.get(client, 0) + 1
    if not rounds and not unscored:
        return
    rows = [
        [client, f"{len(rounds.get(client, [])):,}", spans(rounds.get(client, [])), f"{unscored.get(client, 0):,}"]
        for client in dict.fromkeys([*rounds, *unscored])
    ]
    yield html.section(
        "Absent clients",
        html.paragraph(
            "These clients did not answer within the grace period. The rounds below continued without them: without "
            "their samples, or, if they left in the middle, without their steps. Evaluations without them are over the "
            "samples that were there in all silos. Bytes are counted as if nobody had been absent."
        ),
        html.table(["client", "rounds without it", "which", "evaluations without it"], rows),
    )


def _traffic(record: Record) -> list[html.Bar]:
    """Of the rounds, and of the evaluations if they were counted."""
    bars = []
    kinds = {"": (record.bytes, record.messages)}
    if record.evaluation_bytes is not None and record.evaluation_messages is not None:
        kinds["evaluation, "] = record.evaluation_bytes, record.evaluation_messages
    for kind, (sent, counts) in kinds.items():
        for link, label in LINKS.items():
            size, messages = getattr(sent, link), getattr(counts, link)
            bars.append(html.Bar(f"{kind}{label}", size, f"{bytes_in_words(size)} in {counted(messages, 'message')}"))
    return bars


def _federation_words(federation: FederationFacts) -> Iterator[Html]:
    yield html.paragraph(
        "Every silo holds its own columns of all training samples, and spreads their rows over its clients. A box is "
        "wider the more columns the silo has, a circle larger the more rows the client holds (the number below it). "
        "Over the line that joins the hubs, each sends its phi to every other."
    )
    rows = []
    for silo in federation.silos:
        fewest, most = min(silo.clients), max(silo.clients)
        each = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
        names = ", ".join(silo.columns[:8]) + (", …" if len(silo.columns) > 8 else "")
        rows.append(
            [silo.name, silo.features_in_words, f"{len(silo.clients):,}", each, f"{silo.parameters:,}", names or "–"]
        )
    yield html.table(["silo", "features", "clients", "rows per client", "parameters", "columns"], rows)


def _alignment(federation: FederationFacts) -> Iterator[Html]:
    if federation.alignment:
        head, rows = alignment_table(federation.alignment)
        yield html.paragraph(
            "The silos' tables are not about the same samples. Training and evaluation kept to the ids that all silos "
            "have (data.align = true); the other rows were left out, which may change the share of a class."
            if any(one.lost for one in federation.alignment.values())
            else "All silos have the same ids: data.align = true left no row out."
        )
        yield html.table(head, rows)


def _again(run: Run) -> Iterator[Html]:
    folder = shlex.quote(run.path.resolve().name)
    if run.config.get("data", {}).get("source") == PYTHON:
        yield html.paragraph(
            "In Python, continue from its last checkpoint: train() with the same arguments, and resume=True."
        )
        return
    yield html.paragraph(
        "In the directory that contains this folder: continue from its last checkpoint, or start again with the same "
        "settings:"
    )
    yield html.command(f"{resume_command(run.path.resolve().name, run.config)}\ntdcd run {folder}/config.toml")
