"""The page of a scorecard: a drawing per column, and the table."""

from collections.abc import Sequence
from itertools import groupby
from math import ceil, sqrt
from pathlib import Path

from tdcd.core.words import counted
from tdcd.pages.kit import html
from tdcd.pages.kit.html import Html, escape
from tdcd.prediction.scorecard import Line, Scorecard
from tdcd.records.files import SHARED, write_durably
from tdcd.tables.encodings import BLANK, Cell, short

# Lengths are in the drawing's own units; the page scales it.
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LETTER = 460, 190, 44, 10, 34, 6.2
_ROW, _LONGEST_NAME = 18, 18
_GAP = 0.12
"""Of a bar's width, between two bars."""
READING = [
    ("Bin", "The values above its first number, and up to its second, which is in it."),
    ("Base", "What an average row of the training data gets. Every row starts from it."),
    ("Bar", "What a row gains or loses by being in this bin or having this level. Bins have about equally many rows."),
    ("Spread", "The standard deviation of a column's bars over the training rows: how much the column decides."),
    ("Share", "Of the training rows. For bins it is an estimate, since nobody has counted the rows' own values."),
]


def write_page(path: Path, card: Scorecard, title: str) -> None:
    """Write the page; a crash leaves what was there before, or all of it."""
    write_durably(path, page(card, title).encode(), SHARED)


def page(card: Scorecard, title: str) -> Html:
    """The whole page."""
    base, *lines = card.lines
    silos = [(silo, list(own)) for silo, own in groupby(lines, lambda line: line.silo)]
    parts = [
        html.header("tdcd scorecard", title, [counted(len(silos), "silo"), counted(len(lines), "line")]),
        html.notice(card.meaning),
    ]
    if card.absent:
        parts.append(html.notice(f"Only a part of the model: that of {', '.join(card.absent)} is elsewhere.", "alarm"))
    parts.append(html.cards([html.Card("Base", f"{base.value:,.4g}", f"{card.unit} of an average row")]))
    for silo, own in silos:
        columns = [list(group) for _, group in groupby(own, lambda line: line.column)]
        ranked = sorted(columns, key=spread, reverse=True)
        parts.append(html.section(silo, html.figures((drawing(each), _caption(each, card.unit)) for each in ranked)))
    head = ["column", "silo", "bin or level", card.unit, "share of rows"]
    cells = [
        [line.column, line.silo, in_words(line.cell), f"{line.value:+,.4g}", f"{line.cell.share:.1%}"] for line in lines
    ]
    parts.append(html.section("All lines", html.table(head, cells)))
    parts.append(html.section("How to read this", html.definitions(READING)))
    return html.page(f"{title} · tdcd scorecard", *parts)


def in_words(cell: Cell) -> str:
    """A bin or level for people.

    >>> in_words(Cell(above=2, up_to=4.5)), in_words(Cell(up_to=2)), in_words(Cell("Rome"))
    ('2 to 4.5', 'up to 2', 'Rome')
    """
    if cell.level:
        return cell.level
    if cell.above is None:
        return "any" if cell.up_to is None else f"up to {short(cell.up_to)}"
    return f"above {short(cell.above)}" if cell.up_to is None else f"{short(cell.above)} to {short(cell.up_to)}"


def spread(lines: Sequence[Line]) -> float:
    """The standard deviation of a column's values over the training rows; their mean there is zero."""
    return sqrt(sum(line.cell.share * line.value**2 for line in lines))


def _caption(lines: Sequence[Line], unit: str) -> str:
    low, high = (pick(line.value for line in lines) for pick in (min, max))
    return f"{lines[0].column}: {low:+.3g} to {high:+.3g} {unit}, spread {spread(lines):.3g}"


def drawing(lines: Sequence[Line]) -> Html:
    """One column's bins as upright bars from left to right, or its levels as lying ones from top to bottom."""
    described = f"{lines[0].column}: " + ", ".join(f"{in_words(line.cell)} {line.value:+.3g}" for line in lines)
    is_binned = not lines[0].cell.level
    body, height = _upright(lines) if is_binned else _lying(lines)
    return Html(
        f'<svg class="plot" role="img" aria-label="{escape(described)}" viewBox="0 0 {_WIDTH} {height}" '
        f'font-size="11">\n{body}\n</svg>'
    )


def _limits(lines: Sequence[Line]) -> tuple[float, float]:
    """The ends of the axis, zero among them."""
    low, high = min(0.0, *(line.value for line in lines)), max(0.0, *(line.value for line in lines))
    return (low, high) if high > low else (-1.0, 1.0)


def _upright(lines: Sequence[Line]) -> tuple[str, int]:
    low, high = _limits(lines)
    room, unit = _HEIGHT - _TOP - _BOTTOM, (_WIDTH - _LEFT) / len(lines)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * room

    bars = [
        _bar(
            line,
            _LEFT + (place + _GAP / 2) * unit,
            min(y(0), y(line.value)),
            (1 - _GAP) * unit,
            abs(y(line.value) - y(0)),
        )
        for place, line in enumerate(lines)
    ]
    ticks = "".join(
        f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:+.3g}</text>'
        for value in (low, high)
        if value
    )
    zero = f'<path d="M{_LEFT} {y(0):.1f}H{_WIDTH}" stroke="currentColor" fill="none"/>'
    labels = _cut_labels([line.cell for line in lines], unit)
    return "\n".join([*bars, zero, ticks, labels]), _HEIGHT


def _cut_labels(cells: Sequence[Cell], unit: float) -> str:
    """The numbers at which bins end, as many as have room, and what the bar of blanks is."""
    cuts = [(place + 1, short(cell.up_to)) for place, cell in enumerate(cells) if cell.up_to is not None]
    is_last_blank = cells[-1].level == BLANK
    y, labels = _HEIGHT - _BOTTOM + 18, []
    if is_last_blank:
        labels.append(f'<text x="{_WIDTH}" y="{y + 13}" text-anchor="end">blank</text>')
    if cuts:
        widest = max(len(text) for _, text in cuts) * _LETTER + 10
        for place, text in cuts[:: max(1, ceil(widest / unit))]:
            x = _LEFT + place * unit
            labels.append(
                f'<path d="M{x:.1f} {y - 16}v4" stroke="currentColor"/>'
                f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{text}</text>'
            )
    return "".join(labels)


def _lying(lines: Sequence[Line]) -> tuple[str, int]:
    low, high = _limits(lines)
    left = max(_LEFT, min(_LONGEST_NAME, max(len(line.cell.level) for line in lines)) * _LETTER + 8)
    room = _WIDTH - left - 50

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * room

    parts = []
    for place, line in enumerate(lines):
        top, name = _TOP + place * _ROW, line.cell.level
        shown = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        parts += [
            f'<text x="{left - 6:.1f}" y="{top + 13}" text-anchor="end">{escape(shown)}</text>',
            _bar(line, min(x(0), x(line.value)), top + 3, abs(x(line.value) - x(0)), _ROW - 5),
            f'<text x="{max(x(0), x(line.value)) + 5:.1f}" y="{top + 13}">{line.value:+.3g}</text>',
        ]
    height = 2 * _TOP + len(lines) * _ROW
    zero = f'<path d="M{x(0):.1f} {_TOP}V{height - _TOP}" stroke="currentColor" fill="none"/>'
    return "\n".join([*parts, zero]), height


def _bar(line: Line, x: float, y: float, width: float, height: float) -> str:
    colour = "var(--accent, #2f7fd6)" if line.value >= 0 else "var(--heat, #d1495b)"
    title = f"{in_words(line.cell)}: {line.value:+.4g}, {line.cell.share:.1%} of rows"
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0.5):.1f}" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>"
    )
