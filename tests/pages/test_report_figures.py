"""Curves: what is drawn where, read back from the SVG."""

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tdcd.pages.kit.chart import COLOURS, HEIGHT, Curve, line_figure, spans_decades
from tdcd.pages.reproduction import save_png

pytestmark = pytest.mark.quick

ROUNDS = np.arange(50)


def corners(path):
    return np.reshape([float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))], (-1, 2))


def paths(svg, colour="#2f7fd6"):
    """The corner points of every curve in ``colour``."""
    found = []
    for element in ET.fromstring(svg).iter("path"):
        if element.get("class") == "line" and element.get("stroke") == colour and "L" in element.get("d"):
            found.append(corners(element))
    return found


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter("text")]


def test_a_straight_line_is_drawn_straight():
    (line,) = paths(line_figure([Curve("a", [0, 1, 2, 4], [0, 10, 20, 40])], "x", "y"))
    x, y = (line - line[0]).T
    np.testing.assert_allclose(y / y[-1], x / x[-1], atol=1e-3)
    assert x[-1] > 0 > y[-1]


def test_a_geometric_sequence_is_straight_on_the_logarithmic_axis_only():
    curve = Curve("a", [0, 1, 2, 3], [1000, 100, 10, 1])
    (logarithmic,) = paths(line_figure([curve], "x", "y"))
    steps = np.diff(logarithmic[:, 1])
    np.testing.assert_allclose(steps, steps[0], atol=0.11)
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
    assert 'class="band"' not in plain
    (line,) = paths(banded)
    (band,) = [corners(path) for path in ET.fromstring(banded).iter("path") if path.get("class") == "band"]
    at_start = band[np.isclose(band[:, 0], line[0, 0])]
    assert np.ptp(at_start[:, 1]) / np.ptp(line[:, 1]) == pytest.approx(2 * 3 / 49, abs=1e-3)


def test_an_inset_repeats_the_last_points():
    whole, last = paths(line_figure([Curve("a", ROUNDS, ROUNDS % 7)], "x", "y", inset=10))
    assert len(whole) == 50
    assert len(last) == 10
    shape = (last[:, 1] - last[0, 1]) / np.ptp(last[:, 1])
    np.testing.assert_allclose(shape, (whole[-10:, 1] - whole[-10, 1]) / np.ptp(whole[-10:, 1]), atol=5e-3)


def test_labels_are_text_and_not_formulas():
    svg = line_figure([Curve("_$x_1$ <b> 損失 \x00", [0, 1], [0, 1])], "a & b", "y\n")
    assert "_$x_1$ <b> 損失  " in texts(svg)
    assert "a & b" in texts(svg)
    assert "<b>" not in svg


def test_large_and_small_ticks_are_powers_of_ten():
    shown = texts(line_figure([Curve("a", [0, 1], [1e-5, 1e7])], "x", "y"))
    assert "10⁻⁴" in shown
    assert "10⁶" in shown


def test_whole_numbers_have_whole_ticks():
    shown = texts(line_figure([Curve("a", [0, 1, 2], [0.1, 0.2, 0.3])], "x", "y"))
    assert shown[:3] == ["0", "1", "2"]


def test_a_logarithmic_axis_leaves_out_what_is_not_positive_and_cuts_bands_off():
    svg = line_figure([Curve("a", [0, 1, 2], [-1, 1, 10], [0, 1, 1])], "x", "y", log_y=True)
    (line,) = paths(svg)
    assert len(line) == 2
    (band,) = [corners(path) for path in ET.fromstring(svg).iter("path") if path.get("class") == "band"]
    assert np.isfinite(band).all()
    assert (band[:, 1] < HEIGHT).all()


def test_numbers_without_a_range_and_very_small_ones_have_ticks():
    assert "5" in texts(line_figure([Curve("a", [3], [5])], "x", "y"))
    assert "1e−14" in texts(line_figure([Curve("a", [0, 1], [1e-14, 3e-14])], "x", "y"))


def test_many_curves_leave_the_axes_their_room():
    many = [Curve(f"a curve whose name is rather long, number {place}", [0, 1], [0, 1]) for place in range(30)]
    (line, *_), (alone,) = paths(line_figure(many, "x", "y")), paths(line_figure(many[:1], "x", "y"))
    assert np.ptp(line[:, 1]) == pytest.approx(np.ptp(alone[:, 1]), abs=0.2)


@pytest.mark.slow
def test_the_user_s_own_matplotlib_settings_change_no_picture(tmp_path):
    import matplotlib as mpl

    curves = [Curve("a", ROUNDS, ROUNDS, np.full(50, 3.0)), Curve("損失", ROUNDS, ROUNDS % 7 + 1)]
    save_png(tmp_path / "plain.png", curves, "x", "y", log_y=True, inset=5)
    with mpl.rc_context({"font.size": 30, "axes.linewidth": 9, "xtick.direction": "in", "figure.facecolor": "red"}):
        save_png(tmp_path / "again.png", curves, "x", "y", log_y=True, inset=5)
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "plain.png").read_bytes()


def test_colours_follow_the_page():
    svg = line_figure([Curve("a", ROUNDS, ROUNDS), Curve("b", ROUNDS, ROUNDS)], "x", "y", inset=5)
    assert set(re.findall(r"#[0-9a-f]+", svg)) == {*COLOURS[:2]}
    assert 'class="inset"' in svg
    assert "font" not in svg


@pytest.mark.slow
def test_a_report_s_figures_need_no_matplotlib():
    # A process of its own, because other tests import it here.
    code = (
        "import sys; from tdcd.pages.kit.chart import *; line_figure([Curve('a', [0, 1], [1, 20])], 'x', 'y', inset=1);"
        "import tdcd.pages.report; sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_numbers_of_the_curves_are_in_the_drawing():
    """What the page's script reads: the same numbers at the same places as what is drawn."""
    curves = [Curve('a "b" <c> \u202e', [1, 10, 100], [3.0, math.nan, 1 / 3]), Curve("d", [1, 100], [1, 2])]
    svg = ET.fromstring(line_figure(curves, "x", "y", log_x=True))
    data = json.loads(svg.get("data-chart"))
    assert [curve["label"] for curve in data["curves"]] == ['a "b" <c>  ', "d"]
    assert data["curves"][0] | data["curves"][1] == {"label": "d", "x": [1, 100], "y": [1, 2]}
    assert data["curves"][0]["y"] == [3, 0.333333]
    (line,) = paths(line_figure(curves, "x", "y", log_x=True))
    part = np.log([1, 100]) - np.log(data["from"])
    places = data["left"] + part / np.log(data["to"] / data["from"]) * (data["right"] - data["left"])
    np.testing.assert_allclose(places, line[:, 0], atol=0.06)
    assert data["top"] < line[:, 1].min() < line[:, 1].max() < data["bottom"]
