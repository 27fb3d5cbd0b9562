"""The part of a report about the held-out samples: how good the predictions are, beyond one number."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses.figures import auc
from tdcd.core.words import counted, figure
from tdcd.federation.weights import Numbers
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import COLOURS, HEIGHT, MOST_DOTS, WIDTH, Axes, chart, cut, legend, robust_range, steps
from tdcd.pages.kit.html import Html, escape
from tdcd.records.files import open_plain
from tdcd.records.run_folder import RecordedRun, RunFolder

CHANCE = "probability_"
"""How the columns of probabilities begin; the class's name follows."""


@dataclass(frozen=True, eq=False)
class Amounts:
    """A regression's samples, in the label's own unit."""

    true: NDArray[np.float64]
    """``[m]``."""
    predicted: NDArray[np.float64]
    """``[m]``."""


@dataclass(frozen=True, eq=False)
class Classes:
    """A classifier's samples."""

    names: Sequence[str]
    """The names of the classes, in order; of two, the probability is that of the second."""
    true: NDArray[np.int64]
    """``[m]``: numbers of classes."""
    predicted: NDArray[np.int64]
    """``[m]``."""
    chances: NDArray[np.float64]
    """``[m, classes]``: the probability of every class."""


def read_held_out(path: Path) -> Amounts | Classes | None:
    """The samples in the file; None if there are none, or if their labels were randomised.

    What was predicted for a randomised label says little of the true one, so nothing is made of it.
    """
    try:
        with io.TextIOWrapper(open_plain(path), encoding="utf-8", newline="") as file:
            _, *header = next(reader := csv.reader(file))
            # The id comes first.
            rows = [row[1:] for row in reader]
            columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else {}
    except FileNotFoundError:
        return None
    except (ValueError, StopIteration, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None
    if not columns or "randomised_label" in columns:
        return None
    try:
        return _classes(columns) if any(name.startswith(CHANCE) for name in columns) else _amounts(columns)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None


def _amounts(columns: Mapping[str, Sequence[str]]) -> Amounts:
    return Amounts(np.array(columns["label"], np.float64), np.array(columns["prediction"], np.float64))


def _classes(columns: Mapping[str, Sequence[str]]) -> Classes:
    named = {name.removeprefix(CHANCE): name for name in columns if name.startswith(CHANCE)}
    chances = np.stack([np.array(columns[name], np.float64) for name in named.values()], axis=1)
    names = [*named]
    if len(names) == 1:
        (second,) = names
        others = sorted({*columns["label"], *columns["prediction"]} - {second})
        names = [*(others or [f"not {second}"]), second]
        chances = np.concatenate([1 - chances, chances], axis=1)
    if len(names) != chances.shape[1]:
        raise ValueError(f"there are probabilities of {chances.shape[1]} classes, but {len(names)} classes")
    places = {name: place for place, name in enumerate(names)}
    true, predicted = (np.array([places[name] for name in columns[key]], np.int64) for key in ("label", "prediction"))
    return Classes(names, true, predicted, chances)


BINS = 10
"""The number of groups of calibration and deciles."""


class Bins(NamedTuple):
    """Samples in groups of about equal size, from the smallest prediction to the largest."""

    predicted: Numbers
    """The mean prediction of each group."""
    true: Numbers
    """The mean of what was true."""
    counts: NDArray[np.int64]

    @property
    def error(self) -> float:
        """How far the means are apart, averaged over the samples: of probabilities, the expected calibration error."""
        return float(np.sum(self.counts * np.abs(self.predicted - self.true)) / self.counts.sum())


class Errors(NamedTuple):
    """The errors of predicted amounts, in their unit."""

    mean: float
    """True minus predicted, on average."""
    absolute: float
    """Its size, on average."""
    usual: float
    """Nine of ten errors are at most this large."""


class ScoreRanking(NamedTuple):
    """Samples of two classes from the highest score to the lowest: what every threshold gives."""

    thresholds: Numbers
    """``[t]``: infinity, and the different scores, falling. A sample is predicted to be positive from one on."""
    hits: NDArray[np.int64]
    """``[t]``: positive samples that reach each threshold."""
    misses: NDArray[np.int64]
    """``[t]``: negative samples that reach it."""

    @classmethod
    def of(cls, scores: Numbers, positive: NDArray[np.bool_]) -> "ScoreRanking":
        """The ranking of these samples."""
        order = np.argsort(-scores, kind="stable")
        hits = np.cumsum(positive[order])
        # Samples with the same score cross a threshold together.
        ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
        thresholds = np.append(np.inf, scores[order][ends])
        return cls(thresholds, np.append(0, hits[ends]), np.append(0, ends + 1 - hits[ends]))

    @property
    def gaps(self) -> Numbers:
        """``[t]``: true positive rate minus false positive rate, which is Youden's J."""
        gaps: Numbers = self.hits / max(self.hits[-1], 1) - self.misses / max(self.misses[-1], 1)
        return gaps

    @property
    def ks(self) -> float:
        """The Kolmogorov-Smirnov statistic: the largest distance between the two classes' distributions of scores."""
        return float(np.abs(self.gaps).max())

    @property
    def f1(self) -> Numbers:
        """``[t]``: the harmonic mean of precision and recall."""
        f1: Numbers = 2 * self.hits / (self.hits + self.misses + self.hits[-1])
        return f1

    def costs(self, missed: float) -> Numbers:
        """``[t]``: the cost of all errors, in false alarms, where a missed positive costs ``missed`` of them."""
        costs: Numbers = missed * (self.hits[-1] - self.hits) + self.misses
        return costs

    def confusion(self, place: int) -> NDArray[np.int64]:
        """``[true, predicted]``: the confusion matrix at the threshold at this place."""
        hits, misses = self.hits[place], self.misses[place]
        return np.array([[self.misses[-1] - misses, misses], [self.hits[-1] - hits, hits]], np.int64)


class Deciles(NamedTuple):
    """Samples of two classes in ten groups of about equal size, from the highest probability to the lowest."""

    predicted: Numbers
    """The mean probability of each group."""
    counts: NDArray[np.int64]
    hits: NDArray[np.int64]
    """Positive samples of each group."""

    @classmethod
    def of(cls, scores: Numbers, positive: NDArray[np.bool_]) -> "Deciles":
        """The groups of these samples; equal scores stay together, so there may be fewer."""
        bins = grouped(scores, positive.astype(np.float64))
        hits = np.rint(bins.true * bins.counts).astype(np.int64)
        return cls(bins.predicted[::-1], bins.counts[::-1], hits[::-1])

    @property
    def lift(self) -> Numbers:
        """The share of positives in each group over their share in all; its mean over the samples is 1."""
        lift: Numbers = (self.hits / self.counts) / (self.hits.sum() / self.counts.sum())
        return lift

    @property
    def gain(self) -> Numbers:
        """The share of all positives that are in this group or one before it."""
        gain: Numbers = np.cumsum(self.hits) / self.hits.sum()
        return gain


def confusion(true: NDArray[np.int64], predicted: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
    """``[true, predicted]``: how many samples of each class were predicted to be of each."""
    return np.bincount(true * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, num_classes)


def roc(scores: Numbers, positive: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """False and true positive rate for every threshold, from (0, 0) to (1, 1), without points inside straight lines."""
    ranking = ScoreRanking.of(scores, positive)
    hits, misses = ranking.hits[1:], ranking.misses[1:]
    if len(hits) > 2:
        bends = (np.diff(hits, 2) != 0) | (np.diff(misses, 2) != 0)
        kept = np.flatnonzero(np.concatenate([[True], bends, [True]]))
        hits, misses = hits[kept], misses[kept]
    true_rate, false_rate = hits / max(hits[-1], 1), misses / max(misses[-1], 1)
    return np.append(0.0, false_rate), np.append(0.0, true_rate)


def grouped(predicted: Numbers, true: Numbers) -> Bins:
    """Groups between the predictions' deciles; equal predictions stay together, and empty groups are left out."""
    edges = np.quantile(predicted, np.linspace(0, 1, BINS + 1))[1:-1]
    group = np.searchsorted(edges, predicted)
    counts = np.bincount(group, minlength=BINS)
    sums = [np.bincount(group, weights, minlength=BINS) for weights in (predicted, true)]
    filled = counts > 0
    means = [total[filled] / counts[filled] for total in sums]
    return Bins(means[0], means[1], counts[filled])


def brier(chances: Numbers, true: NDArray[np.int64]) -> float:
    """The mean squared error of the probabilities; of more than two classes, summed over them."""
    outcomes = np.eye(chances.shape[1])[true]
    if chances.shape[1] == 2:
        return float(np.mean((chances[:, 1] - outcomes[:, 1]) ** 2))
    return float(np.mean(np.sum((chances - outcomes) ** 2, axis=1)))


def errors(true: Numbers, predicted: Numbers) -> Errors:
    """The errors of predicted amounts: mean, mean size, and the size that nine in ten stay below."""
    off = true - predicted
    sizes = np.abs(off)
    return Errors(float(off.mean()), float(sizes.mean()), float(np.quantile(sizes, 0.9)))


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
    figures = errors(samples.true, samples.predicted)
    rows = [
        ["mean absolute error", figure(figures.absolute)],
        ["nine of ten errors are at most", figure(figures.usual)],
        ["mean of true minus predicted", figure(figures.mean)],
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


MOST_CLASSES = 20
"""With more classes, a table has the pairs that are confused most."""
FEW_CLASSES = 6
"""So many fit into a small figure."""
MOST_PAIRS = 15
MOST_CURVES = 8
MOST_LETTERS = 16
"""The longest name of a class next to the matrix, in characters."""
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
    if curves and len(samples.names) == 2:
        yield from _two_classes(samples)


MISSED = (5, 10)
"""What missing a positive sample may cost, in false alarms."""


def _two_classes(samples: Classes) -> Iterator[Html]:
    """How well the second class is ranked: KS and Gini, gain and lift by decile, and thresholds to choose from."""
    scores, positive, name = samples.chances[:, 1], samples.true == 1, samples.names[1]
    ranking, deciles, area = ScoreRanking.of(scores, positive), Deciles.of(scores, positive), auc(scores, positive)
    assert area is not None
    youden = int(np.argmax(ranking.gaps))
    threshold = f"{ranking.thresholds[youden]:.3g}"
    first = int(np.rint(deciles.counts[0] / deciles.counts.sum() * 100))
    yield html.key_figures(
        [
            html.KeyFigure("KS", figure(ranking.ks), "largest true minus false positive rate"),
            html.KeyFigure("Gini", figure(2 * area - 1), "2 AUC − 1"),
            html.KeyFigure("Lift", figure(float(deciles.lift[0])), f"in the {first}% with the highest probabilities"),
            html.KeyFigure("Threshold", threshold, "with the largest true minus false positive rate"),
        ]
    )
    counts = ranking.confusion(youden)
    yield html.figures(
        [
            (_gain(ranking, deciles, name), "Gain"),
            (_lift(deciles, name), "Lift"),
            (_ks(ranking, name), "Kolmogorov–Smirnov"),
            (_matrix(samples, counts, WIDTH, HEIGHT, f"At {threshold}: c"), f"Confusion matrix at {threshold}"),
        ]
    )
    yield html.paragraph(
        f"Samples from the highest probability of “{name}” to the lowest. Gain: how many of all “{name}” are among the "
        "first. Lift: how many times more often than in all samples they are in a group; 1 is no better than chance."
    )
    yield html.table(*_decile_rows(deciles, name), numbers=True)
    yield html.paragraph(
        f"A sample is predicted as “{name}” from the threshold on. Each line has the threshold that is best by one"
        " rule on these held-out samples; on new samples its figures will be a little worse. If probabilities are "
        "calibrated, and missing one costs as much as c false alarms, the best threshold is 1 / (1 + c)."
    )
    yield html.table(*_threshold_rows(ranking, name), numbers=True)


def _decile_rows(deciles: Deciles, name: str) -> tuple[list[str], list[list[str]]]:
    head = ["group", "mean probability", "samples", f"“{name}”", f"share of “{name}”", "lift", "gain"]
    rows = [
        [
            f"{number + 1}",
            figure(predicted),
            f"{count:,}",
            f"{hits:,}",
            f"{hits / count:.1%}",
            f"{lift:.2f}",
            f"{gain:.1%}",
        ]
        for number, (predicted, count, hits, lift, gain) in enumerate(
            zip(*map(np.ndarray.tolist, (*deciles, deciles.lift, deciles.gain)), strict=True)
        )
    ]
    return head, rows


def _threshold_rows(ranking: ScoreRanking, name: str) -> tuple[list[str], list[list[str]]]:
    """One row per rule: the threshold, the confusion matrix there, precision and recall."""
    rules = [
        ("largest true − false positive rate (Youden's J)", int(np.argmax(ranking.gaps))),
        ("largest F1", int(np.argmax(ranking.f1))),
        *((f"a missed “{name}” costs {cost} false alarms", int(np.argmin(ranking.costs(cost)))) for cost in MISSED),
    ]
    head = ["best by", "threshold", "found", "missed", "false alarms", "rightly not", "precision", "recall"]
    rows = []
    for rule, place in rules:
        (spared, alarms), (missed, hits) = ranking.confusion(place).tolist()
        precision = f"{hits / (hits + alarms):.1%}" if hits + alarms else "–"
        counts = [f"{count:,}" for count in (hits, missed, alarms, spared)]
        threshold = f"{ranking.thresholds[place]:.6g}" if place else "above all"
        rows.append([rule, threshold, *counts, precision, f"{hits / (hits + missed):.1%}"])
    return head, rows


def _gain(ranking: ScoreRanking, deciles: Deciles, name: str) -> Html:
    axes = Axes((0, 1), (0, 1), top=10)
    reached = (ranking.hits + ranking.misses) / (ranking.hits[-1] + ranking.misses[-1])
    parts = [axes.frame("share of samples, highest probability first", f"share of all {cut(name, 20)}")]
    parts.append(axes.line((0, 1), (0, 1), "chance"))
    caught = ranking.hits / ranking.hits[-1]
    parts.append(axes.line(reached.tolist(), caught.tolist(), colour=COLOURS[0]))
    parts.append(axes.dots((np.cumsum(deciles.counts) / deciles.counts.sum()).tolist(), deciles.gain.tolist(), "marks"))
    words = ", ".join(f"{gain:.0%}" for gain in deciles.gain)
    return chart(parts, f"Gain: share of all {name} in the first groups: {words}")


def _lift(deciles: Deciles, name: str) -> Html:
    numbers, top = range(1, len(deciles.counts) + 1), float(deciles.lift.max())
    axes = Axes((0.5, len(deciles.counts) + 0.5), (0, 1.05 * top), whole_x=True)
    edges = [number - 0.5 for number in (*numbers, len(deciles.counts) + 1)]
    parts = [axes.frame("group, highest probability first", "lift")]
    parts.append(axes.line(*steps(edges, deciles.lift.tolist()), kind="histogram"))
    parts.append(axes.line(axes.x, (1, 1), "chance"))
    words = ", ".join(f"{lift:.2f}" for lift in deciles.lift)
    return chart(parts, f"Lift of {name} by group: {words}")


def _ks(ranking: ScoreRanking, name: str) -> Html:
    """The share of each class that reaches a threshold, and where the two are furthest apart."""
    place = int(np.argmax(np.abs(ranking.gaps)))
    rates = ranking.hits / ranking.hits[-1], ranking.misses / ranking.misses[-1]
    axes = Axes((0, 1), (0, 1), top=26, height=HEIGHT - 68)
    parts = [axes.frame(f"threshold on the probability of {cut(name, 20)}", "share that reaches it")]
    # The share changes where a sample is, and stays until the next.
    below = [1.0, *np.repeat(ranking.thresholds[1:], 2).tolist(), 0.0]
    for index, (rate, of) in enumerate(zip(rates, (name, "the others"), strict=True)):
        parts.append(axes.line(below, np.repeat(rate, 2).tolist(), colour=COLOURS[index]))
        parts.append(legend(axes.left + 160 * index, 12, COLOURS[index], cut(of, 20)))
    at = float(ranking.thresholds[place])
    parts.append(axes.line((at, at), (rates[0][place], rates[1][place]), "chance"))
    return chart(parts, f"Kolmogorov-Smirnov statistic {figure(ranking.ks)} at the threshold {at:.3g}")


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


def _matrix(samples: Classes, counts: NDArray[np.int64], width: int, height: int, what: str = "C") -> Html:
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
    words = (
        f"{what}onfusion matrix of {len(names)} classes: {counts.trace():,} of {counts.sum():,} samples on the diagonal"
    )
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
    """The classes that are confused most often."""
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
    return sorted(sorted(known, key=lambda curve: curve[1])[:MOST_CURVES])


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


def predictions(run: RecordedRun) -> Iterator[Html]:
    """Figures of the predictions for held-out samples; nothing if the folder has none."""
    samples = read_held_out(RunFolder(run.path).held_out_file)
    if samples is None:
        return
    shown, total = len(samples.true), run.federation.num_test
    if not shown:
        return
    of = f"{shown:,} of the {total:,} held-out samples" if shown < total else f"all {counted(shown, 'held-out sample')}"
    figures = amount_figures(samples, _label(run)) if isinstance(samples, Amounts) else class_figures(samples)
    yield html.section("Held-out predictions", html.paragraph(f"What the model says of {of}."), *figures)


def _label(run: RecordedRun) -> str:
    """What is predicted: the name of its column, where there is one."""
    names = (silo.get("label") for silo in run.config.get("silos", []))
    return next((str(name) for name in names if name), "label")
