"""The part of a report about time: who worked and who waited, and how old the phi is that a silo uses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from tdcd.core.words import are, counted, duration
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import cut
from tdcd.pages.kit.html import Html, escape
from tdcd.records.run_folder import RecordedRun
from tdcd.records.timeline import TIMELINE, Span, Timeline

MOST_BARS = 128
"""The most bars of one lane; of more spans, neighbours are drawn as one."""

# The kit's charts are curves and bars over numbers. Lanes of stacked bars over the time of day, and a grid of ages, are
# drawn here alone. Lengths are in the drawing's own units; the page scales it.
_WIDTH, _LEFT, _RIGHT = 960, 160, 22
_LEGEND, _BAR, _LANE, _AXIS = 34, 44, 84, 34
_MARK_GAP, _LETTERS = 76, 18
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True)
class Lane:
    """A silo's time."""

    silo: str
    timeline: Timeline
    """With at least one span of some length."""
    note: str = ""
    """A few words below its name."""

    @property
    def waited(self) -> float:
        """Seconds, for whomever."""
        return sum(self.timeline.waited.values())

    @property
    def percent_worked(self) -> int:
        """Per cent of the time in which the hub ran that it worked."""
        return round(100 * self.timeline.worked / (self.timeline.worked + self.waited))

    def in_words(self) -> str:
        """A sentence such as ``lab worked 71 % of the time and waited 29 % for clinic``."""
        total = self.timeline.worked + self.waited
        parts = {party: round(100 * seconds / total) for party, seconds in self.timeline.waited.items()}
        shown = [(_party(party, self.silo), percent) for party, percent in parts.items() if percent][:3]
        if not shown:
            return f"{self.silo} worked all of the time"
        words = f"{self.silo} worked {self.percent_worked} % of the time and waited {100 - self.percent_worked} %"
        if len(shown) == 1:
            return f"{words} for {shown[0][0]}"
        return f"{words}, most of it for {shown[0][0]} ({', '.join(f'{name} {part} %' for name, part in shown)})"


def _party(name: str, silo: str) -> str:
    """Another silo's hub is the silo; a client of one's own is one's own."""
    if name.startswith("hub."):
        return name.removeprefix("hub.")
    return f"its own client {name.removeprefix(f'client.{silo}.')}"


def timeline_svg(lanes: Sequence[Lane]) -> Html:
    """Over time, which part of it each silo worked (below) and waited (above); the rounds stand under each lane."""
    begin = min(lane.timeline.spans[0].start for lane in lanes)
    end = max(lane.timeline.end for lane in lanes)
    scale = _Scale(begin, end)
    bottom = _LEGEND + len(lanes) * _LANE
    words = "; ".join(lane.in_words() for lane in lanes)
    parts = [_legend_svg(any(_has_gaps(lane.timeline) for lane in lanes)), _axis_svg(scale, bottom)]
    parts += [_lane_svg(lane, scale, _LEGEND + index * _LANE) for index, lane in enumerate(lanes)]
    body = "\n".join(parts)
    return Html(
        f'<svg class="timeline" role="img" aria-label="{escape(f"Work and waiting over time: {words}")}" '
        f'viewBox="0 0 {_WIDTH} {bottom + _AXIS}">\n{body}\n</svg>'
    )


@dataclass(frozen=True)
class _Scale:
    begin: float
    end: float

    def x(self, when: float) -> float:
        return _LEFT + (when - self.begin) / (self.end - self.begin) * (_WIDTH - _LEFT - _RIGHT)


def _has_gaps(timeline: Timeline) -> bool:
    """Whether the hub was away for more than can be overlooked."""
    length = timeline.end - timeline.spans[0].start
    return length - timeline.worked - sum(timeline.waited.values()) > 0.005 * length


def _legend_svg(has_gaps: bool) -> str:
    entries = [("work", "worked"), ("wait", "waited for others"), *([("away", "not running")] if has_gaps else [])]
    return "".join(
        f'<rect class="{kind}" x="{_LEFT + index * 150}" y="4" width="12" height="12" rx="2"/>'
        f'<text x="{_LEFT + index * 150 + 18}" y="14">{text}</text>'
        for index, (kind, text) in enumerate(entries)
    )


def _axis_svg(scale: _Scale, bottom: float) -> str:
    """Time since the first round began, with lines through all lanes."""
    length = scale.end - scale.begin
    step = _time_step(length / 8)
    lines = []
    for index in range(int(length / step) + 1):
        x = scale.x(scale.begin + index * step)
        lines.append(
            f'<path class="grid" d="M{x:.1f} {_LEGEND - 6}V{bottom}"/>'
            f'<text class="tick" x="{x:.1f}" y="{bottom + 14}">{_time(index * step, step)}</text>'
        )
    lines.append(f'<text class="tick" x="{(_LEFT + _WIDTH - _RIGHT) / 2:g}" y="{bottom + 30}">time</text>')
    return "\n".join(lines)


def _time_step(least: float) -> float:
    """A round number of seconds, minutes or hours.

    >>> _time_step(0.03), _time_step(4), _time_step(70), _time_step(200_000)
    (0.05, 5, 120, 259200)
    """
    if least < 1:
        power = 1.0
        while power / 10 >= least:
            power /= 10
        return next(round(power * part, 12) for part in (0.1, 0.2, 0.5, 1.0) if power * part >= least)
    days = 86400 * -int(-least // 86400)
    return next((step for step in _TIME_STEPS if step >= least), days)


def _time(seconds: float, step: float) -> str:
    """A place on the time axis in the unit of its ``step``.

    >>> _time(0.15, 0.05), _time(90, 30), _time(5400, 1800), _time(172800, 86400)
    ('0.15 s', '90 s', '90 min', '2 d')
    """
    unit, size = next((unit, size) for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 0)) if step >= size)
    return f"{seconds / (size or 1):.6g} {unit}"


def _lane_svg(lane: Lane, scale: _Scale, top: float) -> str:
    spans = _drawn(lane.timeline.spans)
    low, high = scale.x(spans[0].start), scale.x(spans[-1].end)
    return "\n".join(
        [
            f"<g><title>{escape(lane.in_words())}</title>",
            f'<text class="name" x="0" y="{top + 16}">{escape(cut(lane.silo, _LETTERS))}</text>',
            f'<text x="0" y="{top + 33}">worked {lane.percent_worked} %</text>',
            f'<text class="note" x="0" y="{top + 48}">{escape(lane.note)}</text></g>',
            f'<rect class="away" x="{low:.2f}" y="{top}" width="{high - low:.2f}" height="{_BAR}"/>',
            *(_bar_svg(span, lane.silo, scale, top) for span in spans),
            _rounds_svg(lane.timeline.spans, scale, top + _BAR),
        ]
    )


def _drawn(spans: Sequence[Span]) -> list[Span]:
    """No more spans than can be distinguished."""
    per_bar = -(-len(spans) // MOST_BARS)
    return [reduce(Span.joined, spans[index : index + per_bar]) for index in range(0, len(spans), per_bar)]


def _bar_svg(span: Span, silo: str, scale: _Scale, top: float) -> str:
    """Work from below, waiting on it; what is left, the hub was away."""
    waited = sum(span.waited.values())
    length = max(span.end - span.start, span.worked + waited, 1e-9)
    low, high = scale.x(span.start), scale.x(span.end)
    work, wait = _BAR * span.worked / length, _BAR * waited / length
    # A little more than its width, so that no hairline shows between two.
    width, base = high - low + 0.4, top + _BAR
    return (
        f"<g><title>{escape(_span_in_words(span, silo))}</title>"
        f'<path class="work" d="M{low:.2f} {base:.1f}h{width:.2f}v{-work:.1f}h{-width:.2f}z"/>'
        f'<path class="wait" d="M{low:.2f} {base - work:.1f}h{width:.2f}v{-wait:.1f}h{-width:.2f}z"/></g>'
    )


def _span_in_words(span: Span, silo: str) -> str:
    rounds = f"round {span.first:,}" if span.first == span.last else f"rounds {span.first:,} to {span.last:,}"
    waited = [f"waited {duration(time)} for {_party(party, silo)}" for party, time in span.waited.items()]
    return f"{silo}, {rounds}: {', '.join([f'worked {duration(span.worked)}', *waited])}"


def _rounds_svg(spans: Sequence[Span], scale: _Scale, top: float) -> str:
    """Where rounds began: a number at some of them, a short line at all if there are few."""
    rounds = max(span.last for span in spans) + 1
    lines = "".join(f"M{scale.x(when):.1f} {top}v3" for _, when in _starts(spans, 1)) if rounds <= MOST_BARS else ""
    marks, free_from = "", float(_LEFT)
    for index, when in _starts(spans, _round_step(rounds)):
        x = scale.x(when)
        if x >= free_from:
            kind, text = ("mark", f"{index:,}") if marks else ("first mark", f"round {index:,}")
            free_from = x + _MARK_GAP * (0.5 if marks else 1.0)
            lines += f"M{x:.1f} {top}v6"
            marks += f'<text class="{kind}" x="{x:.1f}" y="{top + 17}">{text}</text>'
    return f'<path class="rounds" d="{lines}"/>{marks}'


def _round_step(rounds: int) -> int:
    """How many rounds there are between two that are numbered.

    >>> [_round_step(rounds) for rounds in (5, 20, 60, 100_000)]
    [1, 2, 10, 10000]
    """
    least, power = rounds * _MARK_GAP / (_WIDTH - _LEFT - _RIGHT), 1
    while 5 * power < least:
        power *= 10
    return next(power * part for part in (1, 2, 5) if power * part >= least)


def _starts(spans: Sequence[Span], step: int) -> Iterator[tuple[int, float]]:
    """Every ``step``-th round and when it began first; in a span of several, as if all took equally long."""
    following = 0
    for span in spans:
        while following <= span.last:
            part = max(0, following - span.first) / (span.last + 1 - span.first)
            yield following, span.start + part * (span.end - span.start)
            following += step


if TYPE_CHECKING:
    from tdcd.core.family.overlap import Overlap


MOST_ROUNDS = 40
"""The most rounds that are drawn."""

_MORE = 30
"""Room for a sign that there are more rounds."""
_TOP, _CELL, _ROW = 24, 30, 40


@dataclass(frozen=True)
class Ages:
    """The ages of every silo's phi when the others use it."""

    timing: "Overlap"
    silos: Sequence[str]
    rounds: int
    """Rounds of the run."""

    def of(self, silo: int, round_index: int) -> int:
        """How many rounds old the block of ``silo`` is."""
        return round_index - self.timing.sent_in(silo, round_index)

    def in_words(self, silo: int) -> str:
        """The age in words, such as ``1 to 4 rounds old``; in the first rounds it is younger."""
        youngest, period = self.timing.rounds, self.timing.period(silo)
        oldest = max((self.of(silo, index) for index in range(min(self.rounds, 2 * (youngest + period)))), default=0)
        if not oldest:
            return "of the same round"
        return f"{f'{youngest} to ' * (oldest > youngest)}{counted(oldest, 'round')} old"

    def used_by(self, silo: int) -> str:
        """The age of the others' phi, if it is the same for all of them."""
        ages = {self.in_words(other) for other in range(len(self.silos)) if other != silo}
        return f"uses phi {ages.pop()}" if len(ages) == 1 else ""


def ages_svg(ages: Ages, silos: Sequence[int]) -> Html:
    """One row per silo: the age of its phi in the first rounds, as a number and as a shade."""
    shown = min(ages.rounds, MOST_ROUNDS, max(16, ages.timing.rounds + 3 * ages.timing.longest_period + 1))
    width = (_WIDTH - _LEFT - _MORE) / shown
    oldest = max(ages.of(silo, index) for silo in silos for index in range(shown))
    head = "".join(
        f'<text class="tick" x="{_LEFT + (index + 0.5) * width:.1f}" y="14">{index}</text>' for index in range(shown)
    )
    rows = []
    for row, silo in enumerate(silos):
        top, name = _TOP + row * _ROW, ages.silos[silo]
        rows.append(
            f"<g><title>{escape(f'phi of {name}: {ages.in_words(silo)}')}</title>"
            f'<text class="name" x="0" y="{top + 13}">{escape(cut(name, _LETTERS))}</text>'
            f'<text class="note" x="0" y="{top + 28}">{ages.in_words(silo)}</text>'
        )
        for index in range(shown):
            age, x = ages.of(silo, index), _LEFT + index * width
            rows.append(
                f'<rect class="age" x="{x:.1f}" y="{top}" width="{width - 2:.1f}" height="{_CELL}" rx="3" '
                f'fill-opacity="{0.08 + 0.6 * age / max(oldest, 1):.2f}"/>'
                f'<text class="tick cell" x="{x + width / 2 - 1:.1f}" y="{top + 20}">{age}</text>'
            )
        rows.append("</g>")
    more = f'<text x="{_WIDTH - _MORE + 4}" y="14">…</text>' if shown < ages.rounds else ""
    words = "; ".join(f"{ages.silos[silo]}: {ages.in_words(silo)}" for silo in silos)
    body = "\n".join(rows)
    return Html(
        f'<svg class="timeline" role="img" aria-label="{escape(f"Age of phi in the first rounds: {words}")}" '
        f'viewBox="0 0 {_WIDTH} {_TOP + len(silos) * _ROW}">\n<text x="0" y="14">phi of, in round</text>{head}{more}\n'
        f"{body}\n</svg>"
    )


MOST_LANES = 24
"""The most silos that are drawn: those that waited longest, or that are slowest."""


def time_section(run: RecordedRun) -> Iterator[Html]:
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


def _lanes(run: RecordedRun, ages: Ages | None) -> tuple[list[Lane], list[str]]:
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


def _waiting(run: RecordedRun, lanes: list[Lane]) -> Iterator[Html]:
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


def _ages_in(run: RecordedRun) -> Ages | None:
    """How old phi is in this run; None in Algorithm 1."""
    # It brings JAX, which commands that read no run do not need.
    from tdcd.core.family.overlap import Overlap  # noqa: PLC0415

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
