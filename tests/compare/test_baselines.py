"""Baselines: what each one is in mathematics, and that a configuration can name it."""

from dataclasses import replace

import numpy as np
import pytest

from support.ledgers import ledger as ledger_of
from tdcd import Federation, Silo, train
from tdcd.compare.baselines import BASELINES, baseline_plans
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.core.ledger import Moved, Traffic, by_link
from tdcd.core.schedule import batch_ids
from tdcd.training.run import resume
from tdcd.training.train import train_plan

KEYS = {
    "dtype": "float64",
    "data": {"source": "diabetes"},
    "federation": {"silos": 2, "clients": [3, 2], "sizes": [[4, 2, 1], [1, 2]]},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"step_size": 0.05, "rounds": 6, "local_steps": 3, "batch_size": 32},
    "evaluate": {"every": 2},
}
SILO = "train.silo: give it with algorithm = 'local-sgd', which trains that silo alone, and only then"
BASE = plan(check_config(KEYS))


def run(planned):
    return train(
        planned.federation,
        planned.blocks,
        planned.objective,
        planned.settings,
        rounds=planned.config.train.rounds,
        evaluate_every=planned.config.evaluate.every,
        colocation=planned.colocation,
        moved=planned.moved,
        variant=planned.variant,
    )


@pytest.fixture(scope="module")
def results():
    plans = {"tdcd": BASE}
    for name in BASELINES:
        plans |= baseline_plans(name, BASE)
    return {label: run(planned) for label, planned in plans.items()}


def losses(result):
    return [record.train_loss for record in result.history]


def test_labels_are_names_and_local_sgd_has_one_a_silo(results):
    horizontal = ["fedavg", "hierarchical-sgd"]
    labels = ["sgd", "distributed-sgd", "fedbcd", *horizontal, "local-sgd/silo1", "local-sgd/silo2", "tdcd-reused"]
    assert list(results) == ["tdcd", *labels]


def test_all_are_evaluated_after_the_same_local_steps(results):
    for result in results.values():
        assert [record.iteration for record in result.history] == [0, 6, 12, 18]


def test_sgd_is_minibatch_sgd_on_the_uncut_table(results):
    federation = BASE.federation
    x = np.concatenate([silo.features for silo in federation.silos], axis=1).astype(np.float64)
    y, theta, found = federation.labels, np.zeros(x.shape[1]), []
    for step in range(18):
        ids = batch_ids(BASE.settings.seed, [step], num_samples=len(y), batch_size=32, local_steps=1)[0, 0]
        theta = theta - 0.05 * (x[ids].T @ (x[ids] @ theta - y[ids]) / 32 + 0.01 * theta)
        if step % 6 == 5:
            found.append(np.mean((x @ theta - y) ** 2) / 2 + 0.005 * theta @ theta)
    np.testing.assert_allclose(losses(results["sgd"])[1:], found, rtol=1e-12)


def test_distributed_sgd_takes_the_same_steps_as_sgd_and_pays_for_them(results):
    central, distributed = results["sgd"], results["distributed-sgd"]
    np.testing.assert_allclose(losses(distributed), losses(central), rtol=1e-12)
    # 354 rows of 10 columns and their labels, in 8 bytes each, once: before the first step. The column of ones is made.
    assert {record.bytes for record in central.history} == {Traffic(hub_to_hub=354 * (10 + 1) * 8)}
    each = by_link(ledger_of([6, 5], [3, 2], 32 * 8, 32 * 8, itemsize=8).after(1), "bytes")
    assert [record.bytes for record in distributed.history] == [each * record.round for record in distributed.history]


def test_fedbcd_has_one_client_a_silo_and_reuses_minibatches(results):
    (planned,) = baseline_plans("fedbcd", BASE).values()
    assert [silo.num_clients for silo in planned.federation.silos] == [1, 1]
    assert planned.settings == replace(BASE.settings, minibatches="reused")
    sent = results["fedbcd"].history[-1].bytes
    # In each silo every row's 5 columns and its label, from the clients to the hub; then only phi.
    assert (sent.client_to_hub, sent.hub_to_client) == (2 * 354 * (5 + 1) * 8, 0)
    assert results["fedbcd"].history[-1].messages.client_to_hub == 3 + 2
    # Two hubs, six rounds, one minibatch of 32 numbers of 8 bytes.
    assert sent.hub_to_hub == 2 * 6 * 32 * 8


def test_tdcd_reused_sends_phi_of_one_minibatch(results):
    (planned,) = baseline_plans("tdcd-reused", BASE).values()
    assert planned.federation is BASE.federation
    assert planned.settings == replace(BASE.settings, minibatches="reused")
    assert results["tdcd-reused"].history[-1].bytes.hub_to_hub * 3 == results["tdcd"].history[-1].bytes.hub_to_hub


def test_local_sgd_is_a_federation_of_one_silo_with_its_own_bias(results):
    whole = BASE.federation
    second = whole.silos[1]
    features, held_out = (
        np.concatenate([part, np.ones((len(part), 1), part.dtype)], axis=1)
        for part in (second.features, second.test_features)
    )
    silos = [whole.silos[0], Silo("silo2", features, second.rows, (*second.columns, "bias"), held_out)]
    for silo in silos:
        one = Federation((silo,), whole.labels, whole.test_labels, whole.label_scale)
        alone = train(one, BASE.blocks[0], BASE.objective, BASE.settings, rounds=6, evaluate_every=2)
        assert results[f"local-sgd/{silo.name}"].history == alone.history
        assert alone.history[-1].bytes.hub_to_hub == 0


def test_full_minibatches_stay_full():
    keys = KEYS | {"train": {"step_size": 0.05, "rounds": 6, "minibatches": "full", "batch_size": 9999}}
    full = plan(check_config(keys))
    for name in BASELINES:
        for planned in baseline_plans(name, full).values():
            assert planned.settings.minibatches == "full"


def test_an_unknown_name_lists_those_there_are():
    message = "no baseline 'fedprox'; there are sgd, distributed-sgd, fedbcd, fedavg, hierarchical-sgd, local-sgd, "
    with pytest.raises(ValueError, match=message):
        baseline_plans("fedprox", BASE)


@pytest.mark.parametrize("name", list(BASELINES))
def test_the_configuration_names_an_algorithm_and_what_was_resolved_means_the_same(name):
    silo = {"silo": "silo2"} if name == "local-sgd" else {}
    named = plan(check_config(KEYS | {"train": KEYS["train"] | {"algorithm": name} | silo}))
    expected = list(baseline_plans(name, BASE).values())[-1]
    again = plan(check_config(named.config.model_dump(exclude_none=True)))
    for found in (named, again):
        assert (found.config, found.settings, found.colocation, found.moved, found.variant) == (
            expected.config,
            expected.settings,
            expected.colocation,
            expected.moved,
            expected.variant,
        )
        assert repr(found.federation) == repr(expected.federation)
        assert found.blocks == expected.blocks


def test_a_baselines_run_folder_resumes(tmp_path):
    (planned,) = baseline_plans("sgd", BASE).values()
    whole = train_plan(planned, tmp_path / "whole")
    calls = []

    def should_stop():
        calls.append(None)
        return len(calls) == 3

    assert train_plan(planned, tmp_path / "cut", should_stop=should_stop).status == "interrupted"
    assert resume(tmp_path / "cut", []).history == whole.history


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"algorithm": "fedbdc"},
            "train.algorithm = 'fedbdc': must be 'tdcd', 'sgd', 'distributed-sgd', 'fedbcd', 'fedavg', "
            "'hierarchical-sgd', 'local-sgd' or 'tdcd-reused'",
        ),
        ({"algorithm": "local-sgd"}, SILO),
        ({"silo": "silo1"}, SILO),
        (
            {"algorithm": "local-sgd", "silo": "bank"},
            "train.silo = 'bank': there is no silo 'bank'; there are silo1, silo2",
        ),
    ],
)
def test_mistakes_in_the_configuration(keys, message):
    with pytest.raises(ConfigError) as caught:
        plan(check_config(KEYS | {"train": keys}))
    assert caught.value.problems == [message]


def test_with_labels_at_one_silo_only_that_one_trains_alone_and_the_others_have_labels_everywhere():
    planned = plan(check_config(KEYS | {"federation": {**KEYS["federation"], "labels": "silo2"}}))
    assert [*baseline_plans("local-sgd", planned)] == ["local-sgd/silo2"]
    for name in BASELINES:
        for rewritten in baseline_plans(name, planned).values():
            assert rewritten.variant.knowledge.are_labels_everywhere
            assert rewritten.config.federation.labels is None


def test_labels_at_one_silo_are_a_star_of_phi_and_slopes():
    ledger = ledger_of([10, 20, 30], [5, 3, 1], 400, 400, slope=(1, 800))
    between = [sent for sent in ledger.after(3) if sent.link == "hub_to_hub"]
    assert [(sent.kind, sent.messages, sent.bytes) for sent in between] == [("phi", 6, 2400), ("slope", 6, 4800)]
    # The clients of the silo with labels get phi.
    assert [sent.bytes for sent in ledger.after(3) if sent.kind == "received"] == [3 * (800 + 400 + 800)]
    planned = plan(check_config(KEYS | {"federation": {**KEYS["federation"], "labels": "silo2"}}))
    found = train(*planned[1:5], rounds=6, evaluate_every=6, variant=planned.variant).history[-1]
    assert found.messages.hub_to_hub == 6 * 2
    assert found.train_loss == pytest.approx(run(BASE).history[-1].train_loss, rel=1e-12)


def test_a_pixel_moves_as_one_byte():
    keys = {
        "data": {"source": "digits"},
        "train": {"step_size": 0.05, "algorithm": "sgd"},
        "evaluate": {"holdout": 0.0},
    }
    # Each half has 32 pixels; a label is a number of 4 bytes, and goes once.
    assert plan(check_config(keys)).moved == (Moved("hub_to_hub", (1797 * (32 + 4), 1797 * 32)),)
