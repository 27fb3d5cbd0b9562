"""The verdict on a history: which rises of the loss are to be said, and which are noise."""

import math

import pytest

from tdcd.core.ledger import Traffic
from tdcd.records.history import Record
from tdcd.records.outcome import Courses, Stopping, verdict

pytestmark = pytest.mark.quick


def lines(*losses, test_losses=None, unscored=None):
    nothing, tests = Traffic(), test_losses or [None] * len(losses)
    found = [
        Record(10 * place, 10 * place, loss, test, {}, nothing, nothing, 0.0)
        for place, (loss, test) in enumerate(zip(losses, tests, strict=True))
    ]
    for place in unscored or ():
        found[place].unscored.append("client.a.c1")
    return found


def words(*losses, keep="last", **more):
    history = lines(*losses, **more)
    return verdict(history, Stopping(history[-1].round, None, keep))


@pytest.mark.parametrize(
    "losses",
    [
        (0.69,),
        (0.69, 0.3, 0.1),
        # Early noise: only where it ends counts.
        (0.69, 40.0, 3.0, 0.2),
        # The start is the optimum: minibatches move it a little.
        (0.5, 0.5003, 0.501, 0.5004),
        # A weak signal: half of a tiny gain comes and goes.
        (0.5, 0.4990, 0.4999),
        (0.5, 0.48, 0.495),
        # Around the optimum, and at rounding errors.
        (0.5, 0.1, 0.12),
        (0.5, 1e-12, 1e-10),
        # Losses of randomised labels are corrected, and can be negative.
        (0.69, -0.2, -0.15),
        (-0.1, -0.3, -0.28),
        (0.0, 0.0),
    ],
)
def test_models_without_a_verdict(losses):
    assert words(*losses) == ""


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ((0.6931, 139.7), "the training loss ended at 139.7, above 0.6931 before training"),
        ((0.5, 0.3, 0.51), "the training loss ended at 0.51, above 0.5 before training"),
        ((-0.3, -0.1), "the training loss ended at -0.1, above -0.3 before training"),
        ((0.69, 0.1, 0.5), "the training loss ended at 0.5, far above its lowest, 0.1 after round 10"),
        ((0.69, -3.0, -1.0), "the training loss ended at -1, far above its lowest, -3 after round 10"),
        # Of amounts far from 0, nearly all of the first loss is their mean: R2 would be far below 0 here.
        ((5e5, 0.5, 8000.0), "the training loss ended at 8000, far above its lowest, 0.5 after round 10"),
        ((0.69, math.nan), "the loss stopped being a finite number by round 10"),
    ],
)
def test_the_verdict_in_words(losses, said):
    assert words(*losses) == said


def test_the_model_that_stays_is_judged():
    wild = {"test_losses": (1.0, 0.5, 9.0)}
    assert "above 0.69" in words(0.69, 0.4, 9.0, **wild)
    assert words(0.69, 0.4, 9.0, keep="best", **wild) == ""
    # It overfits: the best held-out loss is early, and the training loss goes on to fall.
    assert words(0.69, 0.5, 0.01, keep="best", **wild) == ""
    # No round was better than none.
    assert "above 0.69" in words(0.69, 4.0, 9.0, keep="best", test_losses=(1.0, 4.0, 9.0))
    assert words(0.69, 0.4, 0.3, test_losses=(1.0, 2.0, 3.0)) == ""


def test_lines_of_other_samples_are_left_out():
    assert words(0.69, 0.3, 5.0, unscored=[2]) == ""
    assert "above 0.69" in words(0.69, 0.01, 5.0, unscored=[1])


def test_a_line_says_what_it_is_worse_than_whatever_follows():
    history, courses, found = lines(0.69, 40.0, 0.1, 0.5, math.nan), Courses(), []
    for record in history:
        courses, judged = courses.after(record, None)
        assert Record.from_json(judged.to_json()).worse_than == judged.worse_than
        found.append(judged.worse_than)
    assert found == ["", "start", "", "best", ""]
    assert '"worse_than"' not in history[0].to_json()
