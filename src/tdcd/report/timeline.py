"""Who worked and who waited: one lane per silo over a common time axis, and the totals in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from tdcd.records.timeline import Span, Timeline
from tdcd.report.html import Html, escape
from tdcd.report.units import duration

MOST_BARS = 128
"""Of one lane; of more spans, neighbours are drawn as one."""

# Lengths are in the drawing's own units; the page scales it.
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
        """Of the time in which the hub ran."""
        return round(100 * self.timeline.worked / (self.timeline.worked + self.waited))

    def in_words(self) -> str:
        """Such as ``lab worked 71 % of the time and waited 29 % for clinic``."""
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
    name = lane.silo if len(lane.silo) <= _LETTERS else lane.silo[: _LETTERS - 1] + "…"
    spans = _drawn(lane.timeline.spans)
    low, high = scale.x(spans[0].start), scale.x(spans[-1].end)
    return "\n".join(
        [
            f"<g><title>{escape(lane.in_words())}</title>",
            f'<text class="name" x="0" y="{top + 16}">{escape(name)}</text>',
            f'<text x="0" y="{top + 33}">worked {lane.percent_worked} %</text>',
            f'<text class="note" x="0" y="{top + 48}">{escape(lane.note)}</text></g>',
            f'<rect class="away" x="{low:.2f}" y="{top}" width="{high - low:.2f}" height="{_BAR}"/>',
            *(_bar_svg(span, lane.silo, scale, top) for span in spans),
            _rounds_svg(lane.timeline.spans, scale, top + _BAR),
        ]
    )


def _drawn(spans: Sequence[Span]) -> list[Span]:
    """No more spans than can be told apart."""
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
