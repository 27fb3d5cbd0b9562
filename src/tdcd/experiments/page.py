"""One page with every figure, the claims beside them and what was chosen; and the numbers as JSON."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.experiments.claims import Claim, final, judge_claims
from tdcd.experiments.experiment import Axis
from tdcd.experiments.measured import Measured
from tdcd.experiments.promises import judge_promises
from tdcd.experiments.sweep import CurveResult, ExperimentResult
from tdcd.report import html
from tdcd.report.figures import Curve, line_figure
from tdcd.report.pictures import save_png

LOSS = "training loss of the global model"
AXES: dict[Axis, tuple[str, str]] = {
    "rounds": ("communication rounds", "against communication rounds"),
    "megabytes": ("MB sent over all links", "against bytes sent"),
    "hub_megabytes": ("MB sent between hubs", "against bytes sent between hubs"),
    "seconds": ("predicted seconds", "against predicted time"),
}
"""What stands at an axis and below a figure."""


def write_page(
    results: Mapping[str, ExperimentResult],
    out: Path,
    *,
    full: bool,
    assignments: Sequence[str] = (),
    measured: Measured | None = None,
) -> Path:
    """Write ``reproduce.html``, ``results.json`` and a picture of each figure into ``out``; the page's path."""
    claims, promises = judge_claims(results), judge_promises(results)
    for name, result in results.items():
        axis, inset = result.experiment.against[0], result.experiment.inset
        save_png(out / f"{name}.png", figure_curves(result, axis), AXES[axis][0], LOSS, inset=inset)
    (out / "results.json").write_text(json.dumps(numbers(results, [*claims, *promises], full=full), indent=1) + "\n")
    size = "the paper's size" if full else "default size, smaller than the paper's; --full runs that"
    settings = "".join(f" --set {shlex.quote(text)}" for text in assignments)
    stand_ins = {r.data: r.stand_in for r in results.values() if r.stand_in}
    on = {data: ", ".join(name for name, r in results.items() if r.data == data) for data in stand_ins}
    parts = [
        html.header(
            "Reproduction",
            "Multi-tier federated learning for vertically partitioned data",
            ["Das and Patterson, ICASSP 2021", size],
            badge="stand-in data" if stand_ins else "",
        ),
        *(
            html.notice(f"{on[data]}: run on {data}, not on the paper's data. {why}", "alarm")
            for data, why in stand_ins.items()
        ),
        *_verdicts("Claims of the paper's section 5", "the paper says", claims),
        *_verdicts("What overlap, periods and few bits are for", "it should be so", promises),
        *(_section(result, [c for c in (*claims, *promises) if c.figure == name]) for name, result in results.items()),
        *(measured.section() if measured else ()),
        html.section("Run it again", html.command(f"tdcd reproduce {' '.join(results)}" + " --full" * full + settings)),
    ]
    page = out / "reproduce.html"
    page.write_text(html.page("Reproduction of TDCD", *parts), encoding="utf-8")
    return page


def _verdicts(title: str, says: str, claims: Sequence[Claim]) -> Iterator[html.Html]:
    """A table of claims, where there are any."""
    held = sum(claim.verdict == "holds" for claim in claims)
    head = ["figure", says, "verdict", "measured", "how it is checked"]
    rows = [(c.figure, c.sentence, c.verdict, c.measured, c.check) for c in claims]
    if claims:
        yield html.section(f"{title}: {held} of {len(claims)} hold", html.table(head, rows, prose=True))


def figure_curves(result: ExperimentResult, x: Axis = "rounds") -> list[Curve]:
    """The curves' means over seeds with their standard deviation as a band."""
    return [
        Curve(curve.label, getattr(curve, x), _mean(curve.losses), curve.losses.std(axis=0, ddof=1))
        for curve in result.curves
    ]


def _section(result: ExperimentResult, claims: Sequence[Claim]) -> html.Html:
    experiment = result.experiment
    drawn = []
    for place, axis in enumerate(experiment.against):
        label, caption = AXES[axis]
        inset = None if place else experiment.inset
        drawn.append((line_figure(figure_curves(result, axis), label, LOSS, inset=inset), caption))
    if result.optimum is not None:
        axis, gap = experiment.against[0], "gap to the exact solution"
        gaps = [Curve(c.label, getattr(c, axis), _mean(c.losses) - result.optimum) for c in result.curves]
        drawn.append((line_figure(gaps, AXES[axis][0], gap, log_y=True), gap))
    if experiment.metric is not None:
        metric = [
            Curve(c.label, c.megabytes, _mean(c.metric), c.metric.std(axis=0, ddof=1))
            for c in result.curves
            if c.metric is not None
        ]
        drawn.append((line_figure(metric, "MB sent over all links", f"held-out {experiment.metric}"), "held out"))
    costs = [axis for axis in experiment.against if axis != "rounds"]
    head = ["", "final loss", "spread over seeds", *(AXES[axis][0] for axis in costs)]
    head += ["gap to the exact solution"] * (result.optimum is not None)
    return html.section(
        experiment.title,
        html.paragraph(f"Data: {result.data}. {experiment.num_seeds} seeds; bands are one standard deviation."),
        html.figures(drawn),
        html.table(head, [_row(curve, costs, result.optimum) for curve in result.curves], numbers=True),
        *(html.notice(f"“{c.sentence}” — {c.verdict}: {c.measured}.") for c in claims),
        html.paragraph("Chosen here, where the paper is silent: " + "; ".join(experiment.chosen) + "."),
    )


def _row(curve: CurveResult, costs: Sequence[Axis], optimum: float | None) -> list[str]:
    ends = final(curve)
    row = [curve.label, f"{ends.mean():.5f}", f"{ends.std(ddof=1):.1e}"]
    row += [f"{getattr(curve, axis)[-1]:,.3g}" for axis in costs]
    return row if optimum is None else [*row, f"{ends.mean() - optimum:.2e}"]


def _mean(values: Any) -> Any:
    return np.asarray(values).mean(axis=0)


def numbers(results: Mapping[str, ExperimentResult], claims: Sequence[Claim], *, full: bool) -> dict[str, Any]:
    """Everything that the page shows, for other programs."""
    figures = {
        name: {
            "title": result.experiment.title,
            "data": result.data,
            "stand_in": result.stand_in,
            "chosen": result.experiment.chosen,
            "optimum": result.optimum,
            "curves": [
                {
                    "label": curve.label,
                    "rounds": curve.rounds.tolist(),
                    "megabytes": [round(float(value), 3) for value in curve.megabytes],
                    "hub_megabytes": [round(float(value), 3) for value in curve.hub_megabytes],
                    "seconds": None if curve.seconds is None else [_rounded(value) for value in curve.seconds],
                    "loss_mean": [_rounded(value) for value in _mean(curve.losses)],
                    "loss_deviation": [_rounded(value) for value in curve.losses.std(axis=0, ddof=1)],
                    "metric_by_seed": None if curve.metric is None else [_rounded(v) for v in curve.metric[:, -1]],
                }
                for curve in result.curves
            ],
        }
        for name, result in results.items()
    }
    return {"full_size": full, "claims": [asdict(claim) for claim in claims], "figures": figures}


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
