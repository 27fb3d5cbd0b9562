"""Comparisons on a small table: run once, timed by the network model, and shown with the numbers of the run folders."""

import json
from dataclasses import replace

import pytest

from support.command import tdcd
from support.ledgers import ledger as ledger_of
from tdcd.compare import Contender, compare, network_of, plan_all
from tdcd.compare.comparison import Comparison
from tdcd.compare.compute import Compute
from tdcd.compare.prediction import Prediction
from tdcd.compare.tables import costs, joining, summary
from tdcd.config import ConfigError, check_config
from tdcd.core.execution import Interrupted
from tdcd.core.family.overlap import Overlap
from tdcd.core.network import Link, Network, preset
from tdcd.core.pace import Work, seconds_per_round, silo_works
from tdcd.pages.comparison import write_page
from tdcd.records.history import read_history

KEYS = {
    "data": {"source": "diabetes"},
    "federation": {"silos": 2, "clients": [3, 2]},
    "model": {"block": "linear"},
    "train": {"step_size": 0.05, "rounds": 6, "local_steps": 3, "batch_size": 32},
    "evaluate": {"every": 2},
    "network": {"preset": "wan", "hub_hub": {"latency_ms": 8, "mbit_s": 80}, "step_ms": 3},
}
CONFIG = check_config(KEYS)
NAMES = ["sgd", "distributed-sgd", "fedbcd", "hierarchical-sgd", "local-sgd"]
LABELS = ["tdcd", "sgd", "distributed-sgd", "fedbcd", "hierarchical-sgd", "local-sgd/silo1", "local-sgd/silo2"]
NETWORK = network_of(CONFIG.network)
STEP = 0.003


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    return compare(plan_all(CONFIG, NAMES), NETWORK, out, step_seconds=STEP), out


def test_a_configuration_gives_a_preset_or_its_own_figures():
    assert network_of(CONFIG.network) == Network(preset("wan").client_hub, Link(0.008, 1e7))
    assert network_of(check_config({}).network) == preset("wan")


def test_histories_are_those_of_the_run_folders(done):
    comparison, out = done
    assert [contender.label for contender in comparison.contenders] == LABELS
    for contender in comparison.contenders:
        assert contender.run.history == read_history(out / contender.label / "history.jsonl")
    assert [contender.silo for contender in comparison.silo_only] == ["silo1", "silo2"]


def test_predicted_times_follow_from_who_is_apart(done):
    comparison, _ = done
    per_round = {contender.label: contender.prediction.seconds_per_round for contender in comparison.contenders}
    assert per_round["sgd"] == pytest.approx(STEP)
    # 212 of the 354 rows are at home in the first silo, and get 5 columns from the second. Two rounds later hubs meet.
    hierarchical = next(each for each in comparison.contenders if each.label == "hierarchical-sgd")
    moving, model = 0.008 + 212 * 5 * 4 / 1e7, 11 * 4
    inside = 2 * (0.005 + model / 1.25e7) + 3 * STEP
    ends = [hierarchical.seconds(record) for record in hierarchical.run.history[:2]]
    assert ends == [pytest.approx(moving), pytest.approx(moving + 2 * inside + 2 * (0.008 + model / 1e7))]
    # Two hubs swap 32 numbers of 4 bytes at 10 MB/s; phi of one minibatch is a third of a step.
    assert per_round["fedbcd"] == pytest.approx(STEP / 3 + 0.008 + 128 / 1e7 + 3 * STEP)
    # A block of 6 numbers down and up between client and hub.
    assert per_round["local-sgd/silo1"] == pytest.approx(2 * (0.005 + 24 / 1.25e7) + 3 * STEP)
    silos = comparison.tdcd.run.federation.silos
    works = silo_works(
        NETWORK,
        ledger_of([6, 5], [3, 2], 3 * 32 * 4, 3 * 32 * 4),
        shares=[max(silo.clients) / sum(silo.clients) for silo in silos],
        phi_seconds=STEP,
        step_seconds=STEP,
        local_steps=3,
    )
    assert per_round["tdcd"] == pytest.approx(seconds_per_round(works))
    last = comparison.tdcd.run.history[-1]
    assert comparison.tdcd.seconds(last) == pytest.approx(6 * per_round["tdcd"])


def test_nothing_runs_again_for_another_network(done):
    comparison, out = done
    plans = plan_all(check_config(KEYS | {"network": {"preset": "lan"}}), NAMES)
    again = compare(
        plans, preset("lan"), out, step_seconds=STEP, observe=lambda step: pytest.fail(f"{step.label} ran again")
    )
    assert again.tdcd.run == comparison.tdcd.run
    assert again.tdcd.prediction.seconds_per_round < comparison.tdcd.prediction.seconds_per_round


def test_an_interrupted_comparison_continues_and_gives_the_same(done, tmp_path):
    stopped, plans = [], plan_all(CONFIG, NAMES)
    with pytest.raises(Interrupted):
        compare(
            plans,
            NETWORK,
            tmp_path,
            step_seconds=STEP,
            observe=lambda step: stopped.append(step) if step.progress.round else None,
            should_stop=lambda: bool(stopped),
        )
    paths = [tmp_path / label / "history.jsonl" for label in LABELS]
    lines = [len(read_history(path)) if path.exists() else 0 for path in paths]
    assert lines != [len(contender.run.history) for contender in done[0].contenders]
    resumed = compare(plan_all(CONFIG, NAMES), NETWORK, tmp_path, step_seconds=STEP)
    for contender, whole in zip(resumed.contenders, done[0].contenders, strict=True):
        assert contender.run.history == whole.run.history


def test_computing_is_measured_once_and_kept(done):
    _, out = done
    plans = plan_all(CONFIG, ["local-sgd"])
    measured = compare(plans, NETWORK, out)
    tdcd, *alone = (contender.compute for contender in measured.contenders)
    assert 0 < tdcd.step_seconds < 1
    assert 0 < tdcd.phi_seconds < 1
    assert all(compute.phi_seconds == 0 for compute in alone)
    assert compare(plans, NETWORK, out) == measured
    assert json.loads((out / "tdcd" / "compute.json").read_text()) == tdcd._asdict()


def test_the_summary_shows_when_tdcds_loss_was_reached(done):
    comparison, _ = done
    level = 1.01 * comparison.tdcd.run.final.train_loss
    head, rows = summary(comparison)
    assert head == ["", "train loss", "held-out RMSE", "held-out R²", "needs"]
    assert [row[0] for row in rows] == LABELS
    assert [row[-1] for row in rows[:4]] == ["–", "all data in one place", "–", "each silo's rows in one place"]
    head, rows = costs(comparison)
    assert head == [
        "",
        "rounds",
        "sent",
        "of it raw data",
        "sent for evaluation",
        "predicted time",
        "time to TDCD's loss + 1%",
    ]
    assert [row[0] for row in rows] == LABELS
    # 354 rows of 10 columns and a label, of 4 bytes each; to hubs, labels go with both silos' rows.
    assert rows[1][1:4] == ["18", "15.6 kB", "15.6 kB"]
    assert rows[3][2:4] == ["18.5 kB", "17.0 kB"]
    for contender, row in zip(comparison.contenders, rows, strict=True):
        reached = [record for record in contender.run.history if record.train_loss <= level]
        assert (row[-1] == "never") == (not reached)
        assert contender.reached([level]) == [reached[0] if reached else None]


def contender(silo, train_loss, rmse, r2, like):
    metrics = {"train": {}, "test": {"rmse": rmse, "r2": r2}}
    run = replace(like.run, history=[replace(like.run.final, train_loss=train_loss, metrics=metrics)])
    prediction = Prediction((Work(0.0, 0.0, 1.0),), Overlap())
    return Contender(silo or "tdcd", silo, (run,), Compute(0.0, 1.0), prediction, 0.05)


def test_gains_count_up_when_the_federation_is_better(done):
    like = done[0].tdcd
    found = joining(
        Comparison(
            NETWORK,
            (
                contender(None, 0.25, 50.0, 0.5, like),
                contender("bank", 0.5, 60.0, 0.25, like),
                contender("clinic", 0.125, 50.0, None, like),
            ),
        )
    )
    assert found.rows == [
        ["bank alone", "0.5000", "+0.2500", "60.00", "+10.00", "0.2500", "+0.2500"],
        ["clinic alone", "0.1250", "−0.1250", "50.00", "0.000", "–", "–"],
        ["together", "0.2500", "", "50.00", "", "0.5000", ""],
    ]


def test_the_page_and_its_numbers(done):
    comparison, out = done
    page = write_page(comparison, out).read_text()
    assert page.count("<svg") == 6
    assert "What joining the federation gains each silo" in page
    assert "client to hub 5 ms, 100 Mbit/s" in page
    assert "tdcd-reused" not in page
    numbers = json.loads((out / "compare.json").read_text())
    assert list(numbers["runs"]) == LABELS
    assert numbers["runs"]["distributed-sgd"]["local_steps"] == numbers["runs"]["tdcd"]["local_steps"]
    joined = numbers["joining"]["silo2"]["held-out RMSE"]
    assert joined["gain"] == pytest.approx(joined["alone"] - joined["together"])
    assert write_page(comparison, out).read_text() == page


def test_without_local_sgd_or_held_out_samples_the_page_leaves_that_out(tmp_path):
    config = check_config(KEYS | {"evaluate": {"every": 2, "holdout": 0.0}})
    comparison = compare(plan_all(config, ["tdcd-reused"]), NETWORK, tmp_path, step_seconds=STEP)
    page = write_page(comparison, tmp_path).read_text()
    assert page.count("<svg") == 4
    assert "joining" not in page
    assert summary(comparison).head == ["", "train loss", "needs"]


def test_a_diverged_run_is_named_and_the_others_continue(tmp_path):
    config = check_config(KEYS | {"train": {"rounds": 200, "local_steps": 1, "batch_size": 32, "step_size": 1e30}})
    comparison = compare(plan_all(config, ["fedbcd"]), NETWORK, tmp_path, step_seconds=STEP)
    page = write_page(comparison, tmp_path).read_text()
    assert "tdcd (diverged)" in page
    assert "fedbcd (diverged)" in page
    assert json.loads((tmp_path / "compare.json").read_text())["runs"]["tdcd"]["seeds"][0]["train_loss"][-1] is None


def test_unknown_names_and_another_algorithm_are_refused_at_once():
    with pytest.raises(ConfigError) as caught:
        plan_all(CONFIG, ["fedprox", "tdcd", "overlap=1"])
    assert caught.value.problems == [
        "--with fedprox: there is no such baseline; there are sgd, distributed-sgd, fedbcd, fedavg, hierarchical-sgd, "
        "local-sgd, tdcd-reused, logistic, ridge, linear, boosting, and tdcd,KEY=VALUE",
        "--with tdcd: it is there anyway; say what to change, as in tdcd,overlap=2",
        "--with overlap=1: 'overlap=1' changes nothing; write tdcd before it, as in tdcd,overlap=1",
    ]
    with pytest.raises(ConfigError, match=r"train\.algorithm = 'sgd': a comparison starts from TDCD; leave it out"):
        plan_all(check_config({"train": {"step_size": 0.05, "algorithm": "sgd"}}), [])
    with pytest.raises(ConfigError, match="--seeds 0: must be at least 1"):
        plan_all(CONFIG, [], seeds=0)


def test_the_command(tmp_path):
    """It shows both tables, writes the page, and another network finds the runs done."""
    (tmp_path / "small.toml").write_text(
        '[data]\nsource = "diabetes"\n[federation]\nclients = 2\n[model]\nblock = "linear"\n'
        "[train]\nrounds = 4\nbatch_size = 32\n[evaluate]\nevery = 2\n"
    )
    done = tdcd("compare", "small.toml", "--with", "tdcd-reused, local-sgd", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    for words in ("tdcd-reused", "local-sgd/silo2", "silo1 alone", "Page: runs/compare-small/compare.html"):
        assert words in done.stdout
    page = (tmp_path / "runs" / "compare-small" / "compare.html").read_text()
    assert "hub to hub 30 ms, 100 Mbit/s" in page
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("history.jsonl")}
    again = tdcd("compare", "small.toml", "--with", "tdcd-reused", "--network", "lan", cwd=tmp_path)
    assert again.exit_code == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("history.jsonl")} == stamps
    assert "0.2 ms, 1000 Mbit/s" in (tmp_path / "runs" / "compare-small" / "compare.html").read_text()
    failed = tdcd("compare", "small.toml", "--network", "lann", cwd=tmp_path)
    assert failed.exit_code == 2
    assert "there is no network 'lann'; there are lan, wan, mobile" in failed.stderr
