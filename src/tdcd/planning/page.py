"""The page that shows a run beside the bound of Theorem 1: ``bound.html`` in the run's folder."""

from collections.abc import Iterator
from pathlib import Path

from tdcd.planning.check import TERMS, Check
from tdcd.planning.tables import checked_constants, terms
from tdcd.report import html
from tdcd.report.figures import Curve, line_figure
from tdcd.report.units import counted, figure, rounded_down
from tdcd.theory import bound_figure

READING = [
    (
        "Measured",
        "The squared norm of the objective's gradient over all samples, at the starts of rounds, averaged from the "
        "first one on. The theorem averages over every iteration, most of which only clients see.",
    ),
    (
        "Bound",
        "What Theorem 1 says that average is at most, in expectation over the minibatches. Only its first term fades "
        "with T.",
    ),
    ("T", "Iterations: rounds times Q local steps."),
]


def write_page(check: Check) -> Path:
    """Write ``bound.html`` into the run's folder.

    Returns:
        The page's path.
    """
    settings, federation = check.planned.settings, check.run.federation
    page = html.page(
        f"{federation.name} · tdcd bound",
        html.header(
            "tdcd bound",
            federation.name,
            [
                counted(len(federation.silos), "silo"),
                counted(federation.num_clients, "client"),
                f"Q = {settings.local_steps}",
                f"step size {settings.step_size:g}",
                f"{check.iterations:,} iterations measured",
            ],
            badge="synthetic data" if "synthetic" in federation.name.lower() else "",
        ),
        html.notice(check.verdict, "note" if check.holds else "alarm"),
        html.cards(_cards(check)),
        html.section("Over the iterations", html.figures(_figures(check))),
        html.section("The bound's terms", html.table(*terms(check), numbers=True)),
        html.section("Constants", html.table(*checked_constants(check), numbers=False)),
        *_caveats(check),
        html.section("How to read this", html.definitions(READING)),
    )
    path = check.run.path / "bound.html"
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _cards(check: Check) -> Iterator[html.Card]:
    yield html.Card("measured average", figure(check.average), f"at T = {check.iterations:,}")
    if check.bound is not None:
        yield html.Card("bound", figure(check.bound.total), f"at T = {check.iterations:,}")
    yield html.Card("largest step size", rounded_down(check.max_step_size("proof")), "that the proof admits")


def _figures(check: Check) -> Iterator[tuple[html.Html, str]]:
    caption, iterations = "What the theorem bounds", check.measured.iterations
    if check.bound is None:
        measured = Curve("measured at the starts of rounds", iterations, check.measured.averages)
        yield line_figure([measured], "iterations T", "average squared gradient norm"), caption
        return
    yield bound_figure(check.measured, check.bound), f"{caption}, and the bound"
    limits = [check.bound.at(int(t)) for t in iterations]
    curves = [Curve(name, iterations, [getattr(limit, name) for limit in limits]) for name in TERMS]
    yield line_figure(curves, "iterations T", "term of the bound"), "The bound's three terms"


def _caveats(check: Check) -> Iterator[html.Html]:
    if check.caveats:
        yield html.section("Where this run departs from the theorem", *map(html.paragraph, check.caveats))
