"""What ``tdcd plan`` says of a run with automatic steps, next to that run."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from tdcd.cli.console import show_automatic_run
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.network import PRESETS, Link, Network
from tdcd.planning import RunPlan, forecast_automatic_run, plan_run
from tdcd.planning.automatic_run import AS_CONFIGURED, PlainSteps, network_name
from tdcd.planning.tables import over_networks
from tdcd.training.run import run

KEYS = {
    "data": {"source": "diabetes"},
    "federation": {"silos": 2, "clients": 3},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"rounds": 100},
    "evaluate": {"every": 2},
}
STEP, INSIDE, BETWEEN = 0.001, 0.01, 0.1
LINKS = Network(Link(INSIDE, math.inf), Link(BETWEEN, math.inf))
"""Messages take the same however long they are."""
UNHURRIED = 3600.0
"""Seconds: a time limit that no machine, however busy, comes near."""


@pytest.fixture(scope="module")
def planned():
    return plan(check_config(KEYS))


@pytest.fixture(scope="module")
def advice(planned) -> RunPlan:
    return plan_run(planned, LINKS, candidates=(1, 5), step_seconds=STEP, seconds=UNHURRIED)


def test_rounds_and_bytes_are_those_of_the_run(advice, tmp_path):
    automatic = advice.automatic
    result = run(check_config(KEYS), tmp_path / "run")
    assert automatic.is_over
    assert [replace(each, seconds=0.0) for each in automatic.history] == [
        replace(each, seconds=0.0) for each in result.history
    ]
    at_target = next(each for each in result.history if each.train_loss <= advice.local_steps.target)
    assert automatic.reached.round == at_target.round
    assert automatic.before == at_target.round - 2
    rows = {row[0]: row[1:] for row in over_networks(automatic).rows}
    assert set(rows) == {*PRESETS, AS_CONFIGURED}
    assert {row[0] for row in rows.values()} == {str(at_target.round)}
    assert f"carried out here up to its end, {result.history[-1].round} rounds" in automatic.source


def test_times_are_those_of_the_network(advice):
    """A round: four messages inside a silo, one between hubs, a step, and phi for a third of one."""
    automatic = advice.automatic
    round_seconds = 4 * INSIDE + BETWEEN + 4 / 3 * STEP
    for line in (automatic.reached, automatic.last):
        # What clients send once comes first.
        expected = INSIDE + line.round * round_seconds
        assert automatic.seconds(AS_CONFIGURED, line) == pytest.approx(expected, rel=1e-9)
    between = automatic.seconds(AS_CONFIGURED, automatic.last) - automatic.seconds(AS_CONFIGURED, automatic.reached)
    assert between == pytest.approx((automatic.last.round - automatic.reached.round) * round_seconds)
    best = min(advice.local_steps.forecasts, key=lambda each: each.seconds)
    assert automatic.plain[AS_CONFIGURED] == PlainSteps(best.local_steps, best.seconds)


def test_the_verdict_says_which_is_faster(advice):
    automatic = advice.automatic
    reached, first = (
        automatic.predictions["wan"].after(each) for each in (automatic.reached.round, automatic.before + 1)
    )
    for seconds, words in {
        3 * reached: "3 times as fast as plain steps with Q = 5: leave it as it is.",
        (reached + first) / 2: "or fewer, since it is not evaluated in between: about as fast as Q = 5.",
        first / 10: "times as long as plain steps with Q = 5 and the step size above.",
    }.items():
        judged = replace(automatic, plain={"wan": PlainSteps(5, seconds)})
        assert judged.verdict("wan").endswith(words)
    assert "and no plain steps were in the time given" in replace(automatic, plain={}).verdict("wan")
    assert network_name(PRESETS["wan"]) == "wan"
    console = Console(record=True, width=200, file=io.StringIO())
    show_automatic_run(console, automatic, AS_CONFIGURED)
    shown = console.export_text()
    assert "step_size = 'auto' rounds sent in all predicted time to its end fastest plain Q" in " ".join(shown.split())
    assert automatic.verdict(AS_CONFIGURED) in shown


def test_without_time_nothing_is_promised(planned, advice):
    cut = forecast_automatic_run(planned, advice.local_steps, step_seconds=STEP, seconds=1e-9)
    assert not cut.is_over
    # One call of the simulation is not cut short.
    short = replace(cut, history=cut.history[:1])
    assert short.verdict("lan") == "Time was up before the automatic run got to the target: give more seconds."
    assert all(row[1].startswith("> ") and row[4] == "–" for row in over_networks(short).rows)
    assert "carried out here until time was up, 0 rounds" in short.source
    over = replace(short, is_over=True)
    assert over.verdict("lan") == "The automatic run does not get to the target."


def test_plain_steps_have_no_run_of_their_own(advice, planned):
    config = check_config({**KEYS, "train": {"step_size": 0.05}})
    plain = plan_run(plan(config), LINKS, candidates=(1,), step_seconds=STEP, target=0.45, seconds=UNHURRIED)
    assert plain.automatic is None
