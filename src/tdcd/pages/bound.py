"""The page that compares a run with the bound of Theorem 1: ``bound.html`` in the run's folder."""

from collections.abc import Iterator
from pathlib import Path

from tdcd.core.words import counted, figure, rounded_down
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import Curve, line_figure
from tdcd.planning.measured_bound import REMEDIES, MeasuredBound
from tdcd.planning.scaled_steps import ScaledBound
from tdcd.planning.tables import bound_constants, scaled_figures, terms
from tdcd.records.run_folder import RecordedRun
from tdcd.theory import bound_figure

READING = [
    (
        "Measured",
        "The squared norm of the objective's gradient over all samples, at the starts of rounds, averaged from the "
        "first one on; with periods, of rounds in which every silo begins one. The theorem averages over every "
        "iteration, most of which only clients see.",
    ),
    (
        "Bound",
        "What the theorem says that average is at most, in expectation over the minibatches: Theorem 1, or that for "
        "reused minibatches, which is about the starts of rounds. Only its first term fades with T.",
    ),
    ("T", "Iterations: rounds times Q local steps."),
]


def write_page(result: MeasuredBound) -> Path:
    """Write ``bound.html`` into the run's folder.

    Returns:
        The page's path.
    """
    settings, federation = result.planned.settings, result.run.federation
    page = html.page(
        f"{result.run.name} · tdcd bound",
        html.header(
            "tdcd bound",
            result.run.name,
            [
                *result.run.data,
                counted(len(federation.silos), "silo"),
                counted(federation.num_clients, "client"),
                f"Q = {settings.local_steps}",
                f"step size {settings.step_size:g}",
                f"{counted(result.iterations, 'iteration')} measured",
            ],
            badge="synthetic data" if "synthetic" in federation.name.lower() else "",
        ),
        html.notice(result.verdict, "note" if result.holds else "alarm"),
        html.key_figures(_cards(result)),
        html.section("Over the iterations", html.figures(_figures(result))),
        html.section("The bound's terms", html.table(*terms(result), numbers=True)),
        html.section("Constants", html.table(*bound_constants(result), numbers=False)),
        *_caveats(result),
        html.section("How to read this", html.definitions(READING)),
    )
    path = result.run.path / "bound.html"
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def write_scaled_page(result: ScaledBound, folder: Path) -> Path:
    """Write ``bound.html`` into the folder of a run whose steps are scaled and steered.

    Returns:
        The page's path.
    """
    run = RecordedRun.read(folder)
    page = html.page(
        f"{run.name} · tdcd bound",
        html.header(
            "tdcd bound",
            run.name,
            [
                *run.data,
                counted(len(run.federation.silos), "silo"),
                counted(run.federation.num_clients, "client"),
                "automatic steps",
            ],
            badge="synthetic data" if "synthetic" in run.federation.name.lower() else "",
        ),
        html.notice(result.verdict, "note"),
        html.section("Scaled steps on this data", html.table(*scaled_figures(result), numbers=False)),
        *(
            [html.section("What to know of these figures", *map(html.paragraph, result.caveats))]
            if result.caveats
            else []
        ),
    )
    path = folder / "bound.html"
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _cards(result: MeasuredBound) -> Iterator[html.KeyFigure]:
    yield html.KeyFigure("measured average", figure(result.average), f"at T = {result.iterations:,}")
    if result.bound is not None:
        yield html.KeyFigure("bound", figure(result.bound.total), f"at T = {result.iterations:,}")
    if not result.missing:
        yield html.KeyFigure("largest step size", rounded_down(result.max_step_size("proof")), "that the proof admits")


def _figures(result: MeasuredBound) -> Iterator[tuple[html.Html, str]]:
    caption, iterations = "What the theorem bounds", result.gradients.iterations
    if result.bound is None:
        measured = Curve("measured at the starts of rounds", iterations, result.gradients.averages)
        yield line_figure([measured], "iterations T", "average squared gradient norm"), caption
        return
    yield bound_figure(result.gradients, result.bound), f"{caption}, and the bound"
    limits = [result.bound.at(int(t)) for t in iterations]
    curves = [Curve(name, iterations, [getattr(limit, name) for limit in limits]) for name in REMEDIES]
    yield line_figure(curves, "iterations T", "term of the bound"), "The bound's three terms"


def _caveats(result: MeasuredBound) -> Iterator[html.Html]:
    if result.caveats:
        yield html.section("Where this run departs from the theorem", *map(html.paragraph, result.caveats))
