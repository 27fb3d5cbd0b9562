"""Numbers with names as bars to the left and to the right of zero."""

from collections.abc import Sequence

from tdcd.report.axes import WIDTH, chart, cut
from tdcd.report.html import Html, escape
from tdcd.report.units import figure

NAMES, ROW = 150, 20
"""The width of the names, and the height of a row."""
_VALUES = 46


def signed_bars(rows: Sequence[tuple[str, float]], description: str, span: tuple[float, float]) -> Html:
    """One bar per row.

    Args:
        span: the smallest and the largest number in all figures of this scale; without negative ones, zero is at the
            left.
    """
    largest = max(map(abs, span)) or 1.0
    zero = (NAMES + WIDTH) / 2 if span[0] < 0 else NAMES
    longest = WIDTH - zero - _VALUES
    parts = [f'<path class="axis" d="M{zero:g} 2V{len(rows) * ROW + 2}"/>']
    for index, (name, value) in enumerate(rows):
        y, length = 2 + index * ROW, abs(value) / largest * longest
        if value >= 0:
            kind, left, anchor, place = "right", zero, "start", zero + length + 5
        else:
            kind, left, anchor, place = "wrong", zero - length, "end", zero - length - 5
        parts.append(
            f"<g><title>{escape(f'{name}: {value:.6g}')}</title>{row_name(name, y)}"
            f'<rect class="{kind}" x="{left:.1f}" y="{y + 3}" width="{length:.1f}" height="{ROW - 6}" rx="2"/>'
            f'<text class="{anchor}" x="{place:.1f}" y="{y + 13.5}">{figure(value)}</text></g>'
        )
    return chart(parts, description, height=len(rows) * ROW + 4)


def row_name(name: str, top: float) -> str:
    """What a row is called, to its left."""
    return f'<text class="end name" x="{NAMES - 8}" y="{top + 13.5}">{escape(cut(name, 24))}</text>'
