"""Plans against brute force, real training runs and the theorem's own formulas."""

import math
from dataclasses import dataclass, replace
from io import StringIO
from itertools import pairwise
from types import SimpleNamespace

import pytest
from rich.console import Console

from support.ledgers import ledger as ledger_of
from tdcd import train
from tdcd.cli.console import show_recommendation
from tdcd.compare.prediction import Prediction
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.core.family.overlap import Overlap
from tdcd.core.network import PRESETS
from tdcd.core.pace import Work
from tdcd.core.variant import Identity, Variant
from tdcd.planning import Forecast, rank_variants, recommend_local_steps
from tdcd.planning.forecast import Cost, computing, recommend, round_costs, with_local_steps
from tdcd.planning.local_steps import fewest_iterations
from tdcd.theory import Constants, bound, max_step_size
from tdcd.training.train import simulate

CANDIDATES = (1, 5, 20, 50)
STEP = 2e-5
DIVERGES = 0.008
"""A step size with which Q = 20 is at a loss of 0.39 after one round, and at 1.1 after eleven."""
UNHURRIED = 3600.0
"""Seconds: a time limit that no machine, however busy, comes near."""
RIDGE = {
    "data": {"source": "superconductors", "rows": 2000},
    "federation": {"silos": 4, "clients": 5},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"batch_size": 100, "step_size": 0.005},
    "evaluate": {"holdout": 0.0},
}


@pytest.fixture(scope="module")
def ridge():
    return plan(check_config(RIDGE))


@pytest.fixture(scope="module")
def tables(ridge):
    return {
        name: recommend_local_steps(ridge, network, candidates=CANDIDATES, step_seconds=STEP, seconds=UNHURRIED)
        for name, network in PRESETS.items()
    }


@pytest.fixture(scope="module")
def brute_force(ridge, tables):
    """Rounds to the target by Q: evaluated after every round, with minibatches of another seed than the plan's."""
    target, found = tables["lan"].target, {}
    for steps in CANDIDATES:
        engine = simulate(with_local_steps(ridge._replace(settings=replace(ridge.settings, seed=1)), steps))
        state, loss, rounds = engine.init(), 1.0, 0
        while target < loss < 1e6 and rounds < 1000:
            state, rounds = engine.advance(state, rounds, 1), rounds + 1
            loss = engine.loss(state.blocks, engine.scores(state.blocks), ridge.federation.labels)
        found[steps] = rounds if loss <= target else math.inf
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_the_recommended_q_is_about_as_fast_as_the_best(tables, brute_force, name):
    times = {
        forecast.local_steps: brute_force[forecast.local_steps] * forecast.cost.seconds
        for forecast in tables[name].forecasts
    }
    assert math.isinf(times[50])
    assert times[tables[name].recommended.local_steps] <= 2 * min(times.values())


def test_a_row_is_what_a_real_run_needs(ridge, tables):
    """Training for the forecast's rounds sends the forecast's bytes and ends at the target, and fewer rounds do not."""
    table = tables["wan"]
    forecast = next(forecast for forecast in table.forecasts if forecast.local_steps == 1)
    result = train(
        ridge.federation,
        ridge.blocks,
        ridge.objective,
        replace(ridge.settings, local_steps=1),
        rounds=forecast.rounds,
        evaluate_every=1,
    )
    losses = [record.train_loss for record in result.history]
    assert losses[-1] <= table.target < losses[int(forecast.rounds / 1.1) - 1]
    assert result.history[-1].bytes == forecast.traffic
    assert forecast.seconds == pytest.approx(forecast.rounds * forecast.cost.seconds)


def test_columns_move_with_q_as_they_must(tables):
    table = tables["wan"]
    assert table.optimum_known
    assert table.target == pytest.approx(table.initial - 0.9 * (table.initial - table.lowest))
    for forecast, larger in pairwise(table.forecasts):
        assert forecast.safe_step_size > larger.safe_step_size
        assert forecast.cost.traffic.total < larger.cost.traffic.total
        assert forecast.cost.seconds < larger.cost.seconds
        # By the theorem local steps only ever cost iterations.
        assert forecast.bound_rounds * forecast.local_steps <= 1.01 * larger.bound_rounds * larger.local_steps
    assert table.forecasts[0].safe_step_size == max_step_size(table.constants, 1, 4)


def test_where_the_step_size_diverges_the_safe_one_is_tried(tables):
    table = tables["wan"]
    last = table.forecasts[-1]
    assert last.diverged == (0.005,)
    assert last.step_size == last.safe_step_size < 0.005
    assert "With step_size = 0.005 the pilot runs of Q = 50 diverged; the safe step size was tried" in table.notes[1]
    assert table.recommended.local_steps == 20
    assert "Q = 50 diverges with that step size" in table.reason


def test_a_recommendation_beyond_the_safe_step_size_warns_by_how_much(tables):
    best = tables["wan"].recommended
    assert best.step_size == 0.005 > best.safe_step_size
    assert f"step_size = 0.005 is {0.005 / best.safe_step_size:.3g} times the safe one of Q = 20" in best.warning
    assert tables["wan"].forecasts[0].warning is None
    assert replace(best, safe_step_size=None).warning is None
    console = Console(record=True, width=200, file=StringIO())
    show_recommendation(console, tables["wan"])
    assert best.warning in console.export_text()


def test_the_time_limit_ends_what_would_never_end(ridge, tables, monkeypatch):
    """The minibatches' noise keeps every run above such a target. By this clock each part of one takes 100 s."""
    news = []
    clock = SimpleNamespace(monotonic=lambda: 100.0 * sum(each.name.startswith("Q = ") for each in news))
    monkeypatch.setattr("tdcd.planning.pilots.time", clock)
    table = recommend_local_steps(
        ridge,
        PRESETS["lan"],
        target=tables["lan"].lowest * (1 + 1e-6),
        candidates=(5, 20),
        step_seconds=STEP,
        seconds=UNHURRIED,
        observe=news.append,
    )
    assert clock.monotonic() == UNHURRIED
    assert [forecast.rounds for forecast in table.forecasts] == [None, None]
    assert all(forecast.simulated > 1 for forecast in table.forecasts)
    assert table.recommended is None
    assert table.reason.startswith("Nothing is recommended: time was up before any pilot run got to the target. Give")
    assert {"L", "L_4", "gap", "sigma", "Q = 5", "Q = 20"} <= {each.name for each in news}


def test_a_run_that_passes_the_target_and_diverges_does_not_count(ridge):
    """A pilot run ends at the target; a step size that no theorem admits is followed for some rounds more."""
    diverging = ridge._replace(settings=replace(ridge.settings, step_size=DIVERGES))
    network = PRESETS["wan"]
    table = recommend_local_steps(
        diverging, network, target=0.45, candidates=(20,), step_seconds=STEP, seconds=UNHURRIED
    )
    (row,) = table.forecasts
    assert row.diverged == (DIVERGES,)
    assert row.step_size == row.safe_step_size


def test_without_time_there_are_neither_step_sizes_that_are_not_safe_nor_a_recommendation(ridge, tables):
    table = recommend_local_steps(ridge, PRESETS["wan"], candidates=CANDIDATES, step_seconds=STEP, seconds=1e-6)
    assert table.recommended is None
    for hurried, known in zip(table.forecasts, tables["wan"].forecasts, strict=True):
        assert 0 < hurried.safe_step_size <= known.safe_step_size
        assert hurried.bound_rounds is None
    assert "No rounds by Theorem 1: time was up when sigma rested on 1 minibatch" in " ".join(table.notes)
    with pytest.raises(ValueError, match="there is no number of local steps to rank variants for"):
        rank_variants(ridge, table)


def test_without_a_known_optimum_the_pilots_set_the_target():
    keys = {
        "data": {"source": "breast_cancer"},
        "model": {"block": "mlp", "hidden": [4]},
        "train": {"step_size": 0.05, "rounds": 20, "local_steps": 5, "batch_size": 64},
        "evaluate": {"holdout": 0.0},
    }
    planned = plan(check_config(keys))
    with pytest.raises(ValueError, match=r"no pilot run got below the loss before training, \d.\d+, in the time given"):
        recommend_local_steps(planned, PRESETS["wan"], candidates=(2, 10), seconds=1e-3)
    table = recommend_local_steps(planned, PRESETS["wan"], candidates=(2, 10), seconds=UNHURRIED)
    assert not table.optimum_known
    assert table.lowest == min(forecast.lowest for forecast in table.forecasts)
    # At least as many local steps as the configuration takes, and on to the target that these set.
    assert all(forecast.simulated * forecast.local_steps >= 100 for forecast in table.forecasts)
    assert all(forecast.rounds <= forecast.simulated for forecast in table.forecasts)
    assert table.constants.kind == "estimate"
    assert [forecast.bound_rounds for forecast in table.forecasts] == [None, None]
    assert "Safe step sizes rest on estimates and prove nothing" in table.notes[1]
    assert "Theorem 1 says nothing about the loss here" in table.notes[2]
    assert all(0 < forecast.cost.seconds < 1 for forecast in table.forecasts)


def test_bad_input_is_refused_with_a_sentence(ridge):
    def refuse(words, error=ValueError, planned=ridge, **options):
        with pytest.raises(error, match=words):
            recommend_local_steps(planned, PRESETS["lan"], **options)

    refuse(r"candidates must be numbers of local steps of at least 1, not \[0, 5\]", candidates=[0, 5])
    refuse("seconds must be a positive number, not 0", seconds=0)
    refuse("target = 0.7: the loss before training is 0.5; give a lower target", target=0.7)
    refuse("target = nan: the loss before training is 0.5; give a lower target", target=math.nan)
    refuse(r"target = 0.01: the lowest possible loss of this model is 0.165\d+; give a higher target", target=0.01)
    sgd = plan(check_config(RIDGE | {"train": {"step_size": 0.05, "algorithm": "sgd"}}))
    refuse("train.algorithm = 'sgd': local steps are planned for TDCD; leave it out", ConfigError, sgd)


@pytest.mark.parametrize(
    ("train", "named"),
    [
        ({"optimizer": "momentum"}, "train.optimizer = 'momentum'"),
        ({"schedule": "cosine"}, "train.schedule = 'cosine'"),
        ({"hub_optimizer": "adam", "step_size": "auto"}, "train.hub_optimizer = 'adam'"),
        ({"hub_optimizer": "adam", "participation": 0.5}, "train.hub_optimizer = 'adam', train.participation = 0.5"),
    ],
)
def test_a_variant_that_the_theorem_does_not_cover_is_refused(train, named):
    keys = {"data": {"source": "diabetes"}, "model": {"block": "linear"}}
    variant = plan(check_config({**keys, "train": {"step_size": 0.05, **train}}))
    with pytest.raises(ConfigError) as caught:
        recommend_local_steps(variant, PRESETS["lan"], candidates=[1], seconds=UNHURRIED)
    assert caught.value.problems == [
        f"{named}: Theorem 1 covers plain SGD with every client in every round; leave it out"
    ]


@dataclass(frozen=True)
class Halved(Identity):
    """Phi in half the bytes."""

    def layout(self, shape, dtype):
        return {"phi": ("float16", shape)}


def test_a_rounds_cost_counts_phi_as_it_is_encoded(ridge):
    """Between hubs half the bytes of float32, and nothing else changes."""
    network = PRESETS["wan"]
    costs, few = round_costs(ridge, network, computing(ridge, STEP)), with_local_steps(ridge, 10)
    plain, halved = costs(few), costs(few._replace(variant=Variant(exchange=Halved())))
    assert halved.traffic == replace(plain.traffic, hub_to_hub=plain.traffic.hub_to_hub // 2)
    phi = plain.traffic.hub_to_hub / (4 * 3)
    assert plain.seconds - halved.seconds == pytest.approx(3 * phi / 2 / network.hub_hub.bytes_per_s)


CONSTANTS = Constants(L=4.0, per_silo=(3.0, 3.5), kind="exact", note="")


@pytest.mark.parametrize("timing", [Overlap(), Overlap(2), Overlap(1, (4, 1))], ids=str)
@pytest.mark.parametrize(("sigma", "level"), [(1.0, 0.1), (0.3, 2.0), (0.0, 0.5), (20.0, 1e-3)])
def test_the_fewest_iterations_are_the_bounds_own_and_no_other_step_size_is_sooner(sigma, level, timing):
    shared = {"local_steps": 10, "num_silos": 2, "num_clients": 3.0, "gap": 0.7, "timing": timing}
    found = fewest_iterations(CONSTANTS, sigma, level=level, **shared)
    iterations = math.ceil(found.iterations)
    largest = max_step_size(CONSTANTS, 10, 2, timing=timing)
    assert found.step_size <= largest

    def limit(step_size, iterations):
        return bound(CONSTANTS, sigma, step_size=step_size, iterations=iterations, **shared).total

    assert limit(found.step_size, iterations) <= level < limit(found.step_size, iterations - 1)
    for other in (0.5, 0.9, 1.1, 2.0):
        if found.step_size * other <= largest:
            assert limit(found.step_size * other, iterations) > limit(found.step_size, iterations)


def forecast(q, rounds, seconds, simulated=0, step_size=0.1, diverged=()):
    """A forecast whose rounds take ``seconds`` each."""
    cost = Cost(ledger_of([1, 1], [1, 1], 1, 1, 1), Prediction((Work(seconds, 0.0, 0.0),), Overlap()))
    return Forecast(q, 0.01, step_size, rounds, simulated or rounds or 0, 0.5, diverged, cost, None)


@pytest.mark.parametrize(
    ("forecasts", "chosen", "words"),
    [
        (
            [forecast(1, 100, 1.0), forecast(10, 10, 1.5)],
            10,
            "it is the largest Q tried, and a larger one might be faster still",
        ),
        (
            [forecast(1, 100, 1.0), forecast(10, 99, 1.5)],
            1,
            "a round's local steps and phi cost more than the rounds saved",
        ),
        (
            [forecast(1, 100, 1.0), forecast(10, 10, 1.5), forecast(20, 30, 1.6)],
            10,
            "staleness costs rounds instead of saving them",
        ),
        ([forecast(1, 9, 1.0), forecast(10, 1, 1.5), forecast(20, 1, 1.6)], 10, "beyond it, no more rounds are saved"),
        (
            [forecast(1, 10, 1.0), forecast(2, None, 1.0, 9)],
            1,
            "time was up before it was known whether Q = 2 is faster",
        ),
        (
            [forecast(1, 20, 1.0), forecast(2, 5, 1.0), forecast(4, 9, 2.0, 9)],
            2,
            "Q = 1 takes 4 times as long, since it pays",
        ),
        (
            [forecast(1, None, 1.0, 7)],
            None,
            "Q = 1 with step_size = 0.1 came closest, with a loss of 0.5 after 7 rounds",
        ),
        ([forecast(1, None, 1.0)], None, "Nothing is recommended: time was up before any pilot run took a round."),
    ],
)
def test_the_reason_fits_the_table(forecasts, chosen, words):
    best, reason = recommend(forecasts)
    assert chosen == (best and best.local_steps)
    assert words in reason
    assert reason.endswith(".")


def test_nothing_is_recommended_when_everything_diverges():
    with pytest.raises(ValueError, match=r"every pilot run diverged, with step sizes from 0\.1 up: set a smaller"):
        recommend([forecast(1, None, 1.0, diverged=(0.5, 0.1))])
