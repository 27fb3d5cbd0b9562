"""Claims on made-up curves whose verdict is known."""

import numpy as np
import pytest

from tdcd.experiments.claims import final, judge_claims, ordered, rounds_to, spread
from tdcd.experiments.experiment import Curve, Experiment
from tdcd.experiments.sweep import CurveResult, ExperimentResult

ROUNDS = np.arange(0, 101, 5)


def falling(rate, floor=0.0, noise=0.0, seeds=5):
    jitter = noise * np.random.default_rng(round(rate * 1e6)).normal(size=(seeds, 1))
    return CurveResult(
        f"rate {rate}",
        ROUNDS,
        floor + jitter + np.exp(-rate * ROUNDS) * np.ones((seeds, 1)),
        ROUNDS * 1.0,
        ROUNDS * 0.5,
    )


def experiment(name, curves, optimum=None):
    described = Experiment(name, name, tuple(Curve(c.label, {}) for c in curves), 5, ())
    return ExperimentResult(described, "table", "", tuple(curves), optimum)


def verdicts(**results):
    return {claim.sentence: claim.verdict for claim in judge_claims(results)}


def test_only_claims_with_results_are_checked():
    assert judge_claims({}) == []
    assert len(verdicts(fig2a=experiment("fig2a", [falling(0.01), falling(0.1)]))) == 1


@pytest.mark.parametrize(("rates", "verdict"), [((0.01, 0.02, 0.05), "holds"), ((0.05, 0.02, 0.01), "does not hold")])
def test_faster_with_q(rates, verdict):
    assert set(verdicts(fig2a=experiment("fig2a", [falling(rate) for rate in rates])).values()) == {verdict}


def test_equal_curves_decide_nothing():
    same = [falling(0.02), falling(0.02)]
    assert set(verdicts(fig2a=experiment("fig2a", same)).values()) == {"not decided at this size"}


def test_spread_is_a_share_of_the_fall():
    result = experiment("fig2c", [falling(1.0), falling(1.0, floor=0.1)])
    assert spread(result) == pytest.approx(0.1, rel=1e-6)
    assert set(verdicts(fig2c=result).values()) == {"does not hold"}
    close = experiment("fig2c", [falling(1.0), falling(1.0, floor=0.01)])
    assert set(verdicts(fig2c=close).values()) == {"holds"}


def test_the_error_must_grow_beyond_the_noise():
    grows = [falling(1.0, floor=0.1 * k) for k in (1, 2, 3)]
    claim = "A larger Q can result in a larger convergence error."
    assert verdicts(error=experiment("error", grows, optimum=0.0))[claim] == "holds"
    assert verdicts(error=experiment("error", grows[::-1], optimum=0.0))[claim] == "does not hold"
    noisy = [falling(rate, floor=0.1, noise=0.1) for rate in (0.9, 1.0, 1.1)]
    assert verdicts(error=experiment("error", noisy, optimum=0.0))[claim] != "holds"


def test_fewer_bytes_for_the_same_loss():
    claim = "Choosing Q carefully decreases the communication cost significantly without losing performance."
    slow, fast = falling(0.02), falling(0.2)
    assert verdicts(fig3a=experiment("fig3a", [slow, fast]))[claim] == "holds"
    dear = CurveResult(fast.label, fast.rounds, fast.losses, fast.megabytes * 1000, fast.hub_megabytes)
    assert verdicts(fig3a=experiment("fig3a", [slow, dear]))[claim] == "does not hold"


def test_a_curve_that_never_gets_there_is_not_cheap():
    claim = "Choosing Q carefully decreases the communication cost significantly without losing performance."
    losses = falling(0.2).losses.copy()
    losses[:, 2:] = np.nan
    diverged = CurveResult("diverged", ROUNDS, losses, ROUNDS * 0.001, ROUNDS * 0.001)
    assert verdicts(fig3a=experiment("fig3a", [falling(0.2), diverged]))[claim] == "does not hold"


def test_rounds_to_a_loss_by_seed():
    curve = falling(0.05)
    assert rounds_to(curve, np.full(5, np.exp(-0.05 * 40) + 1e-12)).tolist() == [40.0] * 5
    assert rounds_to(curve, np.full(5, -1.0)).tolist() == [np.inf] * 5
    assert final(curve)[0] == pytest.approx(np.exp(-0.05 * ROUNDS[-5:]).mean())


def test_ordered_needs_every_step():
    values = np.array([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9], [1.5, 1.6, 1.4]])
    assert ordered(values[:2], rising=True) == "holds"
    assert ordered(values, rising=True) == "does not hold"
