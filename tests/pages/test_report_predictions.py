"""Figures about held-out predictions: their numbers against scikit-learn's, and what is drawn where."""

import csv
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from support.well_formed import Page
from tdcd.core.losses.figures import auc
from tdcd.pages.kit.chart import MOST_DOTS, Axes, robust_range
from tdcd.pages.predictions import Deciles, ScoreRanking, brier, confusion, errors, grouped, read_held_out, roc
from tdcd.pages.report import write_report

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(5)


def two_classes(count=400):
    """Labels, and probabilities that know something of them, with ties."""
    true = RNG.random(count) < 0.3
    chances = np.round(np.clip(0.25 * true + 0.6 * RNG.random(count), 0, 1), 2)
    return true, chances


def several(count, classes):
    chances = RNG.dirichlet(np.full(classes, 0.3), count)
    true = np.array([RNG.choice(classes, p=row) for row in chances])
    return true, chances


def write(folder, labels, predictions, chances=None, header="label"):
    columns = {"sample": range(len(labels)), header: labels, "prediction": predictions, **(chances or {})}
    with (folder / "held-out.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return folder


def write_several(folder, true, chances, names):
    winners = chances.argmax(axis=1)
    columns = {f"probability_{name}": chances[:, place] for place, name in enumerate(names)}
    return write(folder, [names[place] for place in true], [names[place] for place in winners], columns)


def page_of(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


def drawings(folder, words):
    """The drawings whose description has these words."""
    text = write_report(folder).read_text(encoding="utf-8")
    found = [ET.fromstring(svg) for svg in re.findall(r"<svg class=\"chart.*?</svg>", text, re.DOTALL)]
    return [svg for svg in found if words in svg.get("aria-label")]


def texts(svg, kind):
    return [element.text for element in svg.iter("text") if kind in element.get("class", "").split()]


# Numbers.


@pytest.mark.slow  # importing scikit-learn takes longer than all tests of this module
def test_confusion_roc_brier_and_calibration_are_those_of_scikit_learn():
    from sklearn import metrics
    from sklearn.calibration import calibration_curve

    true, chances = two_classes()
    both = np.stack([1 - chances, chances], axis=1)
    np.testing.assert_array_equal(
        confusion(true.astype(int), (chances > 0.5).astype(int), 2), metrics.confusion_matrix(true, chances > 0.5)
    )
    false_rate, true_rate = roc(chances, true)
    wanted = metrics.roc_curve(true, chances)
    np.testing.assert_allclose(false_rate, wanted[0])
    np.testing.assert_allclose(true_rate, wanted[1])
    assert np.trapezoid(true_rate, false_rate) == pytest.approx(metrics.roc_auc_score(true, chances))
    assert auc(chances, true) == pytest.approx(metrics.roc_auc_score(true, chances))
    assert brier(both, true.astype(int)) == pytest.approx(metrics.brier_score_loss(true, chances))
    bins = grouped(chances, true.astype(float))
    shares, means = calibration_curve(true, chances, n_bins=10, strategy="quantile")
    np.testing.assert_allclose(bins.true, shares)
    np.testing.assert_allclose(bins.predicted, means)
    assert bins.error == pytest.approx(np.sum(bins.counts * np.abs(shares - means)) / 400)


def test_the_brier_score_of_several_classes_sums_over_them():
    true, chances = several(50, 4)
    assert brier(chances, true) == pytest.approx(np.mean(np.sum((chances - np.eye(4)[true]) ** 2, axis=1)))


@pytest.mark.parametrize("scores", [np.zeros(6), np.arange(6.0), np.arange(6.0)[::-1]])
def test_roc_begins_and_ends_in_the_corners(scores):
    false_rate, true_rate = roc(scores, np.array([0, 0, 0, 1, 1, 1], bool))
    assert (false_rate[0], true_rate[0], false_rate[-1], true_rate[-1]) == (0, 0, 1, 1)


def test_errors_of_amounts():
    found = errors(np.array([1.0, 2.0, 3.0, 14.0]), np.array([1.0, 1.0, 5.0, 4.0]))
    assert found.mean == pytest.approx(9 / 4)
    assert found.absolute == pytest.approx(13 / 4)


@pytest.mark.slow
def test_ks_is_the_largest_gap_and_gini_follows_from_the_area():
    from sklearn import metrics

    true, chances = two_classes()
    ranking = ScoreRanking.of(chances, true)
    false_rate, true_rate, thresholds = metrics.roc_curve(true, chances, drop_intermediate=False)
    np.testing.assert_allclose(ranking.gaps, true_rate - false_rate)
    np.testing.assert_allclose(ranking.thresholds, thresholds)
    assert ranking.ks == pytest.approx(np.abs(true_rate - false_rate).max())
    # The same from the two distributions of scores, at every score that there is.
    by_class = [np.sort(chances[true == value]) for value in (True, False)]
    below = [np.searchsorted(part, np.unique(chances), "right") / len(part) for part in by_class]
    assert ranking.ks == pytest.approx(np.abs(below[0] - below[1]).max())
    # The Gini coefficient is twice the area between the gain of samples by rank and the diagonal, over 1 - prevalence.
    caught, reached = ranking.hits / ranking.hits[-1], (ranking.hits + ranking.misses) / len(true)
    area = np.trapezoid(caught, reached) - 1 / 2
    assert 2 * area / (1 - true.mean()) == pytest.approx(2 * metrics.roc_auc_score(true, chances) - 1)


@pytest.mark.slow
def test_every_threshold_has_its_confusion_matrix_f1_and_cost():
    from sklearn import metrics

    true, chances = two_classes(60)
    ranking = ScoreRanking.of(chances, true)
    assert len(ranking.thresholds) == len(np.unique(chances)) + 1
    for place, threshold in enumerate(ranking.thresholds):
        predicted = chances >= threshold
        counts = metrics.confusion_matrix(true, predicted)
        np.testing.assert_array_equal(ranking.confusion(place), counts)
        assert ranking.f1[place] == pytest.approx(metrics.f1_score(true, predicted, zero_division=0))
        assert ranking.costs(5)[place] == 5 * counts[1, 0] + counts[0, 1]
    assert ranking.gaps[0] == ranking.gaps[-1] == 0


def test_the_mean_of_lift_is_one_and_gain_ends_with_all():
    true, chances = two_classes(137)
    deciles = Deciles.of(chances, true)
    assert np.average(deciles.lift, weights=deciles.counts) == pytest.approx(1)
    assert deciles.gain[-1] == 1
    assert (np.diff(deciles.predicted) < 0).all()
    assert deciles.counts.sum() == 137
    assert deciles.hits.sum() == true.sum()
    # Perfect ranking of a tenth: all in the first group, ten times as often as on average.
    perfect = Deciles.of(np.arange(100) / 100, np.arange(100) >= 90)
    np.testing.assert_allclose(perfect.lift, [10, *[0] * 9])
    # No ranking at all is one group.
    assert Deciles.of(np.full(20, 0.5), np.arange(20) < 5).lift.tolist() == [1]


# The page.


def test_two_classes_have_ks_lift_and_thresholds(make_run):
    true, chances = two_classes()
    folder = write(
        make_run(), np.where(true, "yes", "no"), np.where(chances > 0.5, "yes", "no"), {"probability_yes": chances}
    )
    text = " | ".join(page_of(folder).texts)
    ranking = ScoreRanking.of(chances, true)
    place = int(ranking.gaps.argmax())
    assert f"| KS | {ranking.ks:#.4g} |" in text
    assert f"| Gini | {2 * auc(chances, true) - 1:#.4g} |" in text
    (spared, alarms), (missed, found) = confusion(
        true.astype(int), (chances >= ranking.thresholds[place]).astype(int), 2
    )
    row = f"| largest true − false positive rate (Youden's J) | {ranking.thresholds[place]:g} "
    assert f"{row}| {found} | {missed} | {alarms} | {spared} |" in text
    for caption in ("Gain", "Lift", "Kolmogorov–Smirnov", f"Confusion matrix at {ranking.thresholds[place]:.3g}"):
        assert f"| {caption} |" in text
    (matrix,) = drawings(folder, "confusion matrix")
    assert texts(matrix, "count") == [str(count) for count in (spared, alarms, missed, found) if count]


def test_where_errors_cost_less_than_any_alarm_no_row_is_predicted(make_run):
    chances = np.full(300, 0.1)
    folder = write(make_run(), ["yes", "no", *["no"] * 298], ["no"] * 300, {"probability_yes": chances})
    assert "| a missed “yes” costs 10 false alarms | above all | 0 | 1 | 0 | 299 | – | 0.0% |" in " | ".join(
        page_of(folder).texts
    )


def test_one_class_has_no_ranking(make_run):
    folder = write(make_run(), ["no"] * 5, ["no"] * 5, {"probability_yes": np.linspace(0, 0.4, 5)})
    assert "Gini" not in " | ".join(page_of(folder).texts)


def test_two_classes(make_run):
    true, chances = two_classes()
    labels, predicted = np.where(true, "yes", "no"), np.where(chances > 0.5, "yes", "no")
    folder = write(make_run(), labels, predicted, {"probability_yes": chances})
    text = " | ".join(page_of(folder).texts)
    for caption in ("Confusion matrix", "ROC", "Calibration", "Probabilities by true class"):
        assert f"| {caption} |" in text
    (matrix,) = drawings(folder, "Confusion matrix")
    counts = confusion(true.astype(int), (chances > 0.5).astype(int), 2)
    assert texts(matrix, "count") == [str(count) for count in counts.ravel() if count]
    assert texts(matrix, "share") == [
        f"{share:.0%}" for share in (counts / counts.sum(axis=1, keepdims=True)).ravel() if share
    ]
    (curve,) = drawings(folder, "ROC curves")
    assert f"yes {auc(chances, true):.4f}" in curve.get("aria-label")
    (calibration,) = drawings(folder, "Calibration")
    assert texts(calibration, "large")[0] == f"{np.mean((chances - true) ** 2):.4f}"
    assert "What the model says of 400 of the 359" not in text


def test_a_file_of_fewer_samples_than_were_held_out_says_so(make_run):
    true, chances = several(100, 3)
    folder = write_several(make_run(), true, chances, ["a", "b", "c"])
    assert "What the model says of 100 of the 359 held-out samples." in page_of(folder).texts


def test_many_classes_have_a_wide_matrix_and_the_worst_curves(make_run):
    true, chances = several(900, 12)
    names = [f"kind {place}" for place in range(12)]
    folder = write_several(make_run(), true, chances, names)
    (matrix,) = drawings(folder, "Confusion matrix of 12 classes")
    wanted = confusion(true, chances.argmax(axis=1), 12)
    assert texts(matrix, "count") == [str(count) for count in wanted.ravel() if count]
    (curves,) = drawings(folder, "ROC curves")
    areas = sorted(auc(chances[:, place], true == place) for place in range(12))
    shown = [float(number) for number in re.findall(r"kind \d+ ([\d.]+)", curves.get("aria-label"))]
    assert sorted(shown) == pytest.approx(areas[:8], abs=1e-4)


def test_very_many_classes_have_a_table_of_pairs(make_run):
    true, chances = several(600, 30)
    names = [f"n{place}" for place in range(30)]
    folder = write_several(make_run(), true, chances, names)
    assert not drawings(folder, "Confusion matrix")
    wrong = confusion(true, chances.argmax(axis=1), 30)
    np.fill_diagonal(wrong, 0)
    one, other = np.unravel_index(wrong.argmax(), wrong.shape)
    assert f"share | n{one} | n{other} | {wrong.max()} | " in " | ".join(page_of(folder).texts)


def test_amounts(make_run):
    true = 100 + 20 * RNG.normal(size=300)
    predicted = true + 3 * RNG.normal(size=300) + 1
    folder = write(make_run(), true, predicted)
    (folder / "config.toml").write_text('[[silos]]\nname = "a"\nlabel = "price <b>"\n')
    text = " | ".join(page_of(folder).texts)
    assert "Predicted against true" in text
    assert "true price <b>" in text
    assert f"mean absolute error | {np.abs(true - predicted).mean():.3f}" in text
    (against,) = drawings(folder, "Predicted against true")
    (dots,) = [path.get("d") for path in against.iter("path") if path.get("class") == "dots"]
    assert dots.count("M") == 300
    x, y = (float(number) for number in re.match(r"M([\d.]+) ([\d.]+)h0", dots).groups())
    span = robust_range(true, predicted)
    axes = Axes(span, span)
    assert (x, y) == pytest.approx((axes.across(true[0]), axes.down(predicted[0])), abs=0.06)


def test_many_amounts_are_a_density_and_far_ones_are_counted(make_run):
    true = RNG.normal(size=5 * MOST_DOTS)
    predicted = true + 0.1 * RNG.normal(size=5 * MOST_DOTS)
    predicted[:3] = 1e6
    folder = write(make_run(), true, predicted)
    text = write_report(folder).read_text(encoding="utf-8")
    assert 'class="dots"' not in text
    assert 'class="density"' in text
    assert "3 samples lie outside of the figures." in text
    assert len(text) < 250_000


def test_counts_are_compared_in_groups(make_run):
    rate = RNG.gamma(1.0, 0.5, 1000)
    true = RNG.poisson(rate)
    folder = write(make_run(), true, rate)
    assert "Predicted and true, in ten groups" in page_of(folder).texts
    (groups,) = drawings(folder, "Mean label in 10 groups")
    order = np.argsort(rate)
    ends = f"predicted from {rate[order[:100]].mean():.3f}"
    assert ends[:-1] in groups.get("aria-label")


def test_hostile_classes_stay_text(make_run):
    names = ["<script>alert(1)</script>", '"&\x07', "fine"]
    true, chances = several(60, 3)
    folder = write_several(make_run(), true, chances, names)
    text = write_report(folder).read_text(encoding="utf-8")
    assert names[0] not in text
    assert Page(text).tags.count("script") == 1


@pytest.mark.parametrize(
    "lines",
    [
        "sample,label,prediction\n",
        "sample,randomised_label,prediction,probability_b\n1,a,b,0.7\n",
    ],
)
def test_files_that_say_nothing_of_true_labels_draw_nothing(make_run, lines):
    folder = make_run()
    (folder / "held-out.csv").write_text(lines)
    assert "Held-out predictions" not in page_of(folder).texts


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "sample,label,prediction\n1,a,2.0\n",
        "sample,label,prediction,probability_b,probability_c\n1,a,b,0.7,0.3\n",
        "sample,label,prediction,probability_b\n1,a,b,0.7\n2,c,b,0.1\n",
        "sample,label,prediction\n1,2.0\n",
    ],
)
def test_a_damaged_file_is_named(make_run, lines):
    folder = make_run()
    (folder / "held-out.csv").write_text(lines)
    with pytest.raises(ValueError, match=r"held-out\.csv is damaged: "):
        write_report(folder)


def test_one_class_alone_is_no_roc(make_run):
    folder = write(make_run(), ["yes"] * 5, ["yes"] * 5, {"probability_yes": [0.6, 0.7, 0.8, 0.9, 1.0]})
    assert read_held_out(folder / "held-out.csv").names == ["not yes", "yes"]
    assert not drawings(folder, "ROC")
    assert drawings(folder, "Calibration")
