"""The part of a report about predicted amounts: predicted against true, and what is left over."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tdcd.report import html
from tdcd.report.axes import MOST_DOTS, Axes, chart, legend, robust_range
from tdcd.report.figures import COLOURS
from tdcd.report.held_out import Amounts
from tdcd.report.html import Html
from tdcd.report.measures import errors, grouped
from tdcd.report.units import figure

FEW_VALUES = 20
"""Labels with at most so many different values, such as counts, are compared in groups: points would lie in lines."""


def amount_figures(samples: Amounts, label: str) -> Iterator[Html]:
    """Points, or means of groups; and the errors in words.

    Args:
        label: what is predicted, in words.
    """
    if len(np.unique(samples.true)) <= FEW_VALUES:
        yield html.figures([(_groups(samples, label), "Predicted and true, in ten groups")])
        yield html.paragraph(
            "Samples in groups of about equal size, from the smallest prediction to the largest: the means of what was "
            "predicted and of what was true."
        )
    else:
        against, outside = _against(samples, label)
        residuals, further = _residuals(samples)
        yield html.figures([(against, "Predicted against true"), (residuals, "Residuals")])
        words = ["On the line, predictions are right. A residual is true minus predicted."]
        words += ["The stronger the colour, the more samples."] * (len(samples.true) > MOST_DOTS)
        far = max(outside, further)
        words += [f"{far:,} {'sample lies' if far == 1 else 'samples lie'} outside of the figures."] * bool(far)
        yield html.paragraph(" ".join(words))
    found = errors(samples.true, samples.predicted)
    rows = [
        ["mean absolute error", figure(found.absolute)],
        ["nine of ten errors are at most", figure(found.usual)],
        ["mean of true minus predicted", figure(found.mean)],
    ]
    yield html.table(["error", "in the label's own unit"], rows, numbers=True)


def _against(samples: Amounts, label: str) -> tuple[Html, int]:
    span = robust_range(samples.true, samples.predicted)
    axes = Axes(span, span)
    parts = [axes.frame(f"true {label}", "predicted"), axes.cloud(samples.true, samples.predicted)]
    parts.append(axes.line(span, span, "chance"))
    words = f"Predicted against true {label} of {len(samples.true):,} samples"
    return chart(parts, words), _outside(axes, samples.true, samples.predicted)


def _residuals(samples: Amounts) -> tuple[Html, int]:
    left_over = samples.true - samples.predicted
    axes = Axes(robust_range(samples.predicted), robust_range(left_over, np.zeros(1)))
    parts = [axes.frame("predicted", "true − predicted"), axes.cloud(samples.predicted, left_over)]
    parts.append(axes.line(axes.x, (0, 0), "chance"))
    words = f"Residuals against predictions: mean {figure(float(left_over.mean()))}, "
    return (
        chart(parts, f"{words}standard deviation {figure(float(left_over.std()))}"),
        _outside(axes, samples.predicted, left_over),
    )


def _outside(axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64]) -> int:
    inside = (x >= axes.x[0]) & (x <= axes.x[1]) & (y >= axes.y[0]) & (y <= axes.y[1])
    return int((~inside).sum())


def _groups(samples: Amounts, label: str) -> Html:
    bins = grouped(samples.predicted, samples.true)
    numbers = range(1, len(bins.counts) + 1)
    low, high = robust_range(bins.predicted, bins.true)
    axes = Axes((0.5, len(bins.counts) + 0.5), (min(low, 0.0), high), top=26, height=192)
    parts = [axes.frame("group, by prediction", f"mean {label}")]
    for index, (name, values) in enumerate((("predicted", bins.predicted), ("true", bins.true))):
        parts.append(axes.line(numbers, values.tolist(), colour=COLOURS[index]))
        parts.append(legend(axes.left + 90 * index, 12, COLOURS[index], name))
    ends = f"predicted from {figure(bins.predicted[0])} to {figure(bins.predicted[-1])}"
    words = f"Mean {label} in {len(bins.counts)} groups: {ends}, true from "
    return chart(parts, f"{words}{figure(bins.true[0])} to {figure(bins.true[-1])}")
