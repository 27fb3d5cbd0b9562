"""FedAvg and hierarchical local SGD on all columns, against plain loops, and what they move and send."""

from dataclasses import replace

import numpy as np
import pytest
from test_baselines import KEYS

from tdcd.blocks import Mlp
from tdcd.compare.all_columns import Joint
from tdcd.compare.baselines import baseline_plans
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.ledger import Traffic
from tdcd.core.schedule import batch_ids
from tdcd.pages.report import write_report
from tdcd.records.run_folder import RunFolder
from tdcd.training.run import replay, resume
from tdcd.training.train import train_plan

BASE = plan(check_config(KEYS))


def run(planned):
    """Its history."""
    return train_plan(planned)


def only(name, base=BASE):
    (planned,) = baseline_plans(name, base).values()
    return planned


def local_steps(theta, minibatches, silo, client, labels, weight):
    """Q plain steps of one client."""
    for ids in minibatches:
        own = np.intersect1d(ids, silo.rows[client])
        x = silo.features[own].astype(np.float64)
        theta = theta - 0.05 * (weight(ids) * x.T @ (x @ theta - labels[own]) + 0.01 * theta)
    return theta


def loss(theta, silo, labels):
    return np.mean((silo.features @ theta - labels) ** 2) / 2 + 0.005 * theta @ theta


def minibatches(turn):
    return batch_ids(0, [turn], num_samples=354, batch_size=32, local_steps=3)[0]


def test_every_sample_is_at_home_with_one_client_of_its_silo_and_what_others_know_moves_there():
    planned = only("fedavg")
    (silo,) = planned.federation.silos
    assert silo.clients == ("silo1-c1", "silo1-c2", "silo1-c3", "silo2-c1", "silo2-c2")
    homes = np.concatenate(silo.rows)
    assert sorted(homes) == list(range(354))
    for name, rows in zip(silo.clients, silo.rows, strict=True):
        where, client = name.split("-c")
        before = BASE.federation.silos[int(where[-1]) - 1].rows[int(client) - 1]
        assert set(rows) <= set(before)
    # Three fifths of the samples are at home in the first silo; 5 columns of each other one leave a silo.
    assert planned.moved[0].bytes == (142 * 5 * 8, 212 * 5 * 8)


def test_fedavg_averages_models_of_all_columns():
    planned = only("fedavg")
    (silo,), labels = planned.federation.silos, planned.federation.labels
    theta, expected = np.zeros(silo.features.shape[1]), []
    for turn in range(6):
        blocks = [
            local_steps(theta, minibatches(turn), silo, k, labels, lambda ids, n=n: 354 / (n * 32))
            for k, n in enumerate(silo.rows_held)
        ]
        theta = silo.shares @ np.array(blocks)
        expected += [loss(theta, silo, labels)] if turn % 2 else []
    history = run(planned).history
    np.testing.assert_allclose([record.train_loss for record in history[1:]], expected, rtol=1e-11)
    # Five clients get a model of 11 numbers and send one, in every round.
    moved = sum(planned.moved[0].bytes)
    assert history[-1].bytes == Traffic(6 * 5 * 11 * 8, 6 * 5 * 11 * 8, moved)
    assert history[0].bytes == Traffic(hub_to_hub=moved)


def test_hierarchical_sgd_averages_at_hubs_and_now_and_then_at_the_centre():
    planned = only("hierarchical-sgd")
    assert planned.variant.hub_update.every == 2
    (silo,), labels = planned.federation.silos, planned.federation.labels
    hubs, centre, expected = [(0, 1, 2), (3, 4)], np.zeros(silo.features.shape[1]), []
    shares = [sum(silo.shares[k] for k in hub) for hub in hubs]
    models = [centre, centre]
    for turn in range(6):
        for number, hub in enumerate(hubs):
            own, held = np.concatenate([silo.rows[k] for k in hub]), np.array([len(silo.rows[k]) for k in hub])

            def weight(ids, own=own):
                return len(own) / np.isin(ids, own).sum()

            blocks = [
                local_steps(
                    models[number], minibatches(2 * turn + number), silo, k, labels, lambda ids, n=n: weight(ids) / n
                )
                for k, n in zip(hub, held, strict=True)
            ]
            models[number] = held / held.sum() @ np.array(blocks)
        if turn % 2:
            centre = shares[0] * models[0] + shares[1] * models[1]
            models = [centre, centre]
            expected.append(loss(centre, silo, labels))
    result = run(planned)
    np.testing.assert_allclose([record.train_loss for record in result.history[1:]], expected, rtol=1e-11)
    assert [record.iteration for record in result.history] == [0, 6, 12, 18]
    # Beside the clients' models, both hubs send one to the centre and get one back, three times.
    moved = sum(planned.moved[0].bytes)
    assert result.history[-1].bytes == Traffic(6 * 5 * 11 * 8, 6 * 5 * 11 * 8, moved + 3 * 4 * 11 * 8)


def test_an_interrupted_hierarchy_continues_with_the_same_numbers(tmp_path):
    planned = only("hierarchical-sgd")
    whole, calls = run(planned), []

    def should_stop():
        calls.append(None)
        return len(calls) == 2

    assert train_plan(planned, tmp_path / "cut", should_stop=should_stop).status == "interrupted"
    assert resume(tmp_path / "cut", []).history == whole.history


def test_schedules_fall_over_the_same_local_steps():
    """Hubs take turns in the engine, and the step size must not notice."""
    keys = KEYS | {"train": KEYS["train"] | {"schedule": "linear", "optimizer": "momentum"}}
    base = plan(check_config(keys))
    factor = only("hierarchical-sgd", base).variant.update.factor
    for step in (0, 9, 17):
        assert factor(np.float64(2 * step)) == pytest.approx(base.variant.update.factor(np.float64(step)))


def test_other_blocks_are_the_same_summed_model():
    keys = KEYS | {"model": {"block": "mlp", "hidden": [4]}}
    planned = only("fedavg", plan(check_config(keys)))
    (block,) = planned.blocks
    assert block == Joint((Mlp((4,)), Mlp((4,))), ((5,), (5,)))
    first, last = (record.train_loss for record in (run(planned).history[index] for index in (0, -1)))
    assert last < first
    # With one step per round it is SGD on all rows, whoever holds them.
    one = only("fedavg", plan(check_config(keys | {"train": KEYS["train"] | {"local_steps": 1}})))
    everything = replace(one.federation.silos[0], rows=(np.arange(354),), clients=())
    central = one._replace(federation=replace(one.federation, silos=(everything,)))
    apart, together = run(one).history, run(central).history
    assert [record.train_loss for record in apart] == pytest.approx([record.train_loss for record in together])


def test_tables_from_files_are_put_side_by_side_too(tmp_path):
    """A category moves as one value, however many features it became."""
    draw = np.random.default_rng(0)
    towns = ["rome", "oslo", "bern"] * 30
    rows = [f"{i},{draw.random()},{towns[i]},{i % 2}" for i in range(90)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,age,town,y", *rows]) + "\n")
    (tmp_path / "shop.csv").write_text("\n".join(["id,visits", *(f"{i},{draw.random()}" for i in range(90))]) + "\n")
    silo = {"clients": 2, "name": "bank", "table": "bank.csv", "label": "y", "categorical": ["town"]}
    keys = {
        "data": {"source": "files", "folder": str(tmp_path)},
        "model": {"block": "linear"},
        "train": {"step_size": 0.05, "algorithm": "fedavg", "rounds": 2, "batch_size": 32},
        "evaluate": {"holdout": 0.0},
        "silos": [silo, {"clients": 2, "name": "shop", "table": "shop.csv"}],
    }
    planned = plan(check_config(keys))
    assert planned.federation.silos[0].columns[-1] == "shop.visits"
    # Half of the rows are at home in each silo.
    assert planned.moved[0].bytes == (45 * 2 * 4, 45 * 4)
    keys["evaluate"] = {"holdout": 0.2}
    train_plan(plan(check_config(keys)), tmp_path / "run")
    assert (tmp_path / "run" / "held-out.csv").read_text().startswith("id,")
    assert replay(RunFolder(tmp_path / "run"), tmp_path / "again") == []
    assert "shop.visits" in write_report(tmp_path / "run").read_text()
