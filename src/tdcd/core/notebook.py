"""What a notebook shows of an object: a sentence and a table, in the notebook's own colours."""

from collections.abc import Iterable, Sequence
from html import escape

from tdcd.core.words import visible

MOST_ROWS = 30
"""More rows are counted, not shown."""
_CELL = "padding: .2em .8em .2em 0; border-bottom: 1px solid #8886;"


def summary_html(title: str, sentence: str, head: Sequence[str] = (), rows: Iterable[Sequence[str]] = ()) -> str:
    """A title, a sentence and a table with numbers on the right, as HTML that loads nothing.

    It sets no colour of text or ground, so that it can be read in light and in dark. What is given is escaped.

    >>> print(summary_html("Model", "of <one> silo"))
    <div><p><strong>Model</strong> of &lt;one&gt; silo</p></div>
    """
    given = [*rows]
    sides = ["right" if _is_number(cell) else "left" for cell in given[0]] if given else []
    top = _row("th", head, sides)
    lines = "".join(_row("td", cells, sides) for cells in given[:MOST_ROWS])
    body = f"<thead>{top}</thead><tbody>{lines}</tbody>"
    table = (
        f'<table style="border-collapse: collapse; color: inherit; font-variant-numeric: tabular-nums;">{body}</table>'
    )
    left_out = f"<p>and {len(given) - MOST_ROWS:,} more</p>" if len(given) > MOST_ROWS else ""
    return f"<div><p><strong>{_safe(title)}</strong> {_safe(sentence)}</p>{table if given else ''}{left_out}</div>"


def _row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    marked = [
        f'<{tag} style="{_CELL} text-align: {side};">{_safe(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    ]
    return f"<tr>{''.join(marked)}</tr>"


def _is_number(cell: str) -> bool:
    return cell.removeprefix("-")[:1].isdigit()


def _safe(text: str) -> str:
    return escape(visible(text))
