"""The part of a report about time: who worked and who waited, and how old the phi is that a silo uses."""

from collections.abc import Iterator

from tdcd.core.words import are
from tdcd.records.timeline import TIMELINE, Timeline
from tdcd.report import html
from tdcd.report.ages import Ages, ages_svg
from tdcd.report.folder import Run
from tdcd.report.html import Html
from tdcd.report.timeline import Lane, timeline_svg
from tdcd.report.units import counted

MOST_LANES = 24
"""Of more silos, those are drawn that waited longest, or that are slowest."""


def time_section(run: Run) -> Iterator[Html]:
    """Lanes where hubs measured their time, and ages where the phi is not this round's; nothing if there is neither."""
    ages = _ages_in(run)
    lanes, problems = _lanes(run, ages)
    parts = [html.notice(problem) for problem in problems]
    if lanes:
        parts += _waiting(run, lanes)
    if ages is not None:
        parts += _ages(ages)
    if parts:
        yield html.section("Work and waiting" if lanes or problems else "Age of phi", *parts)


def _lanes(run: Run, ages: Ages | None) -> tuple[list[Lane], list[str]]:
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
            lanes.append(Lane(silo, timeline, "" if ages is None else ages.used_by(names.index(silo))))
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


def _ages_in(run: Run) -> Ages | None:
    """How old phi is in this run; None in Algorithm 1."""
    # It brings JAX, which commands that read no run do not need.
    from tdcd.core.timing import Overlap  # noqa: PLC0415

    train, silos = run.config.get("train", {}), run.config.get("silos", [])
    timing = Overlap(train.get("overlap", 0), tuple(silo.get("period", 1) for silo in silos))
    if not timing.rounds and timing.longest_period == 1:
        return None
    return Ages(timing, [silo.name for silo in run.federation.silos], train["rounds"])


def _ages(ages: Ages) -> Iterator[Html]:
    timing, every = ages.timing, range(len(ages.silos))
    shown = sorted(sorted(every, key=lambda silo: -timing.period(silo))[:MOST_LANES])
    words = [f"Rounds overlap by {timing.rounds}: a silo waits only for one that is further behind."] * bool(
        timing.rounds
    )
    words += [
        f"{ages.silos[silo]} is slow: its block moves every {timing.period(silo)} rounds."
        for silo in shown
        if timing.period(silo) > 1
    ]
    yield html.paragraph(f"{' '.join(words)} So silos step on phi of the others' earlier blocks:")
    yield html.wide(ages_svg(ages, shown))
    hidden = len(every) - len(shown)
    more = f" {counted(hidden, 'more silo')} {are(hidden)} not drawn." if hidden else ""
    yield html.paragraph(f"The age of each silo's phi when the others use it, in rounds.{more}")
