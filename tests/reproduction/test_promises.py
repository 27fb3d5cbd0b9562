"""Promises on made-up curves whose verdict is known."""

import numpy as np
import pytest

from tdcd.reproduction.claims import MEASURES, excess, judge
from tdcd.reproduction.results import CurveResult, ExperimentResult

pytestmark = pytest.mark.quick

ROUNDS = np.arange(0, 101, 5)
LONGER = np.arange(0, 121, 5)


def falling(label, *, rounds=ROUNDS, pace=1.0, above=0.0, hub=1.0):
    """A curve that loses a twentieth per round, each of which takes ``pace`` seconds."""
    losses = np.exp(-0.05 * rounds) * (1 + above) * np.array([[1.0], [1.1]])
    return CurveResult(label, rounds, losses, rounds * 1.0, rounds * hub, seconds=rounds * pace)


def judged(name, *curves):
    found = [claim for claim in judge({name: ExperimentResult(name, name, "table", curves)}) if not claim.section]
    return [(claim.figure, claim.verdict) for claim in found], [claim.measured for claim in found]


def test_the_papers_figures_promise_nothing():
    assert judged("fig2a", falling("Q = 1"))[0] == []


@pytest.mark.parametrize(("pace", "verdict"), [(0.25, "holds"), (0.4, "does not hold")])
def test_three_times_sooner_at_the_loss_of_the_run_in_step(pace, verdict):
    verdicts, measured = judged(
        "stragglers-ridge", falling("in step"), falling("both", rounds=LONGER, pace=pace, above=0.001)
    )
    assert verdicts == [("stragglers-ridge", verdict), ("stragglers-ridge", "holds")]
    assert measured[0].startswith(f"{1 / pace:.1f} times sooner; in step: ")
    assert measured[1] == "loss against the first: in step: +0.00%, both: +0.10%"


def test_what_never_gets_there_is_not_sooner():
    verdicts, measured = judged("stragglers-cnn", falling("in step"), falling("both", pace=0.1, above=5.0))
    assert verdicts == [("stragglers-cnn", "does not hold")] * 2
    assert "both: diverged s" in measured[0] or "both: never s" in measured[0]


def test_curves_are_compared_where_the_run_in_step_ends():
    assert excess(falling("both", rounds=LONGER, above=0.02), falling("in step")) == pytest.approx(0.02)


def test_seconds_by_seed():
    plain, quick = falling("in step"), falling("both", rounds=LONGER, pace=0.5)
    found = MEASURES["seconds"].compute(ExperimentResult("stragglers-ridge", "", "table", (plain, quick)))
    assert found[1] == pytest.approx(found[0] / 2)


@pytest.mark.parametrize(
    ("share", "above", "verdict"),
    [(0.25, 0.005, "holds"), (0.275, 0.005, "does not hold"), (0.25, 0.015, "does not hold"), (0.25, -0.5, "holds")],
)
def test_few_bits(share, above, verdict):
    curves = (
        falling("32 bits"),
        falling("8 bits", hub=share, above=above),
        falling("4 bits", hub=share / 2, above=above),
    )
    verdicts, measured = judged("bits-cnn", *curves)
    assert verdicts[0] == ("bits-cnn", verdict)
    assert f"8 bits: {share:.3f}, 4 bits: {share / 2:.3f} of the first one's bytes between hubs" in measured[0]
    assert f"8 bits: {above:+z.2%}" in measured[0]
    assert verdicts[1][1] == "holds"
