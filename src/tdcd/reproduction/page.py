"""One page with every figure, the claims beside them and what was chosen."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.report import html
from tdcd.report.figures import Curve, line_figure
from tdcd.report.pictures import save_png
from tdcd.reproduction.claims import SMALL
from tdcd.reproduction.evidence import Claim, marked, summed_up
from tdcd.reproduction.experiment import Axis
from tdcd.reproduction.measured import Measured
from tdcd.reproduction.promises import judge_promises
from tdcd.reproduction.provenance import made_in_words
from tdcd.reproduction.remarks import judge_as_printed, judge_claims
from tdcd.reproduction.results import CurveResult, ExperimentResult, Results, write_results
from tdcd.reproduction.statistics import final, spread_at_equal_steps

LOSS = "training loss of the global model"
AXES: dict[Axis, tuple[str, str]] = {
    "rounds": ("communication rounds", "against communication rounds"),
    "steps": ("local steps", "against local steps"),
    "megabytes": ("MB sent over all links", "against bytes sent"),
    "hub_megabytes": ("MB sent between hubs", "against bytes sent between hubs"),
    "seconds": ("predicted seconds", "against predicted time"),
}
"""What stands at an axis and below a figure."""
INTERVALS = ["to be above zero", "mean", "95 % interval", "seeds"]
HOW_DECIDED = (
    "Each claim comes down to differences that are to be above zero. Curves are compared seed by seed, and the "
    "interval is the 95 % t interval of the mean difference. A claim holds if all intervals are above zero, does not "
    "hold if one is below, and is otherwise not decided at this size. results.json has the losses of every seed, from "
    "which all of this follows; the CSV files have the curves."
)


def write_page(
    out: Path, results: Results, *, assignments: Sequence[str] = (), measured: Measured | None = None
) -> Path:
    """Write ``reproduce.html``, ``results.json``, and a picture and a table of each figure into ``out``.

    Returns:
        The page's path.
    """
    claims, printed, promises = judge_claims(results), judge_as_printed(results), judge_promises(results)
    write_results(out, results, [claim.as_json() for claim in (*claims, *printed, *promises)])
    for name, result in results.items():
        draw(result, out / f"{name}.png")
    stand_ins = {r.data: r.stand_in for r in results.values() if r.stand_in}
    on = {data: ", ".join(name for name, r in results.items() if r.data == data) for data in stand_ins}
    parts = [
        html.header(
            "Reproduction",
            "Multi-tier federated learning for vertically partitioned data",
            ["Das and Patterson, ICASSP 2021", *_sizes(results)],
            badge="stand-in data" if stand_ins else "",
        ),
        *(
            html.notice(f"{on[data]}: run on {data}, not on the paper's data. {why}", "alarm")
            for data, why in stand_ins.items()
        ),
        *_verdicts("What the paper says", "the paper says", claims),
        *_verdicts("The ridge figures with lambda = 1, as the paper prints its objective", "the paper says", printed),
        *_verdicts("What overlap, periods and few bits are for", "it should be so", promises),
        html.paragraph(HOW_DECIDED),
        *(
            _section(result, [c for c in (*claims, *printed, *promises) if c.figure == name])
            for name, result in results.items()
        ),
        *(measured.section() if measured else ()),
        html.section("Run it again", html.command("\n".join(_commands(results, assignments)))),
    ]
    page = out / "reproduce.html"
    page.write_text(html.page("Reproduction of TDCD", *parts), encoding="utf-8")
    return page


def _sizes(results: Results) -> list[str]:
    """Which figures have the paper's size, and which do not."""
    full = [name for name, result in results.items() if result.full_size]
    smaller = [name for name, result in results.items() if not result.full_size]
    if not smaller or not full:
        return ["the paper's size" if full else "smaller than the paper's size; --full runs that"]
    return [f"{', '.join(full)}: the paper's size", f"{', '.join(smaller)}: smaller; --full runs that size"]


def _commands(results: Results, assignments: Sequence[str]) -> list[str]:
    """One for all figures of the paper's size, of which some have no other, and one for the rest."""
    settings = "".join(f" --set {shlex.quote(text)}" for text in assignments)
    smaller = [name for name, result in results.items() if not result.full_size]
    full = [name for name in results if name not in smaller]
    commands = [f"tdcd reproduce {' '.join(full)} --full{settings}"] if full else []
    return commands + ([f"tdcd reproduce {' '.join(smaller)}{settings}"] if smaller else [])


def _verdicts(title: str, says: str, claims: Sequence[Claim]) -> Iterator[html.Html]:
    """A table of claims, where there are any."""
    head = ["figure", says, "verdict", "measured", "how it is checked"]
    rows = [(_place(c), c.sentence, c.verdict, c.measured, c.check) for c in claims]
    if claims:
        yield html.section(f"{title}: {summed_up(claims)}", html.table(head, rows, prose=True))


def _place(claim: Claim) -> str:
    """Where a claim is from, and what must be said about its data."""
    section = f", section {claim.section}" if claim.section else ""
    return marked(f"{claim.figure}{section}", claim.mark)


def draw(result: ExperimentResult, path: Path) -> None:
    """The picture of a figure, over its first axis."""
    axis = result.against[0]
    save_png(path, figure_curves(result, axis), AXES[axis][0], LOSS, inset=result.inset, note=result.mark)


def figure_curves(result: ExperimentResult, x: Axis = "rounds") -> list[Curve]:
    """The curves' means over seeds with their standard deviation as a band."""
    return [
        Curve(curve.label, getattr(curve, x), _mean(curve.losses), _deviation(curve.losses)) for curve in result.curves
    ]


def _section(result: ExperimentResult, claims: Sequence[Claim]) -> html.Html:
    drawn = [(svg, marked(caption, result.mark)) for svg, caption in _figures(result)]
    costs = [axis for axis in result.against if axis not in ("rounds", "steps")]
    head = ["", "final loss", "spread over seeds", *(AXES[axis][0] for axis in costs)]
    head += ["gap to the exact solution"] * (result.optimum is not None)
    data = f"{result.data}, standing in for the paper's" if result.stand_in else result.data
    return html.section(
        result.title,
        html.paragraph(
            f"Data: {data}. {result.size_in_words.capitalize()}. {result.num_seeds} seeds; bands are one standard "
            "deviation."
        ),
        html.figures(drawn),
        *_at_equal_steps(result),
        html.table(head, [_row(result, curve, costs) for curve in result.curves], numbers=True),
        *(html.notice(f"“{c.sentence}” — {c.verdict}: {c.measured}.") for c in claims),
        *_decided_by(claims),
        html.paragraph("Chosen here, where the paper is silent: " + "; ".join(result.chosen) + "."),
        html.paragraph(f"Made with {made_in_words(result.made)}."),
    )


def _at_equal_steps(result: ExperimentResult) -> Iterator[html.Html]:
    """How far the curves lie apart where they are drawn against local steps."""
    steps, apart = spread_at_equal_steps(result) if "steps" in result.against else (0, np.zeros(1))
    if steps:
        coincide = "the curves nearly coincide" if apart.mean() < SMALL else "the curves do not coincide"
        yield html.paragraph(
            f"Against local steps {coincide}: after {steps:,} of them, the most at which all were evaluated, they lie "
            f"within {apart.mean():.2%} of the loss's fall."
        )


def _figures(result: ExperimentResult) -> Iterator[tuple[html.Html, str]]:
    for place, axis in enumerate(result.against):
        label, caption = AXES[axis]
        inset = None if place else result.inset
        yield line_figure(figure_curves(result, axis), label, LOSS, inset=inset), caption
    if result.optimum is not None:
        axis, gap = result.against[0], "gap to the exact solution"
        gaps = [Curve(c.label, getattr(c, axis), _mean(c.losses) - result.optimum) for c in result.curves]
        yield line_figure(gaps, AXES[axis][0], gap, log_y=True), gap
    if result.metric is not None:
        metric = [
            Curve(c.label, c.megabytes, _mean(c.metric), _deviation(c.metric))
            for c in result.curves
            if c.metric is not None
        ]
        yield line_figure(metric, "MB sent over all links", f"held-out {result.metric}"), "held out"


def _decided_by(claims: Sequence[Claim]) -> Iterator[html.Html]:
    if claims:
        yield html.folded("Differences and their intervals", html.table(INTERVALS, _intervals(claims), numbers=True))


def _intervals(claims: Sequence[Claim]) -> Iterator[list[str]]:
    for claim in claims:
        for each in claim.quantities:
            low, high = each.interval[1:]
            yield [each.what, f"{each.interval.mean:.4g}", f"{low:.4g} to {high:.4g}", str(len(each.values))]


def _row(result: ExperimentResult, curve: CurveResult, costs: Sequence[Axis]) -> list[str]:
    ends = final(curve)
    label = marked(curve.label, result.mark)
    if curve.diverged.all():
        return [label, "diverges", *["–"] * (1 + len(costs) + (result.optimum is not None))]
    row = [label, f"{ends.mean():.5f}", f"{ends.std(ddof=1):.1e}"]
    row += [f"{getattr(curve, axis)[-1]:,.3g}" for axis in costs]
    return row if result.optimum is None else [*row, f"{ends.mean() - result.optimum:.2e}"]


def _mean(values: Any) -> Any:
    return np.asarray(values).mean(axis=0)


def _deviation(values: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return np.asarray(values).std(axis=0, ddof=1)
