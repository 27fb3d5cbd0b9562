"""Overlap, periods and bits in a plan: which are tried, what they need in real runs, and the lines to take them."""

import math
import tomllib
from dataclasses import replace

import pytest

from support.ledgers import ledger as ledger_of
from tdcd import train
from tdcd.compare.prediction import Prediction
from tdcd.config import check_config
from tdcd.config.members import variant_of
from tdcd.config.resolve import plan
from tdcd.core.family.overlap import Overlap
from tdcd.core.network import PRESETS, Link, Network
from tdcd.core.pace import Work, round_ends
from tdcd.planning import Forecast, plan_run
from tdcd.planning.forecast import Cost
from tdcd.planning.tables import advice, configuration_lines, over_variants
from tdcd.planning.variants import PILOTS, Candidate, Ranked, Ranking, find_candidates, own_candidate, worthwhile

UNHURRIED = 3600.0
STEP = 1e-3
KEYS = {
    "data": {"source": "superconductors", "rows": 1000},
    "federation": {"silos": 3, "clients": 2},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"batch_size": 100, "step_size": 0.005},
    "evaluate": {"holdout": 0.0},
}
SLOW_LINK = Network(Link.of(0.1, 1000), Link.of(20, 1000))
"""Between hubs a message takes as long as the 10 local steps, and their phi, that are taken at STEP."""


@pytest.fixture(scope="module")
def planned():
    return plan(check_config(KEYS))


@pytest.fixture(scope="module")
def waiting(planned):
    """A plan for hubs that are far apart."""
    return plan_run(planned, SLOW_LINK, candidates=(10,), step_seconds=STEP, seconds=UNHURRIED)


@pytest.fixture(scope="module")
def straggling(planned):
    """A plan for silos of which one is four times slower, and hubs that are close."""
    slower = {"silo3": 4.0}
    lan = PRESETS["lan"]
    return plan_run(planned, lan, candidates=(10,), step_seconds=STEP, slower=slower, seconds=UNHURRIED)


def test_overlap_pays_where_messages_travel_as_long_as_silos_compute(waiting):
    ranking = waiting.variants
    in_step, late = ranking.alike(), ranking.alike(overlap=1)
    assert ranking.own is in_step
    assert in_step.cost.seconds / late.cost.seconds > 1.7
    assert ranking.recommended.candidate.overlap >= 1
    assert ranking.recommended.seconds < in_step.seconds
    pays, *_, conclusion = advice(ranking)
    assert pays.startswith("Overlap pays here: of the 3")
    assert "gets to the target soonest" in conclusion


def test_few_pilots_run_and_a_row_is_what_a_real_run_needs(planned, waiting):
    ranking, target = waiting.variants, waiting.local_steps.target
    tried = [each for each in ranking.ranked if each.forecast is not None and each is not ranking.own]
    assert 1 <= len(tried) <= PILOTS
    best = ranking.recommended
    variant = best.candidate.applied(planned).variant
    settings = replace(planned.settings, local_steps=10)
    parts = (planned.federation, planned.blocks, planned.objective, settings)
    result = train(*parts, rounds=best.forecast.rounds, evaluate_every=1, variant=variant)
    losses = [record.train_loss for record in result.history]
    assert losses[-1] <= target < losses[int(best.forecast.rounds / 1.1) - 1]
    assert result.history[-1].bytes == best.forecast.traffic


def test_overlap_does_not_pay_where_one_silo_computes_all_the_time(straggling):
    ranking = straggling.variants
    gain, period, bits, conclusion = advice(ranking)
    assert gain.startswith("Overlap does not pay here: of the 54.2 ms")
    assert "silo3 is busy for 54.2 ms" in gain
    assert gain.endswith("overlap = 1 would make rounds 1.00 times as fast.")
    # It still computes phi of every round: for 4 of them 4 * 40 / 3 + 40 ms and messages, in place of 4 * 54 ms.
    assert period.startswith("A period of 4 for silo3 would make rounds 2.30 times as fast, and it takes 0.4")
    assert bits.startswith("phi_bits = 8 would send 2")
    assert ranking.recommended.candidate.periods == (1, 1, 4)
    assert conclusion.startswith("silo3: period = 4 gets to the target soonest")


def test_nothing_is_changed_where_nothing_is_gained(planned):
    ranking = plan_run(planned, PRESETS["lan"], candidates=(10,), step_seconds=STEP, seconds=UNHURRIED).variants
    assert ranking.recommended is ranking.own
    assert advice(ranking)[0].startswith("Overlap does not pay here")
    assert advice(ranking)[-1] == "Keep in step, as it is: no other way makes rounds much faster."


def test_the_lines_make_the_recommended_variant(planned, straggling, waiting):
    """As the TOML that they are, in a file whose silos are only counted."""
    for found in (straggling, waiting):
        lines = tomllib.loads("\n".join(configuration_lines(found.variants, planned.config)))
        federation = {} if "silos" in lines else KEYS["federation"]
        config = check_config(KEYS | lines | {"federation": federation, "train": KEYS["train"] | lines["train"]})
        assert variant_of(config) == found.variants.recommended.candidate.applied(planned).variant
        assert (config.train.local_steps, config.train.step_size) == (10, 0.005)


def test_silos_with_entries_need_only_their_period(straggling):
    named = [{"name": f"silo{number}", "clients": 2} for number in (1, 2, 3)]
    config = check_config({key: value for key, value in KEYS.items() if key != "federation"} | {"silos": named})
    lines = configuration_lines(straggling.variants, config)
    assert lines[-3:] == ["[[silos]]", 'name = "silo3"  # one more line in the entry that is there', "period = 4"]


def test_the_table_shows_each_change_alone_and_what_was_tried(waiting, straggling):
    content, chosen = over_variants(straggling.variants)
    names = [row[0] for row in content.rows]
    assert {"in step, as it is", "overlap = 1", "phi_bits = 8", "silo3: period = 4"} <= set(names)
    assert names[chosen] == "silo3: period = 4"
    assert len(content.rows) < len(straggling.variants.ranked) / 2
    for row in content.rows:
        assert (row[3] == "–") == (row[4] == "–")


def test_the_time_of_overlap_counts_the_first_round_in_which_nothing_is_hidden(waiting):
    """As the simulation of who waits for whom has it, and longer than rounds of the later kind would take."""
    ranking = waiting.variants
    late = [each for each in ranking.ranked if each.seconds is not None and each.candidate.overlap]
    assert late
    for each in late:
        rounds, depth = each.forecast.rounds, each.candidate.overlap
        assert each.seconds == pytest.approx(round_ends(each.cost.works, each.candidate.timing, rounds)[-1])
        work = each.cost.works[0]
        first = work.before + (depth + 1) * (work.per_phi + work.upload) + work.latency + work.steps
        assert each.cost.after(1) == pytest.approx(first)
        assert each.seconds > rounds * each.cost.seconds * 1.02


LATE, PLAIN = Candidate(1, (1, 1), 32), Candidate(0, (1, 1), 32)


def rankings(rounds, diverged=(), *, failed=False):
    """Rounds in step take 8 s, with overlap 5 s; 10 rounds in step, and as many as given with overlap."""
    works = (Work(1.0, 1.0, 2.0, 0.0, 4.0),) * 2

    def ranked(candidate, rounds, step_size, diverged):
        cost = Cost(ledger_of([1, 1], [1, 1], 1, 1, 1), Prediction(works, candidate.timing))
        simulated = rounds or 3
        forecast = Forecast(5, 0.01, step_size, rounds, simulated, 0.5, diverged, cost, None)
        return Ranked(candidate, cost, None if rounds == 0 else forecast)

    in_step = ranked(PLAIN, 10, 0.1, ())
    late = ranked(LATE, rounds, 0.1 if failed or not diverged else 0.01, diverged)
    best = late if late.seconds is not None and late.seconds < in_step.seconds else in_step
    return Ranking((in_step, late), in_step, best, 0.1, 5, ("a", "b"), 128, 0.0)


@pytest.mark.parametrize(
    ("ranking", "verdict", "words"),
    [
        (rankings(12), "pays", "2.00 times as fast, and it takes 53 s instead of 1 min 20 s to the target."),
        (
            rankings(30, (0.1,)),
            "does not pay",
            "but it takes 2 min 5 s instead of 1 min 20 s to the target: with step_size = 0.1 it diverges, and "
            "step_size = 0.01 takes more rounds.",
        ),
        (
            rankings(None, (0.1,), failed=True),
            "does not pay",
            "2.00 times as fast, but with step_size = 0.1 it diverges.",
        ),
        (rankings(None), "may pay", "2.00 times as fast, but time was up before its pilot run got to the target."),
        (rankings(0), "may pay", "2.00 times as fast, but no pilot run tried it."),
    ],
)
def test_the_sentence_on_overlap_is_what_its_row_says(ranking, verdict, words):
    said = advice(ranking)[0]
    assert said.startswith(f"Overlap {verdict} here: of the 8,000 ms")
    assert said.endswith(words)


def test_candidates_go_with_the_configuration(planned):
    own = Candidate(0, (1, 1, 1), 32)
    assert own_candidate(planned) == own
    assert len(find_candidates(planned, {})) == 4 * 3
    assert find_candidates(planned, {})[0] == own
    slow = find_candidates(planned, {"silo1": 2.0, "silo2": 9.0, "silo3": 2.0})
    assert {each.periods for each in slow} == {(1, 1, 1), (1, 4, 1)}

    def options(field, **keys):
        found = find_candidates(plan(check_config(KEYS | keys)), {"silo3": 4.0})
        return {getattr(each, field) for each in found}

    assert options("phi_bits", dtype="float64") == {32, 8}
    assert options("overlap", train=KEYS["train"] | {"overlap": 3}) == {0, 1, 2, 3, 4}
    assert options("overlap", train=KEYS["train"] | {"rounds": 2}) == {0, 1}
    assert options("periods", train=KEYS["train"] | {"rounds": 2}) == {(1, 1, 1), (1, 1, 2)}
    graceful = {"federation": KEYS["federation"] | {"client_grace_s": 3.0}}
    assert options("overlap", **graceful) == {0}
    assert options("periods", **graceful) == {(1, 1, 1)}
    alone = find_candidates(plan(check_config(KEYS | {"federation": {"silos": 1}})), {})
    assert alone == [Candidate(0, (1,), 32)]


def test_a_candidate_is_simpler_if_it_is_closer_to_algorithm_1_in_everything():
    plain, late = Candidate(0, (1, 1), 32), Candidate(1, (1, 1), 32)
    slow, few = Candidate(0, (1, 4), 32), Candidate(0, (1, 1), 8)
    for other in (late, slow, few):
        assert plain.is_simpler(other)
        assert not other.is_simpler(plain)
        assert not other.is_simpler(other)
    assert not late.is_simpler(slow)
    assert late.timing == Overlap(1)
    assert slow.timing == Overlap(0, (1, 4))


def test_what_is_hardly_faster_than_something_simpler_is_not_worth_it():
    def ranked(seconds, *parts):
        prediction = Prediction((Work(seconds, 0.0, 0.0),), Overlap())
        return Ranked(Candidate(*parts), Cost(ledger_of([1, 1], [1, 1], 1, 1, 1), prediction))

    plain, late = ranked(1.0, 0, (1, 1), 32), ranked(0.5, 1, (1, 1), 32)
    later, few = ranked(0.495, 2, (1, 1), 32), ranked(0.99, 0, (1, 1), 8)
    both = ranked(0.4, 2, (1, 1), 8)
    assert worthwhile([plain, late, later, few, both]) == [plain, late, both]
    assert math.isclose(both.bytes_per_round, both.cost.traffic.total)
