"""The part of a report about time: who worked and who waited, and how old the phi is that a silo uses."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdcd.records.timeline import TIMELINE, Timeline
from tdcd.report import html
from tdcd.report.figures import Curve, line_figure
from tdcd.report.folder import Run
from tdcd.report.html import Html
from tdcd.report.timeline import Lane, timeline_svg
from tdcd.report.units import counted

if TYPE_CHECKING:
    from tdcd.core.timing import Overlap

MOST_LANES = 24
"""Of more silos, those are drawn that waited longest."""


def time_section(run: Run) -> Iterator[Html]:
    """Lanes where hubs measured their time, and ages where the phi is not this round's; nothing if there is neither."""
    timing = _timing(run)
    lanes, problems = _lanes(run, timing)
    parts = [html.notice(problem) for problem in problems]
    if lanes:
        parts += _waiting(run, lanes)
    if timing is not None:
        parts += _ages(run, timing)
    if parts:
        yield html.section("Work and waiting" if lanes or problems else "Age of phi", *parts)


def _lanes(run: Run, timing: "Overlap | None") -> tuple[list[Lane], list[str]]:
    """One per silo whose hub's timeline is here, the folder's own or a trial's; and what is wrong with others."""
    names = [silo.name for silo in run.federation.silos]
    lanes, problems = [], []
    for path in [run.path / TIMELINE, *(run.path / "silos" / name / TIMELINE for name in names)]:
        if not path.exists():
            continue
        try:
            timeline = Timeline.read(path)
        except ValueError as damage:
            problems.append(str(damage))
            continue
        silo = timeline.hub.removeprefix("hub.")
        if timeline.worked + sum(timeline.waited.values()) > 0 and silo in names:
            lanes.append(Lane(silo, timeline, "" if timing is None else _ages_used(timing, names.index(silo), run)))
    return lanes, problems


def _waiting(run: Run, lanes: list[Lane]) -> Iterator[Html]:
    shown = sorted(sorted(lanes, key=lambda lane: -lane.waited)[:MOST_LANES], key=lanes.index)
    yield html.paragraph(" ".join(f"{lane.in_words()}." for lane in shown))
    yield html.wide(timeline_svg(shown))
    others = ""
    if len(shown) < len(lanes):
        others = f" Of {counted(len(lanes), 'silo')}, these waited longest."
    elif len(lanes) < len(run.federation.silos):
        others = " The hubs of the other silos have their own."
    yield html.paragraph(
        "A lane is one silo's time in training. Blue from below is the part of the time in which its clients or its "
        "hub had something to do, orange the part in which they could only wait for others. The numbers under it are "
        f"rounds.{others}"
    )


def _timing(run: Run) -> "Overlap | None":
    """How rounds overlap and which silos are slow; None in Algorithm 1."""
    # It brings JAX, which commands that read no run do not need.
    from tdcd.core.timing import Overlap  # noqa: PLC0415

    silos = run.config.get("silos", [])
    found = Overlap(run.config.get("train", {}).get("overlap", 0), tuple(silo.get("period", 1) for silo in silos))
    return found if found.rounds or found.longest_period > 1 else None


def _ages_of(timing: "Overlap", silo: int, run: Run) -> str:
    """Of a silo's phi when the others use it, such as ``1 to 4 rounds old``; in the first rounds it is younger."""
    rounds = int(run.config["train"]["rounds"])
    period, youngest = timing.period(silo), timing.rounds
    oldest = max((r - timing.sent_in(silo, r) for r in range(min(rounds, 2 * (youngest + period)))), default=0)
    if not oldest:
        return "of the same round"
    return f"{counted(oldest, 'round')} old" if oldest <= youngest else f"{youngest} to {counted(oldest, 'round')} old"


def _ages_used(timing: "Overlap", silo: int, run: Run) -> str:
    """Of the others' phi that a silo uses, if it is equally old for all of them."""
    ages = {_ages_of(timing, other, run) for other in range(len(run.federation.silos)) if other != silo}
    return f"uses phi {ages.pop()}" if len(ages) == 1 else ""


def _ages(run: Run, timing: "Overlap") -> Iterator[Html]:
    rounds = counted(timing.rounds, "round")
    words = f"Rounds overlap by {timing.rounds}: nobody waits for a silo that is {rounds} behind. " * bool(
        timing.rounds
    )
    yield html.paragraph(
        f"{words}The others step on phi of a silo's earlier blocks; in the first rounds it is younger."
    )
    silos = [silo.name for silo in run.federation.silos]
    rows = [
        [
            name,
            "every round" if timing.period(index) == 1 else f"every {timing.period(index)} rounds",
            _ages_of(timing, index, run),
        ]
        for index, name in enumerate(silos)
    ]
    yield html.table(["silo", "its block moves", "its phi, when the others use it, is"], rows)
    if timing.longest_period > 1:
        yield html.figures([(_age_figure(run, timing, silos), "Age of the phi that others use, in the first rounds")])


def _age_figure(run: Run, timing: "Overlap", silos: list[str]) -> Html:
    """Stairs: the age falls when a silo's new block arrives."""
    shown = range(min(int(run.config["train"]["rounds"]), timing.rounds + 3 * timing.longest_period + 1))
    alike: dict[int, list[str]] = {}
    for index, name in enumerate(silos):
        alike.setdefault(timing.period(index), []).append(name)
    curves = []
    for names in alike.values():
        index = silos.index(names[0])
        ages = [float(round_index - timing.sent_in(index, round_index)) for round_index in shown for _ in range(2)]
        label = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        curves.append(Curve(label, [edge for round_index in shown for edge in (round_index, round_index + 1)], ages))
    return line_figure(curves, "round", "age in rounds", log_y=False)
