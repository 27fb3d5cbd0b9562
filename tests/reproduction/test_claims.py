"""Claims on made-up curves whose verdict is known."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import ROUNDS, SEEDS, diverging, experiment, falling

from tdcd.reproduction.claims import MEASURES, comparisons_in_words, differences, judge, table
from tdcd.reproduction.experiment import AS_PRINTED, NAMES, load_experiment
from tdcd.reproduction.results import Limit
from tdcd.reproduction.statistics import final, reached, settled, slope, spread, spread_at_equal_steps, t_interval

pytestmark = pytest.mark.quick


def verdicts(**results):
    return {claim.key: claim.verdict for claim in judge(results)}


def labelled(curves, labels):
    return [replace(curve, label=label) for curve, label in zip(curves, labels, strict=True)]


def test_only_claims_with_results_are_checked():
    assert judge({}) == []
    assert {*verdicts(fig2a=experiment("fig2a", [falling(0.01), falling(0.1)]))} == {"fig2a/rate", "fig2a/rounds"}


@pytest.mark.parametrize(("rates", "verdict"), [((0.01, 0.02, 0.05), "holds"), ((0.05, 0.02, 0.01), "does not hold")])
def test_faster_with_q(rates, verdict):
    curves = [falling(rate) for rate in rates]
    assert {*verdicts(fig2a=experiment("fig2a", curves)).values()} == {verdict}
    printed = judge({"fig2a-lambda1": experiment("fig2a-lambda1", curves)})
    assert [(claim.key, claim.verdict) for claim in printed] == [
        ("fig2a-lambda1/rate", verdict),
        ("fig2a-lambda1/rounds", verdict),
    ]
    assert all(claim.as_printed for claim in printed)


def test_equal_curves_decide_nothing():
    same = experiment("fig2a", [falling(0.02), falling(0.02)])
    assert {*verdicts(fig2a=same).values()} == {"not decided at this size"}


def test_radically_is_at_least_five_times_fewer_rounds():
    rates = {"holds": (0.02, 0.05, 0.2), "does not hold": (0.02, 0.03, 0.05)}
    for verdict, chosen in rates.items():
        assert verdicts(fig3a=experiment("fig3a", [falling(rate) for rate in chosen]))["fig3a/radically"] == verdict


def test_spread_is_a_share_of_the_fall():
    result = experiment("fig2c", [falling(1.0), falling(1.0, floor=0.1)])
    assert spread(result) == pytest.approx(0.1, rel=1e-6)
    assert verdicts(fig2c=result) == {"fig2c/low": "does not hold"}
    close = experiment("fig2c", [falling(1.0), falling(1.0, floor=0.01)])
    assert verdicts(fig2c=close) == {"fig2c/low": "holds"}


def test_a_larger_error_of_the_largest_q_that_converges():
    grows = [falling(1.0, floor=floor, local_steps=q) for q, floor in ((1, 0.1), (5, 0.09), (25, 0.3))]
    assert verdicts(error=experiment("error", [*grows, diverging()], optimum=0.0))["fig2a/error"] == "holds"
    (claim,) = (c for c in judge({"error": experiment("error", [*grows, diverging()], 0.0)}) if "fig2a" in c.key)
    assert "Q = 50: diverged; error: Q = 25 - Q = 1 is 0.2 (" in claim.measured
    falls = experiment("error", grows[::-1], optimum=0.0)
    assert verdicts(error=falls)["fig2a/error"] == "does not hold"
    noisy = [falling(1 + q / 100, floor=0.5, noise=0.1, local_steps=q) for q in (1, 5, 25)]
    assert verdicts(error=experiment("error", noisy, optimum=0.0))["fig2a/error"] == "not decided at this size"


def test_lower_n_is_a_trend_and_not_every_step():
    ends = [falling(1.0, floor=floor, noise=1e-4) for floor in (0.1, 0.12, 0.119, 0.13)]
    assert verdicts(fig2b=experiment("fig2b", ends)) == {"fig2b/observable": "holds", "fig2b/lower-n": "holds"}
    assert verdicts(fig2b=experiment("fig2b", ends[::-1]))["fig2b/lower-n"] == "does not hold"


def test_fewer_bytes_for_the_same_loss_and_no_higher_end():
    slow, fast = falling(0.02), falling(0.2)
    assert verdicts(fig3a=experiment("fig3a", [slow, fast]))["fig3a/cheaper"] == "holds"
    dear = replace(fast, megabytes=fast.megabytes * 1000)
    assert verdicts(fig3a=experiment("fig3a", [slow, dear]))["fig3a/cheaper"] == "does not hold"
    # It gets to where the other ends, and then stays above.
    losses = np.where(ROUNDS == 20, final(slow)[:, None] - 0.01, fast.losses + final(slow)[:, None] + 0.1)
    worse = replace(fast, losses=losses)
    assert verdicts(fig3a=experiment("fig3a", [slow, worse]))["fig3a/cheaper"] == "does not hold"
    assert verdicts(fig3a=experiment("fig3a", [slow, diverging()]))["fig3a/cheaper"] != "holds"


def test_rounds_to_a_loss_are_interpolated():
    curve = falling(0.05)
    above, below = np.exp(-0.05 * np.array([35, 40]))
    assert reached(curve, np.full(SEEDS, (above + below) / 2)) == pytest.approx(37.5)
    assert reached(curve, np.full(SEEDS, above), curve.megabytes * 2) == pytest.approx(70)
    assert reached(curve, np.full(SEEDS, 2.0)).tolist() == [0.0] * SEEDS
    assert reached(curve, np.full(SEEDS, -1.0)).tolist() == [np.inf] * SEEDS
    assert final(curve)[0] == pytest.approx(np.exp(-0.05 * ROUNDS[-5:]).mean())
    assert settled(curve)[0] == pytest.approx(np.exp(-0.05 * ROUNDS[10:]).mean())


def test_curves_against_local_steps_are_compared_where_all_were_evaluated():
    curves = [falling(0.1), falling(0.2, rounds=ROUNDS // 2, local_steps=2), diverging()]
    steps, apart = spread_at_equal_steps(experiment("fig2a", curves))
    assert steps == 100
    assert apart == pytest.approx(0, abs=1e-12)
    assert spread_at_equal_steps(experiment("fig2a", [falling(0.1), falling(0.1, local_steps=1000)]))[0] == 0


def test_intervals_and_slopes():
    values = np.array([1.0, 2.0, 4.0])
    # The 97.5 % quantile of t with two degrees of freedom is 4.302653.
    half = 4.302653 * values.std(ddof=1) / np.sqrt(3)
    assert t_interval(values) == pytest.approx((values.mean(), values.mean() - half, values.mean() + half))
    # One seed that does not get there decides nothing, whichever way.
    assert np.isnan(t_interval(np.array([1.0, np.inf]))).all()
    assert np.isnan(t_interval(np.array([1.0, -np.inf]))).all()
    # All of them do.
    assert t_interval(np.array([-np.inf, -np.inf])).high == -np.inf
    assert slope(np.array([[1.0], [3.0], [5.0]]), np.array([0.0, 1.0, 2.0])).tolist() == [2.0]


def test_bandwidth_by_the_ledger():
    def sized(name, phi, block, parameters):
        """Q = 1 and 10: phi grows with Q, blocks do not."""
        curves = [
            falling(
                0.05,
                local_steps=q,
                hub_megabytes=ROUNDS * phi * q,
                megabytes=ROUNDS * (2 * phi * q + block),
                parameters=parameters,
            )
            for q in (1, 10)
        ]
        return experiment(name, curves)

    ridge, cnn = sized("fig2a", 1e-3, 1e-3, 80), sized("fig3a", 1e-2, 1.0, 200_000)
    found = {key: verdict for key, verdict in verdicts(fig2a=ridge, fig3a=cnn).items() if "section3" in key}
    assert len(found) == 5
    assert {*found.values()} == {"holds"}
    # A model that is large in the wrong figure.
    assert verdicts(fig2a=replace(cnn, name="fig2a"), fig3a=ridge)["section3/bandwidth"] == "does not hold"


def test_remarks_after_the_theorem():
    def over(name, floors, labels, **more):
        curves = [falling(1.0, floor=floor, local_steps=2**place) for place, floor in enumerate(floors)]
        return experiment(name, labelled(curves, labels), optimum=0.0, **more)

    found = verdicts(
        **{
            "error": over("error", (0.1, 0.2), ("Q = 1", "Q = 5")),
            "error-n": over("error-n", (0.1, 0.2, 0.5), ("N = 1", "N = 4", "N = 16")),
            "error-k": over(
                "error-k", (0.2, 0.2, 0.2, 0.3, 0.1), ("K = 1", "K = 5", "K = 25", "K = 1, B = 20", "K = 25")
            ),
        }
    )
    assert found["section4/non-zero"] == found["section4/n"] == found["section4/k"] == "holds"
    # What the paper says of its bound is judged by the bound, whatever was measured; that stands beside it.
    steep = {"error-n": over("error-n", (0.01, 0.2, 0.9), ("N = 1", "N = 4", "N = 16"))}
    (claim,) = judge(steep)
    assert claim.words == "holds, of the bound"
    power = slope(np.log([[0.01], [0.2], [0.9]]), np.log([1.0, 4.0, 16.0]))[0]
    assert f"the bound's third term grows with the power 2; the gap that stays grows with the power {power:.2f}" in (
        claim.measured
    )


def test_a_small_step_size_ends_lower_and_later():
    def curves(rates, floors):
        made = [falling(rate, floor=floor) for rate, floor in zip(rates, floors, strict=True)]
        return labelled([*made, diverging(), falling(1.0)], ("large", "small", "Q = 50, large", "Q = 50, small"))

    right = experiment("error-eta", curves((0.3, 0.1), (0.005, 0.001)), optimum=0.0)
    assert verdicts(**{"error-eta": right}) == {"section4/offset": "holds", "section4/eta": "holds"}
    wrong = experiment("error-eta", curves((0.3, 0.1), (0.001, 0.005)), optimum=0.0)
    assert verdicts(**{"error-eta": wrong})["section4/eta"] == "does not hold"


def test_stand_ins_are_marked_in_every_claim():
    result = replace(experiment("fig2a", [falling(0.01), falling(0.1)]), stand_in="no network")
    claims = judge({"fig2a": result})
    assert {claim.mark for claim in claims} == {"stand-in data: table"}
    assert {claim.verdict for claim in claims} == {"not judged on stand-in data"}


def test_the_table_names_measures_and_experiments_that_there_are():
    entries = table()
    assert len({entry.key for entry in entries}) == len(entries)
    for entry in entries:
        assert {*entry.needs, entry.figure} <= {*NAMES}
        assert {each.measure for each in entry.compare} | {measure for measure, _ in entry.shows} <= {*MEASURES}
        assert entry.sentence
        assert any(each.says for each in entry.compare)
        for each in entry.compare:
            # Compared seed by seed, unless it is a matter of bytes.
            if each.kind == "wider" and each.measure != "saving":
                assert len({load_experiment(name, full=True).num_seeds for name in each.needs}) == 1
    assert sum(entry.figure in AS_PRINTED for entry in entries) == 6
    compared = {each.measure for entry in entries for each in entry.compare}
    assert compared | {measure for entry in entries for measure, _ in entry.shows} == {*MEASURES}
    assert len(differences()) >= 8


def test_a_curve_that_ends_above_its_start_has_diverged_however_finite():
    grows = replace(falling(0.1), losses=np.exp(0.6 * ROUNDS) * np.ones((SEEDS, 1)), label="Q = 50", local_steps=50)
    assert grows.diverged.all()
    claims = judge({"fig2a": experiment("fig2a", [falling(0.02), grows])})
    # More local steps do not make it faster, and no number is as large as what it reached.
    assert [claim.verdict for claim in claims] == ["does not hold"] * 2
    for claim in claims:
        assert "Q = 50: diverged" in claim.measured
        assert not {"nan", "inf"} & {*claim.measured.replace("(", " ").split()}


def test_what_one_seed_spoils_is_not_decided():
    losses = falling(0.1).losses.copy()
    losses[2, 4:] = np.nan
    (rate, _) = judge({"fig2a": experiment("fig2a", [falling(0.02), replace(falling(0.1), losses=losses)])})
    assert rate.verdict == "not decided at this size"
    assert "diverged with 1 of 5 seeds" in rate.measured


def test_a_verdict_by_a_hair_says_so():
    """The ends differ by 1 with a spread such that a 95 % interval excludes zero and a 99 % one does not."""
    half = {0.95: 2.776445, 0.99: 4.604095}
    deviation = 5**0.5 / ((half[0.95] + half[0.99]) / 2)
    jitter = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    jitter *= deviation / jitter.std(ddof=1)
    low = falling(1.0, floor=0.1)
    high = replace(low, losses=low.losses + 0.01 * (1 + jitter)[:, None] * (ROUNDS > 0))
    hair, clear = (judge({"fig2b": experiment("fig2b", [low, curve])})[0] for curve in (high, falling(1.0, floor=0.11)))
    assert hair.words == "holds, by a hair: 99 % intervals would not decide it"
    assert clear.words == "holds"


def test_how_many_comparisons_there_are():
    claims = judge({"fig2a": experiment("fig2a", [falling(0.01), falling(0.02), falling(0.1)])})
    assert comparisons_in_words(claims) == (
        "The 2 verdicts rest on 3 comparisons, of which 3 have a spread over seeds; each is taken by itself, at 95 %. "
        "With intervals wide enough for all 3 together (Bonferroni), all would come out the same."
    )


def test_the_printed_condition_fails_where_it_admits_what_is_not_stable():
    def stability(printed):
        limits = (Limit(4, 5, 0.02, 0.005, 0.01), Limit(16, 50, 0.0014, 0.00046, printed))
        return {"stability": experiment("stability", [diverging("eta = 0.0018"), falling(0.1)], limits=limits)}

    assert verdicts(**stability(0.0018)) == {
        "section4/condition": "does not hold",
        "stability/condition-with-n": "holds",
    }
    assert verdicts(**stability(0.0013))["section4/condition"] == "holds"
