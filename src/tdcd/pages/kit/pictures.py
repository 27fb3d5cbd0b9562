"""Curves as picture files, for places that do not show SVG."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.pages.kit.chart import COLOURS, DASHES, FEW_POINTS, LINE_WIDTH, Curve, log_tick, printable, spans_decades

STYLE = {
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "black",
    "grid.alpha": 0.12,
    "legend.frameon": False,
    "lines.linewidth": LINE_WIDTH,
    "lines.markersize": 3.5,
}
"""Of all pictures, for matplotlib."""


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
    """The drawing of :func:`~tdcd.pages.kit.chart.line_figure` as a picture, black on white; a ``note`` is below it."""
    # matplotlib takes half a second to import.
    import matplotlib.style  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    lines = [curve.points() for curve in curves]
    logarithmic = spans_decades([line[1] for line in lines]) if log_y is None else log_y
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        # A name in other letters is no reason to complain.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        drawing = Figure(figsize=(6, 3.6), layout="constrained")
        below = "\n".join(printable(words) for words in (xlabel, note) if words)
        axes = drawing.add_subplot(xlabel=below, ylabel=printable(ylabel))
        handles = [_draw(axes, line, index) for index, line in enumerate(lines)]
        _scale(axes, logarithmic)
        if all((line[0] % 1 == 0).all() for line in lines):
            axes.locator_params(axis="x", integer=True)
        labels = [printable(curve.label) for curve in curves]
        columns = max(1, min(len(labels), 80 // (6 + max(map(len, labels), default=1))))
        drawing.legend(handles, labels, loc="outside upper left", ncols=columns)
        if inset is not None:
            _inset(axes, [line[:, -inset:] for line in lines], logarithmic)
        drawing.savefig(path, format="png", dpi=110)


def _draw(axes: Any, line: NDArray[np.float64], index: int) -> Any:
    x, y, below, above = line
    colour, dashes = COLOURS[index % len(COLOURS)], (0, DASHES[index % len(DASHES)] or None)
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
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: log_tick(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _inset(axes: Any, lines: Sequence[NDArray[np.float64]], logarithmic: bool) -> None:
    corner = axes.inset_axes((0.52, 0.5, 0.46, 0.46))
    for index, line in enumerate(lines):
        _draw(corner, line, index)
    _scale(corner, logarithmic)
    corner.tick_params(labelsize=8)
