"""A curve stays small, and nothing that was in it disappears."""

from itertools import pairwise

import pytest

from tdcd.pages.live.history import ThinnedHistory

pytestmark = pytest.mark.quick

MOST_POINTS = 20


def curve_of(losses, most_points=MOST_POINTS):
    curve = ThinnedHistory(most_points)
    for index, loss in enumerate(losses):
        curve.add(index, {"loss.train": loss})
    return curve


def rows_of(curve):
    return [[point.round, *point.last] for point in curve.points]


def test_a_short_history_is_there_line_by_line():
    curve = curve_of([3.0, 2.0, 1.0])
    assert (curve.columns, curve.stride) == (["loss.train"], 1)
    assert rows_of(curve) == [[0, 3.0], [1, 2.0], [2, 1.0]]


@pytest.mark.parametrize("lines", [MOST_POINTS, MOST_POINTS + 1, 5 * MOST_POINTS + 3])
def test_a_long_history_keeps_its_ends_and_its_spikes(lines):
    losses = [1.0 / (1 + index) for index in range(lines)]
    losses[lines // 3] = 50.0
    losses[lines // 2] = -7.0
    curve = curve_of(losses)
    assert len(curve.points) <= MOST_POINTS
    assert curve.points[-1].round == lines - 1
    assert curve.points[-1].last == [losses[-1]]
    assert max(point.high[0] for point in curve.points) == 50.0
    assert min(point.low[0] for point in curve.points) == -7.0


@pytest.mark.parametrize("most_points", [MOST_POINTS, MOST_POINTS + 1])
def test_every_point_but_the_last_stands_for_as_many_lines(most_points):
    curve = curve_of(range(3 * MOST_POINTS + 17), most_points)
    rounds = [point.round for point in curve.points]
    assert {later - earlier for earlier, later in pairwise(rounds[:-1])} == {curve.stride}
    assert rounds[0] == curve.stride - 1


def test_a_figure_that_begins_later_and_one_that_is_not_finite():
    curve = ThinnedHistory()
    curve.add(0, {"loss.train": float("inf")})
    curve.add(1, {"loss.train": 0.5, "auc.test": 0.75})
    assert curve.columns == ["loss.train", "auc.test"]
    assert rows_of(curve) == [[0, None, None], [1, 0.5, 0.75]]
