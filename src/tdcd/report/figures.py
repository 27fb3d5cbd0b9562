"""Curves as SVG that goes into a page as it is: text stays text, colours follow the page's light or dark mode."""

import hashlib
import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tdcd.report.html import Html
from tdcd.report.units import figure

COLOURS = ("#2f7fd6", "#e0762f", "#2a9d74", "#a364c9", "#d1495b", "#8c8436", "#4aa3b5", "#7d7d7d")
"""They can be told apart on white and on black."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
"""So that no two of the first curves differ by colour alone."""
FEW_POINTS = 25
"""Curves with at most this many points show each of them."""
LARGEST = 1e100
"""Points beyond are not drawn: a diverging run reaches numbers at which an axis overflows."""

# The page's text colour and surface colour stand in the drawing as these two, which nothing else uses.
_INK, _SURFACE = "#010203", "#fcfdfe"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tdcd",
    "text.parse_math": False,
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _INK,
    "grid.alpha": 0.12,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 3.5,
}


@dataclass(frozen=True)
class Curve:
    """A line of a figure; points that are not finite are left out."""

    label: str
    x: ArrayLike
    y: ArrayLike
    spread: ArrayLike | None = None
    """``[points]``: half the height of a shaded band around each, such as the standard deviation over seeds; or
    ``[2, points]``: how far the band reaches below and above."""

    def points(self) -> NDArray[np.float64]:
        """``[4, points]``: x and y of the points that can be drawn, and how far their band reaches below and above."""
        x, y = np.asarray(self.x, np.float64), np.asarray(self.y, np.float64)
        spread = np.zeros_like(y) if self.spread is None else np.asarray(self.spread, np.float64)
        rows = np.stack([x, y, *np.broadcast_to(spread, (2, len(y)))])
        return rows[:, (np.abs(rows) < LARGEST).all(axis=0)]


def line_figure(
    curves: Sequence[Curve], xlabel: str, ylabel: str, *, log_y: bool | None = None, inset: int | None = None
) -> Html:
    """Curves over a common axis, as an ``<svg>`` element that describes itself to screen readers.

    The same input gives the same bytes.

    Args:
        log_y: a logarithmic y axis; by default when all values are positive and span more than a decade.
        inset: also draw the last ``inset`` points of every curve, enlarged in the figure's corner.
    """
    target = io.StringIO()
    _plot(target, curves, xlabel, ylabel, log_y, inset, format="svg", metadata={"Date": None})
    return _inline(target.getvalue(), _description(curves, xlabel, ylabel))


def save_png(
    path: Path,
    curves: Sequence[Curve],
    xlabel: str,
    ylabel: str,
    *,
    log_y: bool | None = None,
    inset: int | None = None,
    note: str = "",
) -> None:
    """The same drawing as a picture file, black on white; a ``note`` is printed below it."""
    xlabel = f"{xlabel}\n{note}" if note else xlabel
    _plot(path, curves, xlabel, ylabel, log_y, inset, format="png", dpi=110, facecolor="white")


def _plot(
    target: Any,
    curves: Sequence[Curve],
    xlabel: str,
    ylabel: str,
    log_y: bool | None,
    inset: int | None,
    **save: Any,
) -> None:
    # matplotlib takes half a second to import.
    import matplotlib.style  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    lines = [curve.points() for curve in curves]
    logarithmic = spans_decades([line[1] for line in lines]) if log_y is None else log_y
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        # The browser draws the text, with its own fonts.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        drawing = Figure(figsize=(6, 3.6), layout="constrained")
        axes = drawing.add_subplot(xlabel="\n".join(map(_printable, xlabel.splitlines())), ylabel=_printable(ylabel))
        handles = [_draw(axes, line, index) for index, line in enumerate(lines)]
        _scale(axes, logarithmic)
        if all((line[0] % 1 == 0).all() for line in lines):
            axes.locator_params(axis="x", integer=True)
        labels = [_printable(curve.label) for curve in curves]
        columns = max(1, min(len(labels), 80 // (6 + max(map(len, labels), default=1))))
        drawing.legend(handles, labels, loc="outside upper left", ncols=columns)
        if inset is not None:
            _inset(axes, [line[:, -inset:] for line in lines], logarithmic)
        drawing.savefig(target, **save)


def spans_decades(values: Sequence[NDArray[np.float64]]) -> bool:
    """Whether all numbers are positive and the largest is more than ten times the smallest."""
    every = np.concatenate([*values, np.empty(0)])
    return bool(every.size and every.min() > 0 and every.max() > 10 * every.min())


def _draw(axes: Any, line: NDArray[np.float64], index: int) -> Any:
    x, y, below, above = line
    colour, dashes = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
    marker = "o" if len(x) <= FEW_POINTS else ""
    if below.any() or above.any():
        axes.fill_between(x, y - below, y + above, color=colour, alpha=0.2, linewidth=0)
    return axes.plot(x, y, color=colour, linestyle=dashes, marker=marker)[0]


def _scale(axes: Any, logarithmic: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    if not logarithmic:
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    short = high < 1000 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if short else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _tick(value: float) -> str:
    """A round number on a logarithmic axis, powers of ten in short form."""
    if 1e-3 <= value <= 1e3:
        return f"{value:g}"
    digit, _, power = f"{value:.0e}".partition("e")
    raised = str(int(power)).translate(_SUPERSCRIPTS)
    return f"10{raised}" if digit == "1" else f"{digit}×10{raised}"


def _inset(axes: Any, lines: Sequence[NDArray[np.float64]], logarithmic: bool) -> None:
    corner = axes.inset_axes((0.52, 0.5, 0.46, 0.46), facecolor=_SURFACE)
    for index, line in enumerate(lines):
        _draw(corner, line, index)
    _scale(corner, logarithmic)
    corner.tick_params(labelsize=8)


def _printable(text: str) -> str:
    """XML has no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _description(curves: Sequence[Curve], xlabel: str, ylabel: str) -> str:
    ends = [
        f"{curve.label} from {figure(line[1, 0])} to {figure(line[1, -1])}"
        for curve in curves
        if (line := curve.points()).size
    ]
    return _printable(f"{ylabel} against {xlabel}: {', '.join(ends) or 'nothing to draw'}")


def _inline(document: str, description: str) -> Html:
    """The file as an element of a page: no prolog, metadata, namespaces or style sheet, and ids of its own."""
    root = ET.fromstring(document)
    own = hashlib.sha256((document + description).encode()).hexdigest()[:8]
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        if element.tag == "g":
            element.attrib.pop("id", None)
        for name, value in element.attrib.items():
            element.set(name, _own_name(own, name, value))
    for child in [child for child in root if child.tag == "metadata" or child.find("style") is not None]:
        root.remove(child)
    title = ET.Element("title")
    title.text = description
    root.insert(0, title)
    root.attrib = {"class": "plot", "role": "img", "aria-label": description, "viewBox": root.attrib["viewBox"]}
    return Html(ET.tostring(root, encoding="unicode"))


def _own_name(own: str, name: str, value: str) -> str:
    """An attribute's value, with what it calls by id renamed, and colours and fonts left to the page."""
    if name == "id":
        return f"{own}-{value}"
    if name == "href":
        return f"#{own}-{value.removeprefix('#')}"
    value = value.replace("url(#", f"url(#{own}-")
    value = value.replace(_INK, "currentColor").replace(_SURFACE, "var(--surface)")
    return re.sub(r"font-family: [^;]*(; |$)", "", value)
