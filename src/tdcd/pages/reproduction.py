"""The page with every figure of the paper, the claims about them and what was chosen."""

import math
import shlex
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import (
    COLOURS,
    DASHES,
    FEW_POINTS,
    LINE_WIDTH,
    Curve,
    line_figure,
    log_tick,
    printable,
    spans_decades,
)
from tdcd.reproduction.claims import Claim, comparisons_in_words, differences, judge, marked, summed_up
from tdcd.reproduction.experiment import REMARKS, Axis
from tdcd.reproduction.results import (
    CurveResult,
    ExperimentResult,
    Limit,
    MeasuredCurve,
    MeasuredTimes,
    Results,
    made_in_words,
    write_results,
)
from tdcd.reproduction.statistics import final, spread_at_equal_steps

SMALL = 0.05
"""Curves that end within this fraction of the loss's fall nearly coincide."""
FAR = 10.0
"""A curve that diverged is drawn up to so many times the loss before training."""
LOSS = "training loss of the global model"
GAP = "gap to the exact solution"
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
    out: Path, results: Results, *, assignments: Sequence[str] = (), measured: MeasuredTimes | None = None
) -> Path:
    """Write ``reproduce.html``, ``results.json``, and a picture and a table of each figure into ``out``.

    Returns:
        The page's path.
    """
    claims = judge(results)
    write_results(out, results, [claim.as_json() for claim in claims])
    draw_all(results, out)
    stand_ins = {r.data: r.stand_in for r in results.values() if r.stand_in}
    on = {data: ", ".join(name for name, r in results.items() if r.data == data) for data in stand_ins}
    parts = [
        html.header(
            "Reproduction",
            "Multi-tier federated learning for vertically partitioned data",
            ["Das and Patterson, ICASSP 2021"],
            badge="stand-in data" if stand_ins else "",
        ),
        *(
            html.notice(f"{on[data]}: run on {data}, not on the paper's data. {why}", "alarm")
            for data, why in stand_ins.items()
        ),
        *(part for title, says, some in grouped(claims) for part in _verdicts(title, says, some)),
        html.section("How a verdict is taken", html.paragraph(HOW_DECIDED), *_comparisons(claims)),
        html.section(
            "Where a run of ours and the paper could still differ",
            html.table(["the paper leaves open", "what we assumed"], differences(), prose=True),
        ),
        *(_section(result, [c for c in claims if c.figure == name]) for name, result in results.items()),
        *([_measured(measured)] if measured else ()),
        html.section("Size", *(html.paragraph(f"{line}.") for line in _sizes(results))),
        html.section("Run it again", html.command("\n".join(_commands(results, assignments)))),
    ]
    page = out / "reproduce.html"
    page.write_text(html.page("Reproduction of TDCD", *parts), encoding="utf-8")
    return page


def grouped(claims: Sequence[Claim]) -> Iterator[tuple[str, str, list[Claim]]]:
    """The claims under their headings: whose they are, and on which objective."""
    paper = [claim for claim in claims if claim.section and not claim.as_printed]
    for section in sorted({claim.section for claim in paper}):
        some = [claim for claim in paper if claim.section == section]
        yield f"What the paper says in section {section}", "the paper says", some
    printed = [claim for claim in claims if claim.as_printed]
    if printed:
        yield "The ridge figures with lambda = 1, as the paper prints its objective", "the paper says", printed
    ours = [claim for claim in claims if not claim.section]
    if ours:
        yield "What we say", "it should be so", ours


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


def _comparisons(claims: Sequence[Claim]) -> Iterator[html.Html]:
    if claims:
        yield html.paragraph(comparisons_in_words(claims))


def _verdicts(title: str, says: str, claims: Sequence[Claim]) -> Iterator[html.Html]:
    """A table of claims."""
    head = [says, "verdict", "measured", "how it is checked", "figure"]
    rows = [(c.sentence, c.words, c.measured, c.check, marked(c.figure, c.mark)) for c in claims]
    yield html.section(f"{title}: {summed_up(claims)}", html.table(head, rows, prose=True))


def draw_all(results: Results, out: Path) -> None:
    """The picture of every figure, over its first axis, and that of the largest step sizes.

    Where the error is what is measured, the gap to the exact solution is drawn in place of the loss.
    """
    for name, result in results.items():
        label, path, note = AXES[result.against[0]][0], out / f"{name}.png", result.mark
        if name in REMARKS:
            save_png(path, gap_curves(result), label, GAP, log_y=True, note=note)
        else:
            save_png(path, figure_curves(result, result.against[0]), label, LOSS, inset=result.inset, note=note)
        if result.limits:
            save_limits(out / f"{name}-limits.png", result)


def figure_curves(result: ExperimentResult, x: Axis = "rounds", below: float = 0.0) -> list[Curve]:
    """The curves' means over seeds, less what is ``below``, with their standard deviation as a band."""
    drawn = []
    for curve in result.curves:
        losses, label = curve.losses, curve.label
        if curve.diverged.any():
            with np.errstate(invalid="ignore"):
                losses = np.where(losses < FAR * losses[:, :1], losses, np.nan)
            label = f"{label} ({'' if curve.diverged.all() else 'some '}diverged)"
        drawn.append(Curve(label, getattr(curve, x), _mean(losses) - below, _deviation(losses)))
    return drawn


def gap_curves(result: ExperimentResult) -> list[Curve]:
    """How far the mean loss is above the exact solution, over the first axis."""
    assert result.optimum is not None
    return [replace(curve, spread=None) for curve in figure_curves(result, result.against[0], result.optimum)]


def _section(result: ExperimentResult, claims: Sequence[Claim]) -> html.Html:
    drawn = [(svg, marked(caption, result.mark)) for svg, caption in _figures(result)]
    costs = [axis for axis in result.against if axis not in ("rounds", "steps")]
    head = ["", "final loss", "spread over seeds", *(AXES[axis][0] for axis in costs)]
    head += [GAP] * (result.optimum is not None)
    data = f"{result.data}, standing in for the paper's" if result.stand_in else result.data
    return html.section(
        result.title,
        html.paragraph(
            f"Data: {data}. {result.size_in_words.capitalize()}. {counted(result.num_seeds, 'seed')}; bands are one "
            "standard deviation."
        ),
        html.figures(drawn),
        *_at_equal_steps(result),
        html.table(head, [_row(result, curve, costs) for curve in result.curves], numbers=True),
        *(html.notice(f"“{c.sentence}” — {c.words}: {c.measured}.") for c in claims),
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
        yield line_figure(gap_curves(result), AXES[result.against[0]][0], GAP, log_y=True), GAP
    for silos in dict.fromkeys(limit.silos for limit in result.limits):
        yield (
            line_figure(limit_curves(result, silos), "local steps Q", LIMITS, log_x=True, log_y=True),
            f"{LIMITS}, N = {silos}",
        )
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
            mean, low, high = each.interval
            known = np.isfinite(mean)
            numbers = [f"{mean:.4g}", f"{low:.4g} to {high:.4g}"] if known else [str(each.interval), "–"]
            yield [each.what, *numbers, str(len(each.values)) if len(each.values) > 1 else "exact"]


def _row(result: ExperimentResult, curve: CurveResult, costs: Sequence[Axis]) -> list[str]:
    ends = final(curve)
    label = marked(curve.label, result.mark)
    if curve.diverged.any():
        return [label, "diverged", *["–"] * (1 + len(costs) + (result.optimum is not None))]
    row = [label, f"{ends.mean():.5f}", f"{ends.std(ddof=1):.1e}"]
    row += [f"{getattr(curve, axis)[-1]:,.3g}" for axis in costs]
    return row if result.optimum is None else [*row, f"{ends.mean() - result.optimum:.2e}"]


def _mean(values: Any) -> Any:
    return np.asarray(values).mean(axis=0)


def _deviation(values: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return np.asarray(values).std(axis=0, ddof=1)


def _measured(measured: MeasuredTimes) -> html.Html:
    """Predicted and measured time side by side, and what a round took."""
    drawn = [
        (line_figure([Curve(c.label, getattr(c, x), c.losses) for c in measured.curves], axis, LOSS), axis)
        for x, axis in (("predicted", "predicted seconds"), ("seconds", "measured seconds"))
    ]
    level = measured.curves[0].losses[-1]
    rows = [_measured_row(curve, level) for curve in measured.curves]
    head = ["", "final loss", "a round, predicted", "measured", "to the loss in step, predicted", "measured"]
    return html.section(
        "Measured: real processes with one silo four times slower",
        html.paragraph(measured.about),
        html.figures(drawn),
        html.table(head, rows, numbers=True),
    )


def _measured_row(curve: MeasuredCurve, level: float) -> list[str]:
    times = (curve.predicted, curve.seconds)
    rounds = curve.rounds[-1]
    each = [f"{1e3 * (time[-1] - time[0]) / rounds:,.0f} ms" for time in times]
    until = [f"{seconds:,.1f} s" if math.isfinite(seconds := curve.until(level, time)) else "never" for time in times]
    return [curve.label, f"{curve.losses[-1]:.5f}", *each, *until]


LIMITS = "largest step size"
NAMES = {
    "stable": "stable (spectral radius of the expected round map)",
    "printed": "admitted by the printed condition",
    "proof": "admitted by the condition with N",
}
"""The three limits, by their fields of :class:`Limit`."""


def limits_of(result: ExperimentResult, silos: int) -> list[Limit]:
    """The limits for N = ``silos``, in the order of Q."""
    return sorted((limit for limit in result.limits if limit.silos == silos), key=lambda limit: limit.local_steps)


def limit_curves(result: ExperimentResult, silos: int) -> list[Curve]:
    """The three limits of one N over Q."""
    limits = limits_of(result, silos)
    steps = [limit.local_steps for limit in limits]
    return [Curve(label, steps, [getattr(limit, name) for limit in limits]) for name, label in NAMES.items()]


def save_limits(path: Path, result: ExperimentResult) -> None:
    """One panel for every N; what the printed condition admits and is not stable is shaded."""
    # matplotlib takes half a second to import.
    import matplotlib.style  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    sizes = [*dict.fromkeys(limit.silos for limit in result.limits)]
    with matplotlib.style.context(["default", STYLE]):
        drawing = Figure(figsize=(4.2 * len(sizes), 3.9), layout="constrained")
        panels = drawing.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        for axes, silos in zip(panels, sizes, strict=True):
            handles = _panel(axes, result, silos)
        panels[0].set_ylabel(LIMITS)
        drawing.legend(*handles, loc="outside upper left", ncols=2)
        drawing.savefig(path, format="png", dpi=110)


def _panel(axes: Any, result: ExperimentResult, silos: int) -> tuple[list[Any], list[str]]:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    lines = []
    for index, curve in enumerate(limit_curves(result, silos)):
        style = {"color": COLOURS[index], "linestyle": (0, DASHES[index] or None)}
        lines += axes.plot(curve.x, curve.y, marker="o", **style)
    # Many points, since the two lines cross between two of those that are drawn; straight on logarithmic axes.
    limits = limits_of(result, silos)
    steps = np.geomspace(limits[0].local_steps, limits[-1].local_steps, 400)
    known = np.log([limit.local_steps for limit in limits])
    stable, printed = (
        np.exp(np.interp(np.log(steps), known, np.log([getattr(limit, name) for limit in limits])))
        for name in ("stable", "printed")
    )
    shade = axes.fill_between(steps, stable, printed, where=printed > stable, color=COLOURS[4], alpha=0.35, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="local steps Q", title=f"N = {silos}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    return [*lines, shade], [*NAMES.values(), "admitted by the printed condition, and diverges"]


STYLE = {
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "black",
    "grid.alpha": 0.12,
    "legend.frameon": False,
    "lines.linewidth": LINE_WIDTH,
    "lines.markersize": 3.5,
}
"""The style of all pictures, for matplotlib."""


def save_png(
    path: Path,
    curves: Sequence[Curve],
    xlabel: str,
    ylabel: str,
    *,
    log_y: bool | None = None,
    inset: int | None = None,
    note: str = "",
) -> None:
    """The drawing of :func:`~tdcd.pages.kit.chart.line_figure` as a picture, black on white; a ``note`` is below it."""
    # matplotlib takes half a second to import.
    import matplotlib.style  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    lines = [curve.points() for curve in curves]
    logarithmic = spans_decades([line[1] for line in lines]) if log_y is None else log_y
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        # A name in other letters is no reason to complain.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        drawing = Figure(figsize=(6, 3.6), layout="constrained")
        below = "\n".join(printable(words) for words in (xlabel, note) if words)
        axes = drawing.add_subplot(xlabel=below, ylabel=printable(ylabel))
        handles = [_draw(axes, line, index) for index, line in enumerate(lines)]
        _scale(axes, logarithmic)
        if all((line[0] % 1 == 0).all() for line in lines):
            axes.locator_params(axis="x", integer=True)
        labels = [printable(curve.label) for curve in curves]
        columns = max(1, min(len(labels), 80 // (6 + max(map(len, labels), default=1))))
        drawing.legend(handles, labels, loc="outside upper left", ncols=columns)
        if inset is not None:
            _inset(axes, [line[:, -inset:] for line in lines], logarithmic)
        drawing.savefig(path, format="png", dpi=110)


def _draw(axes: Any, line: NDArray[np.float64], index: int) -> Any:
    x, y, below, above = line
    colour, dashes = COLOURS[index % len(COLOURS)], (0, DASHES[index % len(DASHES)] or None)
    marker = "o" if len(x) <= FEW_POINTS else ""
    if below.any() or above.any():
        axes.fill_between(x, y - below, y + above, color=colour, alpha=0.2, linewidth=0)
    return axes.plot(x, y, color=colour, linestyle=dashes, marker=marker)[0]


def _scale(axes: Any, logarithmic: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    if not logarithmic:
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    short = high < 1000 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if short else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: log_tick(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _inset(axes: Any, lines: Sequence[NDArray[np.float64]], logarithmic: bool) -> None:
    corner = axes.inset_axes((0.52, 0.5, 0.46, 0.46))
    for index, line in enumerate(lines):
        _draw(corner, line, index)
    _scale(corner, logarithmic)
    corner.tick_params(labelsize=8)
