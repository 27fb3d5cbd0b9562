"""The page of a comparison, and its numbers as JSON."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.compare.baselines import BASELINES
from tdcd.compare.comparison import Comparison, Contender
from tdcd.compare.scikit_learn import MODELS, JoinedModel
from tdcd.compare.tables import costs, figures, gain, interactions, joined, joining, means, summary, titled
from tdcd.core.words import byte_unit, counted, milliseconds
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import Curve, line_figure
from tdcd.records.history import Record

VARIANTS = {
    "overlap": "A silo steps on phi that the others sent so many rounds ago, and computes while messages travel.",
    "period": "A slow silo makes one update in so many rounds of the others, with a step as many times as large.",
    "phi_bits": "Phi is sent in so many bits per number.",
    "block_bits": "Clients send the change of their block in so many bits per number.",
    "protect": "Hubs learn only the sum of the other silos' phi, in fixed point.",
    "participation": "Only this part of every silo's clients, drawn again each time, answers in a round.",
    "clients": "The rows of every silo are with so many clients.",
    "head": "Scores are made of the sum of phi by a head, which sees columns of several silos together.",
    "protect_blocks": "Hubs learn only the weighted sum of their clients' blocks, in fixed point.",
}
"""What a key makes of TDCD, in words."""
LOSS, HELD_OUT = "training loss", "held-out loss"
AxisMeasure = Callable[[Contender, Record], float]
"""What a curve's horizontal axis counts."""


def write_page(comparison: Comparison, out: Path) -> Path:
    """Write ``compare.html`` and ``compare.json`` into ``out``.

    Returns:
        The page's path.
    """
    (out / "compare.json").write_text(json.dumps(numbers(comparison), indent=1) + "\n")
    facts = comparison.tdcd.run.federation
    page = html.page(
        f"{comparison.tdcd.run.name} · tdcd compare",
        html.header(
            "tdcd compare",
            comparison.tdcd.run.name,
            [
                *comparison.tdcd.run.data,
                counted(len(facts.silos), "silo"),
                counted(facts.num_clients, "client"),
                counted(comparison.tdcd.run.history[-1].iteration, "local step"),
                *([counted(comparison.num_seeds, "seed")] if comparison.num_seeds > 1 else []),
                f"client to hub {comparison.network.client_hub}",
                f"hub to hub {comparison.network.hub_hub}",
            ],
        ),
        html.section("At the end", *_summary(comparison)),
        html.section(
            "What it cost to get there",
            html.paragraph(
                "What is sent includes raw data that an entry needs in another place, once, before the first round. "
                "The last column is the predicted time until the first evaluation at which the training loss was at "
                "most 1% above where TDCD ended with the same seed; never means not within these local steps."
            ),
            html.table(*costs(comparison), numbers=True),
            html.paragraph(
                "Curves end with the first evaluation past what TDCD took. All were evaluated after the same local "
                "steps, so those that communicate after each one have few points here; between points the lines say "
                "nothing. Curves begin where raw data is in its place; those that would begin past TDCD's end are left "
                "out." + _bands(comparison)
            ),
            html.figures(_figures(comparison)),
        ),
        *_joined(comparison),
        *_joining(comparison),
        html.section("Predicted time", *_timing(comparison)),
        html.section("What was compared", html.definitions(_words(comparison))),
    )
    path = out / "compare.html"
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _summary(comparison: Comparison) -> Iterator[html.Html]:
    yield html.paragraph(
        f"All took as many local steps, with the same seed{_step_sizes(comparison)}. The last column says what "
        "an entry needs in another place than TDCD does." + _without_steps(comparison)
    )
    if comparison.num_seeds > 1:
        yield html.paragraph(
            f"Figures are means over {comparison.num_seeds} seeds, ± half of the range between the lowest and the "
            "highest. Each seed splits the rows, starts the blocks and draws the minibatches again, the same for all "
            "algorithms."
        )
    yield html.table(*summary(comparison), numbers=True)
    for sentence in interactions(comparison):
        yield html.paragraph(sentence)


def _without_steps(comparison: Comparison) -> str:
    """A sentence on models that take no local steps, where there are any."""
    labels = " and ".join(model.label for model in comparison.joined)
    return f" Models of scikit-learn, {labels}, take no such steps: they are fitted once." if labels else ""


def _step_sizes(comparison: Comparison) -> str:
    """How they were chosen."""
    if not comparison.is_tuned:
        return ", and with the configuration's step size unless their name says otherwise; --tune tunes it for each"
    tried = ", ".join(f"{size:g}" for size in comparison.tdcd.tried)
    return (
        f". The step size of each is the one of {tried} that had the lowest training loss at the end with the first "
        "seed, unless its name says otherwise: as many tries for each"
    )


def _bands(comparison: Comparison) -> str:
    """A sentence on the bands, where there are any."""
    return " Lines are means over the seeds, bands go from the lowest to the highest." * (comparison.num_seeds > 1)


def _figures(comparison: Comparison) -> Iterator[tuple[html.Html, str]]:
    unit, size = byte_unit(comparison.tdcd.run.history[-1].bytes.total)
    measures: list[tuple[str, str, AxisMeasure]] = [
        ("local steps", "local steps", lambda _, record: record.iteration),
        ("rounds", "communication rounds", lambda _, record: record.round),
        ("bytes sent", f"{unit} sent over all links", lambda _, record: record.bytes.total / size),
        ("predicted time", "predicted seconds", lambda contender, record: contender.seconds(record)),
    ]
    for title, axis, measure in measures:
        end = measure(comparison.tdcd, comparison.tdcd.run.history[-1])
        shown = [
            contender
            for contender in comparison.together
            if measure(contender, contender.run.history[0]) < max(end, 1e-9)
        ]
        yield line_figure([_curve(contender, measure, end) for contender in shown], axis, LOSS), f"Loss over {title}"


def _curve(contender: Contender, measure: AxisMeasure, end: float) -> Curve:
    """The training loss up to the first evaluation past ``end``, where TDCD ended: beyond, it would be a dot."""
    longest = max((run.history for run in contender.runs), key=len)
    x = np.array([measure(contender, record) for record in longest])
    shown = int(np.count_nonzero(x < end)) + 1
    return _over_seeds(contender.title, contender, x, lambda record: record.train_loss, shown)


def _over_seeds(
    label: str,
    contender: Contender,
    x: NDArray[np.float64],
    value: Callable[[Record], float | None],
    shown: int | None = None,
) -> Curve:
    """The mean over the seeds, and a band from the lowest to the highest; nothing where one of them diverged."""
    values = np.full((len(contender.runs), len(x)), np.nan)
    for row, run in zip(values, contender.runs, strict=True):
        row[: len(run.history)] = np.array([value(record) for record in run.history], np.float64)
    center = values.mean(axis=0)
    band = np.stack([center - values.min(axis=0), values.max(axis=0) - center])
    return Curve(label, x[:shown], center[:shown], band[:, :shown])


def _joining(comparison: Comparison) -> Iterator[html.Html]:
    if not comparison.silo_only:
        return
    drawn = [(_silo_only_figure(comparison, LOSS), "Training loss, alone and together")]
    if comparison.tdcd.run.final.test_loss is not None:
        drawn.append((_silo_only_figure(comparison, HELD_OUT), "Held-out loss, alone and together"))
    yield html.section(
        "What joining the federation gains each silo",
        html.paragraph(
            "Alone, a silo trains on its own columns, with its own clients, for as many rounds"
            + ("" if comparison.is_tuned else " and with the same step size, which was not tuned for it")
            + ". A gain is counted so that more is better, for errors too."
        ),
        html.table(*joining(comparison), numbers=True),
        html.figures(drawn),
    )


def _joined(comparison: Comparison) -> Iterator[html.Html]:
    """What scikit-learn makes of the joined table."""
    if not comparison.joined:
        return
    yield html.section(
        "scikit-learn on the joined table",
        html.notice(
            "These models need the raw data and the labels of all silos in one place. A trial, with all tables on one "
            "machine, has that; between real parties it is what TDCD avoids.",
            "alarm",
        ),
        html.paragraph(
            "They train on the same samples and the same prepared features as TDCD, and are judged on the same held-out"
            " samples by the same metrics. Their training loss is the mean loss of the training samples, without a "
            "penalty. Seconds are those of choosing the setting and fitting, and of TDCD those of its simulation; the "
            "time above adds what it takes to move the data over the links."
        ),
        html.table(*joined(comparison), numbers=True),
    )


def _silo_only_figure(comparison: Comparison, axis: str) -> html.Html:
    curves = []
    for contender in (comparison.tdcd, *comparison.silo_only):
        label = "together" if contender.silo is None else f"{contender.silo} alone"
        steps = [record.iteration for record in max((run.history for run in contender.runs), key=len)]
        curves.append(
            _over_seeds(
                label,
                contender,
                np.array(steps, np.float64),
                lambda record: record.train_loss if axis == LOSS else record.test_loss,
            )
        )
    return line_figure(curves, "local steps", axis)


def _timing(comparison: Comparison) -> Iterator[html.Html]:
    rows = [
        [c.title, *map(milliseconds, (c.compute.step_seconds, c.compute.phi_seconds, c.prediction.seconds_per_round))]
        for c in comparison.contenders
    ]
    network = comparison.network
    slower = [f"those of {silo} take {times:g} times as long to compute" for silo, times in comparison.slower.items()]
    yield html.paragraph(
        f"No message was sent: this is a model of links of {network.client_hub} between client and hub and of "
        f"{network.hub_hub} between hubs. In every round a silo's clients get the block and send phi; when the phi of "
        "all other silos has come, they take their local steps and send the block up. Messages carry payload only, "
        "links carry nothing else, and hubs compute in no time."
    )
    yield html.paragraph(
        "Times of a local step and of phi are those of the slowest client"
        + "".join(f"; {each}" for each in slower)
        + "."
    )
    yield html.table(["", "a local step", "phi of a round", "a round in the long run"], rows, numbers=True)


def _words(comparison: Comparison) -> list[tuple[str, str]]:
    labels = [contender.label for contender in comparison.contenders]
    tdcd = "Q local steps between two communications; columns and rows stay where they are."
    variants = [(label.replace(",", ", "), _variant(label)) for label in labels if label.startswith("tdcd,")]
    ran = {label.partition("/")[0] for label in labels}
    baselines = [(name, baseline.words) for name, baseline in BASELINES.items() if name in ran]
    models = [(model.label, MODELS[model.label].words) for model in comparison.joined]
    return [("tdcd", tdcd), *variants, *baselines, *models]


def _variant(label: str) -> str:
    """What a variant of TDCD changes, in words."""
    changes = [change.partition("=") for change in label.split(",")[1:]]
    listed = ", ".join(f"{key} = {value}" for key, _, value in changes)
    kinds = dict.fromkeys(key.partition(".")[0] for key, _, _ in changes)
    return " ".join([f"TDCD with {listed}.", *(VARIANTS[kind] for kind in kinds if kind in VARIANTS)])


def numbers(comparison: Comparison) -> dict[str, Any]:
    """Everything that the page shows, for other programs."""
    together = means(comparison.tdcd)
    return {
        "data": comparison.tdcd.run.federation.name,
        "network": {name: vars(link) for name, link in vars(comparison.network).items()},
        "slower": dict(comparison.slower),
        "interactions": interactions(comparison),
        "runs": {contender.label: _entry(contender, comparison.levels) for contender in comparison.contenders},
        "scikit_learn": {model.label: _model(model) for model in comparison.joined},
        "joining": {
            contender.silo: {
                name: {"alone": alone, "together": together[name], "gain": gain(name, alone, together[name])}
                for name, alone in means(contender).items()
            }
            for contender in comparison.silo_only
        },
    }


def _entry(contender: Contender, levels: Sequence[float]) -> dict[str, Any]:
    """A contender's numbers: what all its seeds share, and one entry per seed."""
    longest = max((run.history for run in contender.runs), key=len)
    return {
        "silo": contender.silo,
        "needs": contender.needs,
        "step_size": contender.step_size,
        "tried": {f"{size:g}": loss if math.isfinite(loss) else None for size, loss in contender.tried.items()},
        "final": means(contender),
        "round_seconds": contender.prediction.seconds_per_round,
        **contender.compute._asdict(),
        "rounds": [record.round for record in longest],
        "local_steps": [record.iteration for record in longest],
        "bytes": [record.bytes.total for record in longest],
        "seconds": [contender.seconds(record) for record in longest],
        "seeds": [
            {
                "seed": run.config["seed"],
                "diverged": run.diverged,
                "final": figures(run.final),
                "to_tdcd_loss": reached and {"round": reached.round, "seconds": contender.seconds(reached)},
                "train_loss": [
                    record.train_loss if math.isfinite(record.train_loss) else None for record in run.history
                ],
            }
            for run, reached in zip(contender.runs, contender.reached(levels), strict=True)
        ],
    }


def _model(model: JoinedModel) -> dict[str, Any]:
    """The numbers of a scikit-learn model: what all its seeds share, and one entry per seed."""
    return {
        "model": model.estimator,
        "raw_bytes": model.moved_bytes,
        "moving_seconds": model.moving,
        "seeds": [
            {"setting": fit.setting, "seconds": fit.seconds, "final": titled(fit.train_loss, fit.test)}
            for fit in model.fits
        ],
    }
