"""One page that shows a comparison, and its numbers as JSON."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.compare.comparison import Comparison, Contender
from tdcd.compare.tables import figures, gain, joining, summary
from tdcd.config.baselines import BASELINES
from tdcd.records.history import Record
from tdcd.report import html
from tdcd.report.figures import Curve, line_figure
from tdcd.report.units import byte_unit, counted

LOSS, HELD_OUT = "training loss", "held-out loss"
Measure = Callable[[Contender, Record], float]
"""What a curve's horizontal axis counts."""


def write_page(comparison: Comparison, out: Path) -> Path:
    """Write ``compare.html`` and ``compare.json`` into ``out``.

    Returns:
        The page's path.
    """
    (out / "compare.json").write_text(json.dumps(numbers(comparison), indent=1) + "\n")
    facts = comparison.tdcd.run.federation
    page = html.page(
        f"{facts.name} · tdcd compare",
        html.header(
            "tdcd compare",
            facts.name,
            [
                counted(len(facts.silos), "silo"),
                counted(facts.num_clients, "client"),
                counted(comparison.tdcd.run.history[-1].iteration, "local step"),
                f"client to hub {comparison.network.client_hub}",
                f"hub to hub {comparison.network.hub_hub}",
            ],
        ),
        html.section("At the end", *_summary(comparison)),
        html.section(
            "What it cost to get there",
            html.paragraph(
                "Curves end with the first evaluation past what TDCD took. All were evaluated after the same local "
                "steps, so those that communicate after each one have few points here; between points the lines say "
                "nothing."
            ),
            html.figures(_figures(comparison)),
        ),
        *_joining(comparison),
        html.section("Predicted time", *_timing(comparison)),
        html.section("What was compared", html.definitions(_words(comparison))),
    )
    path = out / "compare.html"
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _summary(comparison: Comparison) -> Iterator[html.Html]:
    yield html.paragraph(
        "All took as many local steps, with the same step size and seed. The last column is the predicted time until "
        "the first evaluation at which the training loss was no higher than where TDCD ended; never means not within "
        "these local steps, be it by a hair."
    )
    yield html.table(*summary(comparison), numbers=True)


def _figures(comparison: Comparison) -> Iterator[tuple[html.Html, str]]:
    unit, size = byte_unit(comparison.tdcd.run.history[-1].bytes.total)
    measures: list[tuple[str, str, Measure]] = [
        ("local steps", "local steps", lambda _, record: record.iteration),
        ("rounds", "communication rounds", lambda _, record: record.round),
        ("bytes sent", f"{unit} sent over all links", lambda _, record: record.bytes.total / size),
        ("predicted time", "predicted seconds", lambda contender, record: contender.seconds(record)),
    ]
    for title, axis, measure in measures:
        end = measure(comparison.tdcd, comparison.tdcd.run.history[-1])
        curves = [_curve(contender, measure, end) for contender in comparison.together]
        yield line_figure(curves, axis, LOSS), f"Loss over {title}"


def _curve(contender: Contender, measure: Measure, end: float) -> Curve:
    """The training loss up to the first evaluation past ``end``, where TDCD ended: beyond, it would be a dot."""
    x = np.array([measure(contender, record) for record in contender.run.history])
    shown = np.count_nonzero(x < end) + 1
    return Curve(contender.label, x[:shown], [record.train_loss for record in contender.run.history][:shown])


def _joining(comparison: Comparison) -> Iterator[html.Html]:
    if not comparison.silo_only:
        return
    drawn = [(_silo_only_figure(comparison, LOSS), "Training loss, alone and together")]
    if comparison.tdcd.run.final.test_loss is not None:
        drawn.append((_silo_only_figure(comparison, HELD_OUT), "Held-out loss, alone and together"))
    yield html.section(
        "What joining the federation gains each silo",
        html.paragraph(
            "Alone, a silo trains on its own columns, with its own clients, for as many rounds and with the same step "
            "size, which was not tuned for it. A gain is counted so that more is better, for errors too."
        ),
        html.table(*joining(comparison), numbers=True),
        html.figures(drawn),
    )


def _silo_only_figure(comparison: Comparison, axis: str) -> html.Html:
    curves = []
    for contender in (comparison.tdcd, *comparison.silo_only):
        history = contender.run.history
        losses = [record.train_loss if axis == LOSS else record.test_loss for record in history]
        label = "together" if contender.silo is None else f"{contender.silo} alone"
        curves.append(Curve(label, [record.iteration for record in history], np.array(losses, np.float64)))
    return line_figure(curves, "local steps", axis)


def _timing(comparison: Comparison) -> Iterator[html.Html]:
    rows = [
        [c.label, *map(_milliseconds, (c.compute.step_seconds, c.compute.phi_seconds, c.prediction.seconds_per_round))]
        for c in comparison.contenders
    ]
    network = comparison.network
    yield html.paragraph(
        f"No message was sent: this is a model of links of {network.client_hub} between client and hub and of "
        f"{network.hub_hub} between hubs. A round waits for the slowest client of all: block down, phi up, exchange, "
        "the others' phi down, local steps, block up. Messages carry payload only, links carry nothing else, and hubs "
        "compute in no time."
    )
    yield html.table(["", "a local step", "phi of a round", "a round, with all messages"], rows, numbers=True)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms"


def _words(comparison: Comparison) -> list[tuple[str, str]]:
    ran = {contender.label.partition("/")[0] for contender in comparison.contenders}
    tdcd = "Q local steps between two communications; columns and rows stay where they are."
    return [("tdcd", tdcd), *((name, words) for name, words in BASELINES.items() if name in ran)]


def numbers(comparison: Comparison) -> dict[str, Any]:
    """Everything that the page shows, for other programs."""
    level, together = comparison.tdcd.run.final.train_loss, figures(comparison.tdcd.run.final)

    def entry(contender: Contender) -> dict[str, Any]:
        reached, history = contender.reached(level), contender.run.history
        return {
            "silo": contender.silo,
            "diverged": contender.run.diverged,
            "final": figures(contender.run.final),
            "to_tdcd_loss": reached and {"round": reached.round, "seconds": contender.seconds(reached)},
            "round_seconds": contender.prediction.seconds_per_round,
            **contender.compute._asdict(),
            "rounds": [record.round for record in history],
            "local_steps": [record.iteration for record in history],
            "bytes": [record.bytes.total for record in history],
            "seconds": [contender.seconds(record) for record in history],
            "train_loss": [None if record.diverged else record.train_loss for record in history],
        }

    return {
        "data": comparison.tdcd.run.federation.name,
        "network": {name: vars(link) for name, link in vars(comparison.network).items()},
        "runs": {contender.label: entry(contender) for contender in comparison.contenders},
        "joining": {
            contender.silo: {
                name: {"alone": alone, "together": together[name], "gain": gain(name, alone, together[name])}
                for name, alone in figures(contender.run.final).items()
            }
            for contender in comparison.silo_only
        },
    }
