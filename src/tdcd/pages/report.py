"""The report of one run: ``report.html`` in its folder."""

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.config.schema import Config, SiloSection
from tdcd.config.user_code import resume_command
from tdcd.core.certificate import rounded_up
from tdcd.core.choices import PYTHON
from tdcd.core.losses import fitting
from tdcd.core.words import SPLITS, TextTable, byte_unit, bytes_in_words, counted, duration, figure, metric_title, spans
from tdcd.federation.silos import ONES, LabelFigures, SiloIds
from tdcd.pages.effects import columns
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import NAMES, ROW, WIDTH, Curve, chart, cut, line_figure, row_name, signed_bars
from tdcd.pages.kit.federation import DrawnParty, DrawnSilo, federation_svg
from tdcd.pages.kit.html import Html, escape
from tdcd.pages.predictions import predictions
from tdcd.pages.timeline import time_section
from tdcd.records.history import Record
from tdcd.records.model_file import read_block
from tdcd.records.run_folder import FederationFacts, RecordedRun, RunFolder, SiloFacts
from tdcd.tables.preparation import load_preparation

if TYPE_CHECKING:
    from tdcd.tables.overlap import PresenceCounts

LINKS = {"client_to_hub": "client to hub", "hub_to_client": "hub to client", "hub_to_hub": "hub to hub"}

MOST_DRAWN_SILOS, MOST_DRAWN_CLIENTS = 30, 12
FIRST_CLIENTS = 8
"""The clients of a silo that are drawn; others are counted."""

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

    The page is one file, needs no network, and is the same bytes for the same folder.

    Returns:
        The page's path.
    """
    return RunFolder(run_folder).write_report(_page(RecordedRun.read(run_folder)))


def _page(run: RecordedRun) -> Html:
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
        html.key_figures(_cards(run)),
        *_training(run),
        html.section("Final figures", *_final_figures(run)),
        *predictions(run),
        *weights(run),
        *columns(run, SCORES.get(_loss(run), "the score"), _outputs(run), _linear_silos(run)),
        *_joining(run),
        *subsets(run),
        *time_section(run),
        *_absences(run.history),
        html.section("Bytes by kind of link", html.bars(html.shares(_traffic(run.history[-1])))),
        html.section(
            "Federation",
            html.wide(federation_drawing(federation)),
            *_federation_words(federation),
            *_alignment(federation),
            *protections(run.config),
        ),
        settings(run),
        html.section("How to read this", html.definitions(READING)),
        html.section("Run it again", *_again(run)),
    )


def _notices(run: RecordedRun) -> Iterator[Html]:
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


def _cards(run: RecordedRun) -> Iterator[html.KeyFigure]:
    first, last = run.history[0], run.history[-1]
    start = f"{figure(first.train_loss)} before training"
    yield html.KeyFigure("train loss", "diverged" if run.history[-1].diverged else figure(run.final.train_loss), start)
    if run.final.gap is not None:
        yield html.KeyFigure(
            "above the best possible", f"at most {rounded_up(run.final.gap)}", "the training loss, proven"
        )
    elif run.final.gradient_norm is not None:
        yield html.KeyFigure("gradient norm", figure(run.final.gradient_norm), "over all training samples")
    if last.epsilon is not None:
        labels = run.config.get("federation", {}).get("labels")
        whose = f" of silos other than {labels}" if labels else ""
        words = f"of a row's phi{whose}, blocks given; figures are of scores with noise"
        yield html.KeyFigure("epsilon spent", rounded_up(last.epsilon), words)
    if last.block_epsilon is not None:
        words = "of a client's changes of blocks, those that it began with given"
        yield html.KeyFigure("epsilon of blocks", rounded_up(last.block_epsilon), words)
    split = "test" if run.final.metrics.get("test") else "train"
    for name, value in run.final.metrics.get(split, {}).items():
        before = first.metrics.get(split, {}).get(name)
        yield html.KeyFigure(
            f"{SPLITS[split]} {metric_title(name)}", figure(value), f"{figure(before)} before training"
        )
    yield html.KeyFigure("rounds", f"{last.round:,}", counted(last.iteration, "local step"))
    each = f"{bytes_in_words(last.bytes.total // last.round)} per round" if last.round else ""
    yield html.KeyFigure("sent in rounds", bytes_in_words(last.bytes.total), each)
    if last.evaluation_bytes is not None:
        each = f"{bytes_in_words(last.evaluation_bytes.total // len(run.history))} per evaluation"
        yield html.KeyFigure("sent for evaluation", bytes_in_words(last.evaluation_bytes.total), each)
    pace = f"{duration(last.seconds / last.round)} per round" if last.round else ""
    yield html.KeyFigure("time", duration(last.seconds), pace)


def _training(run: RecordedRun) -> Iterator[Html]:
    if len(run.history) > 1:
        yield html.section("Training", html.figures(_curves(run)))


def _curves(run: RecordedRun) -> Iterator[tuple[Html, str]]:
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


def _final_figures(run: RecordedRun) -> Iterator[Html]:
    record = run.final
    rows = [["loss", figure(record.train_loss), figure(record.test_loss)]]
    for name in run.metric_names:
        rows.append([metric_title(name), *(figure(record.metrics.get(split, {}).get(name)) for split in SPLITS)])
    if run.federation.labels:
        yield html.paragraph(f"Labels: {run.federation.labels}.")
    yield html.paragraph(f"The global model after round {record.round:,}.")
    yield html.table(["figure", *SPLITS.values()], rows, numbers=True)


def _joining(run: RecordedRun) -> Iterator[Html]:
    """What each silo reached alone, if the folder says so."""
    folder = RunFolder(run.path)
    alone = folder.alone()
    if not alone:
        return
    try:
        rows = [
            [f"{silo} alone", *(figure(metrics[name]) for name in run.metric_names)] for silo, metrics in alone.items()
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder.alone_file} is damaged: {error!r}") from None
    split = "test" if run.final.metrics.get("test") else "train"
    together = ["together", *(figure(run.final.metrics[split].get(name)) for name in run.metric_names)]
    yield html.section(
        "What joining gains",
        html.paragraph(
            "The same kind of model on one silo's columns, trained by its own clients for as many local steps, "
            "next to the federation's."
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
            "samples that were there in all silos. Bytes are counted as if no client had been absent."
        ),
        html.table(["client", "rounds without it", "which", "evaluations without it"], rows),
    )


def _traffic(record: Record) -> list[tuple[str, float, str]]:
    """The traffic of the rounds, and of the evaluations if it was counted."""
    bars = []
    kinds = {"": (record.bytes, record.messages)}
    if record.evaluation_bytes is not None and record.evaluation_messages is not None:
        kinds["evaluation, "] = record.evaluation_bytes, record.evaluation_messages
    for kind, (sent, counts) in kinds.items():
        for link, label in LINKS.items():
            size, messages = getattr(sent, link), getattr(counts, link)
            bars.append((f"{kind}{label}", size, f"{bytes_in_words(size)} in {counted(messages, 'message')}"))
    return bars


def federation_drawing(federation: FederationFacts) -> Html:
    """Boxes are wider with more columns, circles larger with more rows."""
    words = (
        f"The federation: {counted(len(federation.silos), 'silo')}, {counted(federation.num_clients, 'client')} in all"
    )
    shown = federation.silos[:MOST_DRAWN_SILOS]
    return federation_svg([*map(_drawn_silo, shown)], words, num_hidden=len(federation.silos) - len(shown))


def _drawn_silo(silo: SiloFacts) -> DrawnSilo:
    count = len(silo.clients)
    clients = [
        DrawnParty(f"{rows:,}", f"client {index}: {counted(rows, 'row')}", rows=rows)
        for index, rows in enumerate(silo.clients[: count if count <= MOST_DRAWN_CLIENTS else FIRST_CLIENTS])
    ]
    words = (
        f"{silo.name}: {silo.features_in_words}, {counted(count, 'client')}, {counted(silo.parameters, 'parameter')}"
    )
    hub = DrawnParty("hub", f"hub of {silo.name}")
    hidden = count - len(clients)
    return DrawnSilo(silo.name, silo.features_in_words, words, silo.num_features, hub, clients, hidden)


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
            if any(ids.lost for ids in federation.alignment.values())
            else "All silos have the same ids: data.align = true left no row out."
        )
        yield html.table(head, rows)


def _again(run: RecordedRun) -> Iterator[Html]:
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


MOST_COLUMNS = 10
MOST_OUTPUTS = 20
MOST_SILOS = 12


SCORES = {
    "squared": "the prediction, in standard deviations of the label",
    "huber": "the prediction, in standard deviations of the label",
    "logistic": "the logarithm of the odds",
    "poisson": "the logarithm of the prediction",
}
"""What a score is, by loss."""


class Weights(NamedTuple):
    """One silo's columns with the largest weights."""

    silo: str
    columns: Sequence[str]
    values: NDArray[np.float64]
    """``[columns, C]``."""
    num_columns: int
    """In all."""


def weights(run: RecordedRun) -> Iterator[Html]:
    """One figure per silo whose block is linear and in the folder."""
    largest = [own for silo, kind in _blocks(run) if kind == "linear" and (own := _largest(run, silo)) is not None]
    if not largest:
        return
    shown = largest[:MOST_SILOS]
    count = shown[0].values.shape[1]
    names = _outputs(run) if len(_outputs(run)) == count else [str(number) for number in range(count)]
    if len(names) > MOST_OUTPUTS:
        return
    # One scale for all silos, so that they can be compared.
    every = np.concatenate([own.values.ravel() for own in shown])
    span = float(every.min()), float(every.max())
    drawn = [(_drawn(own, names, span), _caption(own)) for own in shown]
    more = f" The first {len(shown)} silos are drawn." if len(largest) > len(shown) else ""
    yield html.section("Weights per silo", html.paragraph(_in_words(run, shown[0]) + more), html.figures(drawn))


def _blocks(run: RecordedRun) -> Iterator[tuple[SiloFacts, str]]:
    block, silos = run.config.get("model", {}).get("block", ""), run.federation.silos
    kinds = [block] * len(silos) if isinstance(block, str) else block
    return zip(silos, kinds, strict=False)


def _largest(run: RecordedRun, silo: SiloFacts) -> Weights | None:
    """None if the silo's part of the model is not here, or if it has no columns to name."""
    folder = RunFolder(run.path)
    path = folder.model.file(silo.name)
    if len(silo.feature_shape) > 1 or not path.is_file():
        return None
    values = np.asarray(read_block(path)[0]["weight"], np.float64)
    names = silo.columns or tuple(f"column {number + 1}" for number in range(len(values)))
    if len(names) != len(values) and folder.preparation_file(silo.name).is_file():
        names = load_preparation(run.path, silo.name).absent.weights(names, len(values))
    kept = [place for place, name in enumerate(names) if name != ONES]
    if len(names) != len(values) or not kept:
        return None
    order = sorted(kept, key=lambda place: -float(np.abs(values[place]).max()))[:MOST_COLUMNS]
    return Weights(silo.name, [names[place] for place in order], values[order], len(kept))


def _caption(own: Weights) -> str:
    shown = len(own.columns)
    return own.silo if shown == own.num_columns else f"{own.silo}: {shown} of {counted(own.num_columns, 'column')}"


def _in_words(run: RecordedRun, first: Weights) -> str:
    unit = "standard deviation" if run.config.get("data", {}).get("standardize") else "unit"
    what = SCORES.get(_loss(run), "the score")
    many = " of each class" if first.values.shape[1] > 1 else ""
    return (
        f"The columns with the largest weights: how much one {unit} more of a column, or a category that is there, "
        f"adds to {what}{many}. All silos have one scale. tdcd export writes all weights, in the columns' own units."
    )


def _loss(run: RecordedRun) -> str:
    """What the settings say, or what fits the labels."""
    named, task = run.config.get("model", {}).get("loss"), _labels(run).get("task")
    return str(named or (fitting(task)[0] if task else ""))


def _outputs(run: RecordedRun) -> list[str]:
    """The classes' names."""
    return [str(name) for name in _labels(run).get("classes", [])]


def _linear_silos(run: RecordedRun) -> list[str]:
    """The silos whose part of an additive model is linear."""
    if run.config.get("model", {}).get("head", "sum") != "sum":
        return []
    return [silo.name for silo, kind in _blocks(run) if kind == "linear" and len(silo.feature_shape) == 1]


def _labels(run: RecordedRun) -> dict[str, Any]:
    """What the labels are, as far as the folder knows."""
    folder = RunFolder(run.path)
    return dict(folder.labels()) if folder.labels_file.is_file() else {}


def _drawn(own: Weights, names: Sequence[str], span: tuple[float, float]) -> Html:
    if len(names) > 1:
        return _cells(own, names, max(map(abs, span)) or 1.0)
    return signed_bars([*zip(own.columns, own.values[:, 0].tolist(), strict=True)], _description(own), span)


def _cells(own: Weights, names: Sequence[str], largest: float) -> Html:
    """Several scores: one shaded cell for each."""
    rows, outputs = own.values.shape
    width = (WIDTH - NAMES) / outputs
    letters = max(2, int(width / 6))
    parts = [
        f'<text class="middle" x="{NAMES + (place + 0.5) * width:.1f}" y="12">{escape(cut(name, letters))}</text>'
        for place, name in enumerate(names)
    ]
    for row, name in enumerate(own.columns):
        y = 18 + row * ROW
        parts.append(row_name(name, y))
        for place, value in enumerate(own.values[row].tolist()):
            kind = "right" if value >= 0 else "wrong"
            number = f"{value:.2f}" if outputs <= 6 else ""
            parts.append(
                f"<g><title>{escape(f'{name}, {names[place]}: {value:.6g}')}</title>"
                f'<rect class="{kind}" x="{NAMES + place * width + 1:.1f}" y="{y + 1}" width="{width - 2:.1f}" '
                f'height="{ROW - 2}" rx="2" fill-opacity="{0.05 + 0.75 * abs(value) / largest:.3f}"/>'
                f'<text class="middle" x="{NAMES + (place + 0.5) * width:.1f}" y="{y + 13.5}">{number}</text></g>'
            )
    return chart(parts, _description(own), height=rows * ROW + 20)


def _description(own: Weights) -> str:
    named = zip(own.columns[:3], own.values, strict=False)
    first = ", ".join(f"{name} {figure(float(values[np.abs(values).argmax()]))}" for name, values in named)
    return f"Largest weights of silo {own.silo}: {first}"


MOST_ROWS = 16
"""A longer table is folded."""


def subsets(run: RecordedRun) -> Iterator[Html]:
    """What ``subsets.json`` says; nothing if it is not there."""
    folder = RunFolder(run.path)
    recorded = folder.subsets()
    try:
        if recorded.get("patterns"):
            yield html.section("Samples by the silos that have them", *_patterns(run, recorded))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder.subsets_file} is damaged: {error!r}") from None
    if not recorded.get("subsets"):
        return
    try:
        parts = [*_parts(run, recorded)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder.subsets_file} is damaged: {error!r}") from None
    yield html.section("What each silo contributes", *parts)


def _patterns(run: RecordedRun, recorded: Mapping[str, Any]) -> Iterator[Html]:
    """The figures of a run with ``data.samples = "all"``."""
    names, split = recorded["silos"], SPLITS[recorded["samples"]]
    yield html.paragraph(
        "Where silos lack a sample, the others' columns and their stand-ins make its score. If figures differ between "
        "these groups, the samples may differ, too: who is known to a partner is rarely random."
    )
    rows = []
    for pattern in recorded["patterns"]:
        words = "all silos" if len(pattern["silos"]) == len(names) else " and ".join(pattern["silos"])
        counts = [f"{pattern['trained']:,}", f"{pattern['samples']:,}"]
        reached = (figure(pattern["metrics"].get(name)) for name in run.metric_names)
        # Runs of earlier versions have no labels there.
        labels = _labels_in_words(pattern.get("labels"))
        rows.append([words, *counts, labels, figure(pattern["loss"]), *reached])
    heads = [f"{split} {name}" for name in ("samples", "labels", "loss", *map(metric_title, run.metric_names))]
    yield html.table(["silos that have the sample", "training samples", *heads], rows, numbers=True)
    if recorded.get("selection"):
        sentence = str(recorded["selection"])
        yield html.paragraph(f"{sentence[:1].upper()}{sentence[1:]}.")


def _parts(run: RecordedRun, recorded: Mapping[str, Any]) -> Iterator[Html]:
    names, split = [str(name) for name in recorded["silos"]], SPLITS[recorded.get("samples", "test")]
    losses: dict[frozenset[str], float | None] = {
        frozenset(subset["silos"]): subset["loss"] for subset in recorded["subsets"]
    }
    together = losses.get(frozenset(names))
    stand_in = "nothing takes its place" if recorded.get("silo_dropout") else "its mean takes its place"
    yield html.paragraph(
        f"The model, after training, on {split} samples of which a silo's columns are missing: {stand_in}."
    )
    gains = [
        (name, loss - together)
        for name in names
        if together is not None and (loss := losses.get(frozenset(names) - {name})) is not None
    ]
    if len(names) > 1 and gains:
        words = ", ".join(f"{name} {figure(gain)}" for name, gain in gains)
        span = min(gain for _, gain in gains), max(gain for _, gain in gains)
        drawing = signed_bars(gains, f"How much larger the loss is without a silo: {words}", span)
        yield html.figures([(drawing, f"How much larger the {split} loss is without a silo")])
    # Runs of earlier versions have no shuffles.
    shuffles = [(" and ".join(entry["silos"]), entry["loss"]) for entry in recorded.get("shuffled", ())]
    if shuffles:
        words = ", ".join(f"{name} {figure(change)}" for name, change in shuffles)
        span = min(change for _, change in shuffles), max(change for _, change in shuffles)
        drawing = signed_bars(shuffles, f"How much larger the loss is with a silo shuffled: {words}", span)
        caption = f"Permutation importance of silos: how much larger the {split} loss is if one's part is shuffled"
        yield html.figures([(drawing, caption)])
    if "interactions" in recorded:
        yield html.paragraph(str(recorded["interactions"]["words"]))
    if "calibration" in recorded:
        yield html.paragraph(str(recorded["calibration"]["words"]))
    table = _table(run, names, recorded["subsets"], split)
    yield table if len(recorded["subsets"]) <= MOST_ROWS else html.folded("The figures of all subsets of silos", table)


def _table(run: RecordedRun, names: Sequence[str], subsets: Sequence[Mapping[str, Any]], split: str) -> Html:
    """All silos first, then with fewer and fewer of them."""
    rows = []
    for subset in sorted(subsets, key=lambda subset: -len(subset["silos"])):
        missing = [name for name in names if name not in subset["silos"]]
        words = "all silos" if not missing else " and ".join(subset["silos"]) or "no silo"
        rows.append(
            [words, figure(subset["loss"]), *(figure(subset["metrics"].get(name)) for name in run.metric_names)]
        )
    heads = [f"{split} {name}" for name in ("loss", *map(metric_title, run.metric_names))]
    return html.table(["silos that are there", *heads], rows, numbers=True)


def settings(run: RecordedRun) -> Html:
    """All settings of a run."""
    chosen: dict[str, list[tuple[str, str]]] = {}
    default: dict[str, list[tuple[str, str]]] = {}
    for section, key, value, usual in _every(run):
        target = default if value == usual else chosen
        target.setdefault(section, []).append((key, _text(value)))
    parts = [_groups(chosen)] if chosen else [html.paragraph("Every setting has its default.")]
    if default:
        count = sum(map(len, default.values()))
        verb = "has its default" if count == 1 else "have their defaults"
        parts.append(html.folded(f"{counted(count, 'more setting')} {verb}", _groups(default)))
    engine = run.federation.engine
    words = [html.paragraph(f"The rounds were simulated by the engine “{engine}”.")] if engine else []
    return html.section("Settings", *words, *parts)


def _groups(groups: Mapping[str, list[tuple[str, str]]]) -> Html:
    return html.grouped_table(["setting", "value"], groups.items())


def _every(run: RecordedRun) -> Iterator[tuple[str, str, Any, Any]]:
    """Section, dotted key, value and default of every setting in the folder."""
    usual = _defaults(run)
    for key, value in run.config.items():
        if isinstance(value, Mapping):
            for name, own in value.items():
                yield key, f"{key}.{name}", own, usual.get(key, {}).get(name)
        elif key == "silos" and isinstance(value, list) and all(isinstance(silo, Mapping) for silo in value):
            for silo in value:
                yield from _of_silo(silo)
        else:
            yield "run", key, value, usual.get(key)


def _of_silo(silo: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    title, fields = f"silo {silo.get('name', '')}", SiloSection.model_fields
    for key, value in silo.items():
        if key != "name":
            yield title, f"silos.{key}", value, fields[key].get_default() if key in fields else None


def _defaults(run: RecordedRun) -> dict[str, Any]:
    """Every key's default; for those that the data decides, what it decides here."""
    usual = Config().model_dump(mode="json")
    first = run.config.get("model", {}).get("block", usual["model"]["block"])
    usual["federation"]["bias"] = (first if isinstance(first, str) else first[0]) == "linear"
    usual["federation"]["strips"] = len(run.federation.silos[0].feature_shape) > 1
    return usual


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def protections(config: Mapping[str, Any]) -> Iterator[Html]:
    """One paragraph, if anything differs from labels everywhere and phi and blocks as they are."""
    federation, exchange = config.get("federation", {}), config.get("exchange", {})
    labels, epsilon = federation.get("labels"), federation.get("label_epsilon")
    sentences = []
    if labels:
        sentences.append(f"Only {labels} has labels; the other silos get slopes of the loss, which reveal labels too.")
        weighted = config.get("train", {}).get("class_weights") is not None
        if weighted or any(silo.get("weight") is not None for silo in config.get("silos", ())):
            sentences.append("They also get what samples weigh.")
    if epsilon is not None:
        sentences.append(f"Labels were randomised with epsilon = {epsilon:g}; all figures are estimates from them.")
    if exchange.get("protect") == "mask":
        whose = f"the hub of {labels} gets" if labels else "hubs get"
        sentences.append(f"Masked: {whose} the sum of the other silos' phi, not each silo's.")
    if exchange.get("epsilon") is not None:
        sentences.append(
            f"Hubs send phi with noise: all rounds and evaluations together spend epsilon = {exchange['epsilon']:g} at "
            f"most of a row's phi by given blocks, with delta = {exchange['delta']:g}. Blocks themselves"
            f"{', and the slopes of ' + labels + ',' if labels else ''} have no noise."
        )
    if exchange.get("protect_blocks"):
        sentences.append("Masked: a hub gets the weighted sum of its clients' blocks, not each block.")
    if exchange.get("block_epsilon") is not None:
        sentences.append(
            f"Every client adds noise to what it changes of a block: all rounds together spend epsilon = "
            f"{exchange['block_epsilon']:g} at most of a client's changes, with delta = {exchange['delta']:g}."
        )
    if sentences:
        yield html.paragraph(" ".join(sentences))


SHOWN_CLASSES = 5
"""The number of classes whose share a cell names."""
NO_LABELS = "–"


def alignment_table(silos: Mapping[str, SiloIds]) -> TextTable:
    """One row per silo: its ids, those that all have, the rows that are left out, its labels before and after."""
    rows = [
        [
            name,
            f"{ids.ids:,}",
            f"{ids.common:,}",
            f"{ids.lost:,} ({ids.lost / max(1, ids.ids):.1%})",
            _labels_in_words(ids.labels_before),
            _labels_in_words(ids.labels_after),
        ]
        for name, ids in silos.items()
    ]
    return TextTable(["silo", "ids", "common ids", "rows lost", "labels before", "labels after"], rows)


def presence_table(presence: "PresenceCounts") -> TextTable:
    """One row per pattern: its ids, how many have a label, and what these labels are like."""
    rows = [
        [
            "all silos" if len(pattern.silos) == presence.num_silos else " and ".join(pattern.silos),
            f"{pattern.ids:,}",
            f"{pattern.labelled:,}",
            _labels_in_words(pattern.labels),
        ]
        for pattern in presence.patterns
    ]
    return TextTable(["silos that have the id", "ids", "with a label", "labels"], rows)


def counts_table(silo: str, num_ids: int, shared: Mapping[str, int]) -> TextTable:
    """One row per other silo: how many of this silo's ids it has, and which share of them."""
    rows = [[other, f"{count:,}", f"{count / max(1, num_ids):.1%}"] for other, count in shared.items()]
    return TextTable(["silo", f"of the {num_ids:,} ids of {silo}", "share"], rows)


def _labels_in_words(figures: LabelFigures | None) -> str:
    if figures is None:
        return NO_LABELS
    if not isinstance(figures, dict):
        return f"mean {figure(figures)}"
    largest = sorted(figures.items(), key=lambda item: -item[1])
    shown = [f"{name} {share:.1%}" for name, share in largest[:SHOWN_CLASSES]]
    return ", ".join(shown) + (", ..." if len(largest) > SHOWN_CLASSES else "")
