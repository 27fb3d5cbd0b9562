"""The page of a scorecard: a drawing per column, and the table."""

from collections.abc import Sequence
from itertools import groupby
from math import ceil, sqrt
from pathlib import Path

from tdcd.core.words import counted
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import cut
from tdcd.pages.kit.html import Html, escape
from tdcd.prediction.scorecard import Scorecard, ScorecardLine
from tdcd.records.files import SHARED, write_durably
from tdcd.tables.encodings import BLANK, Cell

# The kit's bars lie in rows, and its style sheet colours them. Here bins stand side by side, with numbers between them,
# and a drawing also goes into pictures without that sheet, so it brings its colours. Lengths are in its own units.
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LETTER = 460, 190, 44, 10, 34, 6.2
_ROW, _LONGEST_NAME = 18, 18
_GAP = 0.12
"""The gap between two bars, as a part of a bar's width."""
READING = [
    ("Bin", "The values above its first number, and up to its second, which is in it."),
    ("Base", "What an average row of the training data gets. Every row starts from it."),
    ("Bar", "What a row gains or loses by being in this bin or having this level. Bins have about equally many rows."),
    ("Spread", "The standard deviation of a column's bars over the training rows: how much the column decides."),
    ("Share", "Of the training rows. For bins it is an estimate, since the rows' own values were not counted."),
]


EVIDENCE = ["rows with labels", "favoured", "WoE", "IV"]
OF_LABELS = [
    (
        "WoE",
        "Weight of evidence: the logarithm of the favoured class's share of rows here over the other class's share.",
    ),
    ("IV", "Information value: the difference of these shares times the WoE; a column's is the sum over its lines."),
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
    parts.append(html.key_figures([html.KeyFigure("Base", f"{base.value:,.4g}", f"{card.unit} of an average row")]))
    for silo, own in silos:
        columns = [list(group) for _, group in groupby(own, lambda line: line.column)]
        ranked = sorted(columns, key=spread, reverse=True)
        parts.append(html.section(silo, html.figures((drawing(each), _caption(each, card.unit)) for each in ranked)))
    if card.has_evidence:
        parts.append(_information(card))
    head = ["column", "silo", "bin or level", card.unit, "share of rows", *EVIDENCE * card.has_evidence]
    cells = [
        [
            line.column,
            line.silo,
            in_words(line.cell),
            f"{line.value:+,.4g}",
            f"{line.cell.share:.1%}",
            *_evidence(line) * card.has_evidence,
        ]
        for line in lines
    ]
    parts.append(html.section("All lines", html.table(head, cells)))
    parts.append(html.section("How to read this", html.definitions([*READING, *OF_LABELS * card.has_evidence])))
    return html.page(f"{title} · tdcd scorecard", *parts)


def _information(card: Scorecard) -> Html:
    rows = [[column, silo, f"{value:.3f}"] for (silo, column), value in card.information.items()]
    without = dict.fromkeys(line.silo for line in card.lines[1:] if line.evidence is None)
    lacking = f" There were no labels for the columns of {', '.join(without)}." if without else ""
    return html.section(
        "Information value",
        html.paragraph(
            "How far each column alone separates the two classes, in the tables that were given: below 0.02 hardly, up "
            f"to 0.1 weakly, up to 0.3 clearly, and above that strongly.{lacking}"
        ),
        html.table(["column", "silo", "information value"], rows),
    )


def _evidence(line: ScorecardLine) -> list[str]:
    evidence = line.evidence
    if evidence is None:
        return ["–"] * len(EVIDENCE)
    rows = evidence.favoured + evidence.others
    shares = [f"{rows:,}", f"{evidence.favoured / rows:.1%}" if rows else "–"]
    return [*shares, "–" if evidence.woe is None else f"{evidence.woe:+.3f}", f"{evidence.iv:.4f}"]


def in_words(cell: Cell) -> str:
    """A bin or level for people.

    >>> in_words(Cell(above=2, up_to=4.5)), in_words(Cell(up_to=2)), in_words(Cell("Rome"))
    ('2 to 4.5', 'up to 2', 'Rome')
    """
    if cell.level:
        return cell.level
    above, up_to = cell.ends
    if above is None:
        return "any" if up_to is None else f"up to {up_to}"
    return f"above {above}" if up_to is None else f"{above} to {up_to}"


def spread(lines: Sequence[ScorecardLine]) -> float:
    """The standard deviation of a column's values over the training rows; their mean there is zero."""
    return sqrt(sum(line.cell.share * line.value**2 for line in lines))


def _caption(lines: Sequence[ScorecardLine], unit: str) -> str:
    low, high = (pick(line.value for line in lines) for pick in (min, max))
    return f"{lines[0].column}: {low:+.3g} to {high:+.3g} {unit}, spread {spread(lines):.3g}"


def drawing(lines: Sequence[ScorecardLine]) -> Html:
    """One column's bins as upright bars from left to right, or its levels as lying ones from top to bottom."""
    described = f"{lines[0].column}: " + ", ".join(f"{in_words(line.cell)} {line.value:+.3g}" for line in lines)
    is_binned = not lines[0].cell.level
    body, height = _upright(lines) if is_binned else _lying(lines)
    return Html(
        f'<svg class="plot" role="img" aria-label="{escape(described)}" viewBox="0 0 {_WIDTH} {height}" '
        f'font-size="11">\n{body}\n</svg>'
    )


def _limits(lines: Sequence[ScorecardLine]) -> tuple[float, float]:
    """The ends of the axis, zero among them."""
    low, high = min(0.0, *(line.value for line in lines)), max(0.0, *(line.value for line in lines))
    return (low, high) if high > low else (-1.0, 1.0)


def _upright(lines: Sequence[ScorecardLine]) -> tuple[str, int]:
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
    cuts = [(place + 1, cell.ends[1]) for place, cell in enumerate(cells) if cell.ends[1] is not None]
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


def _lying(lines: Sequence[ScorecardLine]) -> tuple[str, int]:
    low, high = _limits(lines)
    left = max(_LEFT, min(_LONGEST_NAME, max(len(line.cell.level) for line in lines)) * _LETTER + 8)
    room = _WIDTH - left - 50

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * room

    parts = []
    for place, line in enumerate(lines):
        top, name = _TOP + place * _ROW, line.cell.level
        parts += [
            f'<text x="{left - 6:.1f}" y="{top + 13}" text-anchor="end">{escape(cut(name, _LONGEST_NAME))}</text>',
            _bar(line, min(x(0), x(line.value)), top + 3, abs(x(line.value) - x(0)), _ROW - 5),
            f'<text x="{max(x(0), x(line.value)) + 5:.1f}" y="{top + 13}">{line.value:+.3g}</text>',
        ]
    height = 2 * _TOP + len(lines) * _ROW
    zero = f'<path d="M{x(0):.1f} {_TOP}V{height - _TOP}" stroke="currentColor" fill="none"/>'
    return "\n".join([*parts, zero]), height


def _bar(line: ScorecardLine, x: float, y: float, width: float, height: float) -> str:
    colour = "var(--accent, #2f7fd6)" if line.value >= 0 else "var(--heat, #d1495b)"
    title = f"{in_words(line.cell)}: {line.value:+.4g}, {line.cell.share:.1%} of rows"
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0.5):.1f}" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>"
    )
