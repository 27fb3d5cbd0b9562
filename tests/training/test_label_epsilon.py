"""Runs with randomised labels: what the file may ask for, sweeps, and what the theory says of them."""

import math

import numpy as np
import pytest
from typer.testing import CliRunner

from tdcd.cli.app import app
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.data import load
from tdcd.data.randomized import randomize_table
from tdcd.pages.report import write_report
from tdcd.planning.measured_bound import measure_bound
from tdcd.theory import initial_gap
from tdcd.theory.full_objective import FullObjective
from tdcd.training.run import run
from tdcd.training.train import simulate

KEYS = {
    "dtype": "float64",
    "data": {"source": "breast_cancer", "rows": 150},
    "federation": {"clients": [3, 2], "label_epsilon": 1.0},
    "model": {"block": "linear", "l2": 0.05},
    "train": {"rounds": 4, "batch_size": 30, "local_steps": 3, "step_size": 0.002},
    "evaluate": {"every": 2},
}
FILES = {"data": {"source": "files"}, "silos": [{"name": "a", "table": "a.csv", "label": "y"}]}


def with_keys(**sections):
    return KEYS | {name: KEYS.get(name, {}) | keys for name, keys in sections.items()}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (with_keys(federation={"label_epsilon": 0.0}), "federation.label_epsilon = 0: must be above 0"),
        (with_keys(federation={"label_epsilon": 50.0}), "federation.label_epsilon = 50: must be at most 20: above it"),
        (with_keys(federation={"label_epsilon": math.inf}), "federation.label_epsilon = inf: must be at most 20"),
        (with_keys(model={"loss": "squared"}), "randomised response needs classes, and model.loss = 'squared'"),
        (with_keys(federation={"label_classes": [0, 1]}), "goes with data.source = 'files'; leave it out"),
        (FILES | {"federation": {"label_classes": [0, 1]}}, "goes with federation.label_epsilon; leave it out"),
        (FILES | {"federation": {"label_epsilon": 1.0}}, "federation.label_classes: is missing; a client must know"),
        (FILES | {"federation": {"label_epsilon": 1.0, "label_classes": [1, 1]}}, "has '1' twice"),
    ],
)
def test_settings_without_a_meaning_are_refused(keys, words):
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        check_config(keys)


def test_amounts_of_a_source_are_refused():
    with pytest.raises(ConfigError, match="'diabetes' has real-valued labels, and randomised response needs classes"):
        plan(check_config(KEYS | {"data": {"source": "diabetes"}}))


def test_the_draw_is_part_of_the_data_and_not_of_the_seed():
    first, second = (plan(check_config(KEYS | {"seed": seed})).federation for seed in (0, 1))
    assert (first.labels == second.labels).all()
    true = plan(check_config(with_keys(federation={"label_epsilon": None}))).federation
    assert (first.silos[0].features == true.silos[0].features).all()
    assert 0.6 < np.mean(first.labels == true.labels) < 0.85
    # Another seed of the data flips the labels of other samples; all 150 are of one table, in the same order.
    table = load("breast_cancer", rows=150)
    drawn, again, other = (randomize_table(table, 1.0, seed).labels for seed in (0, 0, 1))
    assert (drawn == again).all()
    assert 0.2 < np.mean((drawn != table.labels) != (other != table.labels)) < 0.6


def test_several_runs_at_once_are_those_one_by_one():
    plans = [plan(check_config(with_keys(model={"l2": l2}))) for l2 in (0.05, 0.2)]
    together = simulate(*plans)
    state = together.advance(together.init(), 0, 3)
    losses = together.losses(state.blocks, together.scores(state.blocks), plans[0].federation.labels)
    for each, found in zip(plans, losses, strict=True):
        alone = simulate(each)
        blocks = alone.advance(alone.init(), 0, 3).blocks
        assert found == pytest.approx(alone.loss(blocks, alone.scores(blocks), each.federation.labels), rel=1e-9)


def test_the_report_and_the_terminal_say_so(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[data]\nsource = "breast_cancer"\nrows = 100\n[train]\nrounds = 1\nbatch_size = 20\n')
    out = tmp_path / "run"
    answer = CliRunner().invoke(app, ["run", str(path), "--out", str(out), "--set", "federation.label_epsilon=1"])
    words = "2 classes, randomised with epsilon = 1: 73 % stay as they are"
    assert answer.exit_code == 0, answer.output
    assert f"Labels: {words}" in answer.output
    assert words in write_report(out).read_text()


def test_the_gap_is_above_the_distance_to_the_least_loss():
    """|g|^2 / 2 l2, against the minimum that plain Newton steps find."""
    planned = plan(check_config(KEYS))
    start = simulate(planned).init().blocks
    whole = FullObjective(planned.federation, planned.blocks, planned.objective)
    theta = whole.flatten(start)
    first, _ = whole.loss_and_gradient(theta)
    for _ in range(30):
        _, gradient = whole.loss_and_gradient(theta)
        hessian = np.stack([whole.hessian_vector(theta, row) for row in np.eye(whole.size)])
        theta = theta - np.linalg.solve(hessian, gradient)
    least, gradient = whole.loss_and_gradient(theta)
    assert np.abs(gradient).max() < 1e-8
    assert least < 0 < first - least
    found = initial_gap(planned.federation, planned.blocks, planned.objective, start)
    assert first - least <= found < math.inf


def test_the_bound_says_where_nothing_is_known(tmp_path):
    run(check_config(KEYS), tmp_path / "convex")
    found = measure_bound(tmp_path / "convex", seconds=30)
    assert found.holds
    assert any("curved as the loss of true labels is" in caveat for caveat in found.caveats)
    run(check_config(with_keys(model={"l2": 0.0})), tmp_path / "flat")
    assert measure_bound(tmp_path / "flat", seconds=30).verdict.startswith(
        "Theorem 1 bounds nothing here: the corrected"
    )
