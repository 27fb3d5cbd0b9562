"""The part of a report about predicted classes: what is taken for what, ROC, and whether probabilities are right."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tdcd.records.metrics import auc
from tdcd.report import html
from tdcd.report.axes import HEIGHT, WIDTH, Axes, chart, cut, legend, steps
from tdcd.report.figures import COLOURS
from tdcd.report.held_out import Classes
from tdcd.report.html import Html, escape
from tdcd.report.measures import Bins, brier, confusion, grouped, roc
from tdcd.report.units import figure

MOST_CLASSES = 20
"""Of more classes, a table has the pairs that are confused most."""
FEW_CLASSES = 6
"""So many fit into a small figure."""
MOST_PAIRS = 15
MOST_CURVES = 8
MOST_LETTERS = 16
"""Of a class's name beside the matrix."""
_SQUARE = Axes((0, 1), (0, 1), width=206)


def class_figures(samples: Classes) -> Iterator[Html]:
    """The matrix, or the table of pairs; then ROC and calibration."""
    counts = confusion(samples.true, samples.predicted, len(samples.names))
    small = []
    if len(samples.names) <= FEW_CLASSES:
        small.append((_matrix(samples, counts, WIDTH, HEIGHT), "Confusion matrix"))
    elif len(samples.names) <= MOST_CLASSES:
        height = 60 + 36 * len(samples.names)
        yield html.wide(_matrix(samples, counts, 960, height), "Confusion matrix")
    else:
        yield _pairs(samples, counts)
    curves = _curves(samples)
    if curves:
        small.append((_roc(samples, curves), "ROC" if len(samples.names) == 2 else "ROC, each class against the rest"))
    small.append((_calibration(samples), "Calibration"))
    if len(samples.names) == 2:
        small.append((_apart(samples), "Probabilities by true class"))
    yield html.figures(small)
    yield html.paragraph(_in_words(samples, curves))


def _in_words(samples: Classes, curves: list[tuple[int, float]]) -> str:
    words = ["A row of the matrix is a true class: counts, and shares of the row."] * (
        len(samples.names) <= MOST_CLASSES
    )
    if curves and len(samples.names) > len(curves) > 2:
        words.append(f"ROC curves are those of the {len(curves)} classes with the smallest area.")
    what = f"“{samples.names[1]}”" if len(samples.names) == 2 else "the predicted class"
    words.append(
        f"Calibration: samples in ten groups of equal size by the probability of {what}. On the diagonal, it is right "
        "as often as it says."
    )
    return " ".join(words)


def _matrix(samples: Classes, counts: NDArray[np.int64], width: int, height: int) -> Html:
    """One row per true class: every cell has its count, its share of the row, and a shade."""
    names = samples.names
    letter = 7.2 if width > WIDTH else 6.0
    left, top = 34 + letter * min(MOST_LETTERS, max(map(len, names))), 40
    across, down = (width - left) / len(names), (height - top) / len(names)
    middle = top + (height - top) / 2
    parts = [
        f'<text class="middle" x="{left + (width - left) / 2:.1f}" y="11">predicted</text>',
        f'<text class="middle" transform="translate(11 {middle:g}) rotate(-90)">true</text>',
    ]
    for place, name in enumerate(names):
        x, y = left + (place + 0.5) * across, top + (place + 0.5) * down
        parts.append(
            f'<text class="middle name" x="{x:.1f}" y="29">{escape(cut(name, max(3, int(across / letter))))}</text>'
            f'<text class="end name" x="{left - 8:.1f}" y="{y + 4:.1f}">{escape(cut(name, MOST_LETTERS))}</text>'
        )
    parts += [
        _cell(samples, counts, (true, predicted), (left + predicted * across, top + true * down, across, down))
        for true, predicted in np.ndindex(counts.shape)
    ]
    words = f"Confusion matrix of {len(names)} classes: {counts.trace():,} of {counts.sum():,} samples on the diagonal"
    return chart(parts, words, width, height, "matrix" if width > WIDTH else "")


def _cell(
    samples: Classes, counts: NDArray[np.int64], cell: tuple[int, int], box: tuple[float, float, float, float]
) -> str:
    """One cell of the matrix, at left, top, width and height."""
    (true, predicted), (left, top, width, height) = cell, box
    count, total = int(counts[cell]), int(counts[true].sum())
    share = count / max(total, 1)
    kind = "none" if not count else "right" if true == predicted else "wrong"
    words = f"{count:,} of {total:,} samples of {samples.names[true]} are predicted as {samples.names[predicted]}"
    x, y = left + width / 2, top + height / 2
    texts = (
        f'<text class="middle count" x="{x:.1f}" y="{y:.1f}">{count:,}</text>'
        f'<text class="middle share" x="{x:.1f}" y="{y + 11:.1f}">{share:.0%}</text>'
    )
    return (
        f"<g><title>{escape(words)}</title>"
        f'<rect class="{kind}" x="{left + 1:.1f}" y="{top + 1:.1f}" width="{width - 2:.1f}" height="{height - 2:.1f}" '
        f'rx="3" fill-opacity="{0.08 + 0.52 * share:.3f}"/>{texts if count else ""}</g>'
    )


def _pairs(samples: Classes, counts: NDArray[np.int64]) -> Html:
    """The classes that are taken for others most often."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    rows = []
    for true, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True):
        if count := int(wrong[true, predicted]):
            share = f"{count / counts[true].sum():.0%} of its {counts[true].sum():,}"
            rows.append([samples.names[true], samples.names[predicted], f"{count:,}", share])
    if not rows:
        return html.paragraph("All held-out samples are predicted to be of their own class.")
    return html.table(["true class", "predicted class", "samples", "share"], rows)


def _curves(samples: Classes) -> list[tuple[int, float]]:
    """The classes whose ROC is drawn and their areas: of two, the second; of many, those with the smallest areas."""
    classes = [1] if len(samples.names) == 2 else range(len(samples.names))
    areas = [(place, auc(samples.chances[:, place], samples.true == place)) for place in classes]
    known = [(place, area) for place, area in areas if area is not None]
    return sorted(sorted(known, key=lambda one: one[1])[:MOST_CURVES])


def _roc(samples: Classes, curves: list[tuple[int, float]]) -> Html:
    parts = [
        _SQUARE.frame("false positive rate", "true positive rate"),
        _SQUARE.line((0, 1), (0, 1), "chance"),
    ]
    left, words = _SQUARE.left + _SQUARE.width + 16, []
    for index, (place, area) in enumerate(curves):
        false_rate, true_rate = roc(samples.chances[:, place], samples.true == place)
        colour = COLOURS[index % len(COLOURS)]
        parts.append(_SQUARE.line(false_rate.tolist(), true_rate.tolist(), colour=colour))
        name, y = samples.names[place], 36 + 17 * index
        parts.append(legend(left, y, colour, cut(name, 12)))
        parts.append(f'<text class="end" x="{WIDTH}" y="{y:g}">{figure(area)}</text>')
        words.append(f"{name} {figure(area)}")
    parts.append(f'<text class="end" x="{WIDTH}" y="18">area (AUC)</text>')
    return chart(parts, f"ROC curves; areas: {', '.join(words)}")


def _calibration(samples: Classes) -> Html:
    """How often the predicted class is right, or of two classes the second one true, against its probability."""
    if len(samples.names) == 2:
        chances, happened = samples.chances[:, 1], samples.true == 1
        labels = f"predicted probability of {cut(samples.names[1], 14)}", f"share of {cut(samples.names[1], 20)}"
    else:
        chances, happened = samples.chances.max(axis=1), samples.predicted == samples.true
        labels = "probability of the predicted class", "share that is right"
    bins = grouped(chances, happened.astype(np.float64))
    top = max(float(bins.predicted.max()), float(bins.true.max()))
    # Of rare events all that matters lies near zero.
    limit = 1.0 if top > 0.5 else top * 1.1 or 1.0
    axes = Axes((0, limit), (0, limit), width=_SQUARE.width)
    parts = [axes.frame(*labels), axes.line((0, limit), (0, limit), "chance")]
    parts += [axes.line(bins.predicted.tolist(), bins.true.tolist(), colour=COLOURS[0])]
    parts += [axes.dots(bins.predicted.tolist(), bins.true.tolist(), "marks")]
    score = brier(samples.chances, samples.true)
    parts += _beside(axes, chances, limit, bins, score)
    return chart(parts, f"Calibration: Brier score {figure(score)}, expected calibration error {figure(bins.error)}")


def _beside(axes: Axes, chances: NDArray[np.float64], limit: float, bins: Bins, score: float) -> Iterator[str]:
    """The figures, and a small histogram of the probabilities."""
    left = axes.left + axes.width + 24
    for index, (label, value) in enumerate((("Brier score", score), ("calibration error", bins.error))):
        y = 26 + 40 * index
        yield f'<text x="{left:g}" y="{y}">{label}</text>'
        yield f'<text class="large" x="{left:g}" y="{y + 18}">{figure(value)}</text>'
    heights, edges = np.histogram(chances, 20, (0, limit))
    small = Axes((0, limit), (0, float(max(heights.max(), 1))), left, 130, WIDTH - left - 6, 88)
    yield f'<text x="{left:g}" y="120">probabilities</text>'
    yield small.line(*steps(edges.tolist(), heights.tolist()), kind="histogram")
    bottom = small.top + small.height
    yield f'<text x="{left:g}" y="{bottom + 14:g}">0</text>'
    yield f'<text class="end" x="{WIDTH - 6}" y="{bottom + 14:g}">{limit:.2g}</text>'


def _apart(samples: Classes) -> Html:
    """How far two classes are apart: a histogram of the second one's probability for the samples of each."""
    edges = np.linspace(0, 1, 26)
    shares = [
        np.histogram(samples.chances[samples.true == place, 1], edges)[0] / max((samples.true == place).sum(), 1)
        for place in (0, 1)
    ]
    axes = Axes((0, 1), (0, float(max(share.max() for share in shares)) * 1.05 or 1.0), top=26, height=HEIGHT - 68)
    parts = [axes.frame(f"predicted probability of {cut(samples.names[1], 30)}", "share of the class")]
    for place, share in enumerate(shares):
        # The second class has the colour of its curve.
        colour, name = COLOURS[1 - place], samples.names[place]
        parts.append(axes.line(*steps(edges.tolist(), share.tolist()), colour=colour))
        parts.append(legend(axes.left + 160 * place, 12, colour, cut(name, 20)))
    means = [
        float(samples.chances[samples.true == place, 1].mean()) if share.any() else None
        for place, share in enumerate(shares)
    ]
    words = ", ".join(f"{name} {figure(mean)}" for name, mean in zip(samples.names, means, strict=True))
    return chart(parts, f"Mean predicted probability of {samples.names[1]} by true class: {words}")
