"""Curves: what is drawn where, read back from the SVG."""

import math
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest

from tdcd.report.figures import Curve, line_figure, spans_decades

ROUNDS = np.arange(50)


def corners(path):
    return np.reshape([float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))], (-1, 2))


def paths(svg, colour="#2f7fd6"):
    """The corner points of every curve in ``colour``."""
    found = []
    for element in ET.fromstring(svg).iter("path"):
        if f"stroke: {colour}" in element.get("style", "") and "clip-path" in element.attrib:
            found.append(corners(element))
    return found


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter("text")]


def test_a_straight_line_is_drawn_straight():
    (line,) = paths(line_figure([Curve("a", [0, 1, 2, 4], [0, 10, 20, 40])], "x", "y"))
    x, y = (line - line[0]).T
    np.testing.assert_allclose(y / y[-1], x / x[-1], atol=1e-6)
    assert x[-1] > 0 > y[-1]


def test_a_geometric_sequence_is_straight_on_the_logarithmic_axis_only():
    curve = Curve("a", [0, 1, 2, 3], [1000, 100, 10, 1])
    (logarithmic,) = paths(line_figure([curve], "x", "y"))
    steps = np.diff(logarithmic[:, 1])
    np.testing.assert_allclose(steps, steps[0], rtol=1e-5)
    (linear,) = paths(line_figure([curve], "x", "y", log_y=False))
    assert np.diff(linear[:, 1])[0] > 5 * np.diff(linear[:, 1])[1]


@pytest.mark.parametrize(
    ("values", "wanted"), [([1, 11], True), ([1, 9], False), ([0, 100], False), ([-1, 100], False), ([], False)]
)
def test_the_axis_is_logarithmic_for_positive_values_over_more_than_a_decade(values, wanted):
    assert spans_decades([np.asarray(values, np.float64)]) is wanted


def test_points_that_cannot_be_drawn_are_left_out():
    broken = Curve("a", [0, 1, 2, 3, 4], [1, math.nan, 2, math.inf, 1e300])
    assert broken.points().tolist() == [[0, 2], [1, 2], [0, 0], [0, 0]]
    assert paths(line_figure([broken], "x", "y"))[0].shape == (2, 2)
    assert "nothing to draw" in line_figure([Curve("a", [0], [math.nan])], "x", "y")


def test_a_spread_is_a_band_around_the_line():
    plain = line_figure([Curve("a", ROUNDS, ROUNDS)], "x", "y")
    banded = line_figure([Curve("a", ROUNDS, ROUNDS, np.full(50, 3.0))], "x", "y")
    assert "fill-opacity: 0.2" not in plain
    (line,) = paths(banded)
    (band,) = [points for points in map(corners, ET.fromstring(banded).iter("path")) if len(points) > 2 * len(line)]
    at_start = band[np.isclose(band[:, 0], line[0, 0])]
    assert np.ptp(at_start[:, 1]) / np.ptp(line[:, 1]) == pytest.approx(2 * 3 / 49, rel=1e-4)


def test_an_inset_repeats_the_last_points():
    whole, last = paths(line_figure([Curve("a", ROUNDS, ROUNDS % 7)], "x", "y", inset=10))
    assert len(whole) == 50
    assert len(last) == 10
    shape = (last[:, 1] - last[0, 1]) / np.ptp(last[:, 1])
    np.testing.assert_allclose(shape, (whole[-10:, 1] - whole[-10, 1]) / np.ptp(whole[-10:, 1]), atol=1e-4)


def test_labels_are_text_and_not_formulas():
    svg = line_figure([Curve("_$x_1$ <b> 損失 \x00", [0, 1], [0, 1])], "a & b", "y\n")
    assert "_$x_1$ <b> 損失  " in texts(svg)
    assert "a & b" in texts(svg)
    assert "<b>" not in svg


def test_large_and_small_ticks_are_powers_of_ten():
    shown = texts(line_figure([Curve("a", [0, 1], [1e-5, 1e7])], "x", "y"))
    assert "10⁻⁵" in shown
    assert "10⁷" in shown


def test_whole_numbers_have_whole_ticks():
    shown = texts(line_figure([Curve("a", [0, 1, 2], [0.1, 0.2, 0.3])], "x", "y"))
    assert shown[:3] == ["0", "1", "2"]


def test_the_user_s_own_matplotlib_settings_change_nothing():
    curves = [Curve("a", ROUNDS, ROUNDS)]
    plain = line_figure(curves, "x", "y")
    with mpl.rc_context({"font.size": 30, "axes.linewidth": 9, "xtick.direction": "in", "svg.fonttype": "path"}):
        assert line_figure(curves, "x", "y") == plain


def test_colours_follow_the_page():
    svg = line_figure([Curve("a", ROUNDS, ROUNDS)], "x", "y", inset=5)
    assert "currentColor" in svg
    assert "var(--surface)" in svg
    assert not re.search(r"#000000|#ffffff|#010203|#fcfdfe|font-family", svg)
