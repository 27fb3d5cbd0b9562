"""The pieces of a page. Whatever is not :data:`Html` is escaped on its way in."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape as _escape
from importlib.resources import files
from typing import Literal, NamedTuple, NewType
from xml.etree import ElementTree

from tdcd.core.words import visible

Html = NewType("Html", str)
"""Markup that is safe to put on a page as it is."""
_OWN = files("tdcd.pages.kit")
STYLE, SCRIPT = (_OWN.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
"""The style and script of all pages; a page's policy allows this very script and no other."""


class KeyFigure(NamedTuple):
    """A key figure."""

    label: str
    value: str
    note: str = ""


class Bar(NamedTuple):
    """One bar of a bar list."""

    label: str
    parts: Sequence[tuple[str, float]]
    """Its parts from the left, each a class of the stylesheet and a fraction of the longest bar there can be."""
    text: str
    """Its parts as text, next to the bar."""


def escape(text: str) -> Html:
    """Text as markup.

    >>> escape('<b>"&')
    '&lt;b&gt;&quot;&amp;'
    """
    return Html(_escape(visible(text)))


def join(parts: Iterable[Html]) -> Html:
    """Parts one after the other."""
    return Html("\n".join(parts))


def page(title: str, *parts: Html) -> Html:
    """A whole document in one file: its script is the kit's, and nothing is fetched; its own policy forbids both."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return Html(
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{STYLE}</style>
</head>
<body>
<main>
<button class="print" type="button">Print or save as PDF</button>
{join(parts)}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""
    )


def header(kind: str, title: str, facts: Sequence[str], badge: str = "") -> Html:
    """The top of a page: what it is, what it is about, and a badge where one is needed."""
    mark = f' <span class="badge">{escape(badge)}</span>' if badge else ""
    line = " · ".join(escape(fact) for fact in facts)
    return Html(
        f'<header>\n<p class="kind">{escape(kind)}</p>\n<h1>{escape(title)}{mark}</h1>\n'
        f'<p class="facts">{line}</p>\n</header>'
    )


def notice(text: str, level: Literal["note", "alarm"] = "note") -> Html:
    """A boxed line that must not be missed."""
    return Html(f'<p class="notice {level}" role="note">{escape(text)}</p>')


def key_figures(items: Iterable[KeyFigure]) -> Html:
    """A row of key figures."""
    boxes = [
        f'<div class="card"><dt>{escape(item.label)}</dt><dd>{escape(item.value)}'
        + (f"<small>{escape(item.note)}</small>" if item.note else "")
        + "</dd></div>"
        for item in items
    ]
    return Html('<dl class="cards">\n' + "\n".join(boxes) + "\n</dl>")


def section(title: str, *parts: Html) -> Html:
    """A titled part of the page."""
    return Html(f"<section>\n<h2>{escape(title)}</h2>\n{join(parts)}\n</section>")


def paragraph(text: str) -> Html:
    """Running text."""
    return Html(f"<p>{escape(text)}</p>")


def definitions(items: Iterable[tuple[str, str]]) -> Html:
    """Terms and what they mean."""
    lines = [f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in items]
    return Html('<dl class="definitions">\n' + "\n".join(lines) + "\n</dl>")


def command(line: str) -> Html:
    """Something to type in a shell."""
    return Html(f"<pre><code>{escape(line)}</code></pre>")


def figures(items: Iterable[tuple[Html, str]]) -> Html:
    """A grid of (svg, caption)."""
    boxes = [f"<figure>\n<figcaption>{escape(caption)}</figcaption>\n{svg}\n</figure>" for svg, caption in items]
    return Html('<div class="figures">\n' + "\n".join(boxes) + "\n</div>")


def wide(svg: Html, caption: str = "") -> Html:
    """A drawing over the whole width, which scrolls on a narrow screen."""
    title = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    return Html(f'<figure class="wide">\n{title}{svg}\n</figure>')


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False, prose: bool = False) -> Html:
    """A table whose first column names the row.

    Args:
        numbers: align the other columns to the right.
        prose: the cells are sentences, and share the page's width.
    """
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = [_row(cells) for cells in rows]
    kind = ' class="numbers"' if numbers else ' class="prose"' if prose else ""
    lines = "\n".join(body)
    return Html(
        f'<div class="scroll"><table{kind}>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'
    )


def _row(cells: Sequence[str]) -> str:
    first, *rest = cells
    return f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"


def grouped_table(head: Sequence[str], groups: Iterable[tuple[str, Iterable[Sequence[str]]]]) -> Html:
    """A table whose rows stand below the titles of their groups."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = []
    for title, rows in groups:
        lines = [f'<tr class="group"><th scope="rowgroup" colspan="{len(head)}">{escape(title)}</th></tr>']
        lines += [_row(cells) for cells in rows]
        body.append("<tbody>\n" + "\n".join(lines) + "\n</tbody>")
    lines_of_all = "\n".join(body)
    return Html(f'<div class="scroll"><table>\n<thead><tr>{top}</tr></thead>\n{lines_of_all}\n</table></div>')


def folded(summary: str, *parts: Html) -> Html:
    """Parts that open with a click; printed, they are open."""
    return Html(f"<details>\n<summary>{escape(summary)}</summary>\n{join(parts)}\n</details>")


def bars(items: Iterable[Bar]) -> Html:
    """Amounts as horizontal bars, each with its number."""
    lines = []
    for item in items:
        parts = "".join(f'<span class="{kind}" style="width: {100 * part:.2f}%"></span>' for kind, part in item.parts)
        track = f'<span class="track">{parts}</span>' if item.parts else ""
        lines.append(
            f'<div class="bar"><dt>{escape(item.label)}</dt><dd>{track}<span>{escape(item.text)}</span></dd></div>'
        )
    return Html('<dl class="bars">\n' + "\n".join(lines) + "\n</dl>")


def shares(items: Iterable[tuple[str, float, str]]) -> list[Bar]:
    """Bars of label, amount and words, each as long as its part of the total."""
    rows = [*items]
    total = sum(amount for _, amount, _ in rows) or 1.0
    return [Bar(label, [("work", amount / total)], f"{text} ({amount / total:.0%})") for label, amount, text in rows]


Elements = list["str | list[str | dict[str, str] | Elements]"]
"""Elements as name, attributes and children, and texts between them."""


def tree(markup: Html) -> Elements:
    """Markup as JSON, for the live page, whose policy lets no markup in.

    >>> tree(Html('<p class="a">x <b>y</b></p>'))
    [['p', {'class': 'a'}, ['x ', ['b', {}, ['y']]]]]
    """
    return _children(ElementTree.fromstring(f"<main>{markup}</main>"))


def _children(element: ElementTree.Element) -> Elements:
    children: Elements = [element.text] if element.text and element.text.strip("\n") else []
    for child in element:
        children.append([child.tag, dict(child.attrib), _children(child)])
        if child.tail and child.tail.strip("\n"):
            children.append(child.tail)
    return children
