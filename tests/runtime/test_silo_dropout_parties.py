"""Silo dropout and subsets of silos with real parties: what the simulation gives, as far as a hub can know it."""

import numpy as np
import pytest

from support.in_process import InProcess
from support.parts import between_hubs
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.records.run_folder import RunFolder
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.machine.parts import check_part
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.training.run import run

MLP = {"block": "mlp", "hidden": [4], "l2": 0.01}
THREE = [{"name": name, "clients": 3} for name in ("shop", "bank", "bureau")]
CASES = {
    "linear, with an intercept": {},
    "late, in few bits": {
        "exchange": {"phi_bits": 8, "block_bits": 8},
        "train": {"overlap": 1, "rounds": 6},
        "silos": [{**RIDGE["silos"][0], "period": 2}, RIDGE["silos"][1]],
    },
    "labels elsewhere, blocks masked": {
        "data": {"source": "breast_cancer"},
        "silos": THREE,
        "federation": {"labels": "bank"},
        "exchange": {"protect_blocks": True},
    },
    "mlp, labels at the first": {
        "data": {"source": "breast_cancer"},
        "model": MLP,
        "federation": {"labels": "clinic"},
        "train": {"minibatches": "reused"},
    },
}


def config_of(name, rate=0.4):
    keys = CASES[name]
    return with_keys(RIDGE, **{**keys, "train": {**keys.get("train", {}), "silo_dropout": rate}})


@pytest.mark.parametrize("name", CASES)
def test_same_history_and_blocks_as_the_simulation(name):
    config = config_of(name)
    planned, result = simulated(config)
    assert planned.variant.dropout.intercept == 0
    assert planned.federation.silos[0].columns[-1] == "bias"
    office = InProcess(config, shards(planned), seed=1).run()
    assert_same_history(office, result)
    assert len({tuple(record.to_json() for record in history) for history in office.history.values()}) == 1


def test_a_rate_of_zero_is_no_dropout():
    config = config_of("linear, with an intercept", 0.0)
    plain = with_keys(RIDGE)
    assert plan(config).variant == plan(plain).variant
    one, other = (InProcess(each, shards(plan(each)), seed=1).run() for each in (config, plain))
    assert [record.to_json() for record in one.history["hub.lab"]] == [
        record.to_json() for record in other.history["hub.lab"]
    ]


def close(one, other):
    """Two contents of ``subsets.json`` with the same numbers."""
    assert {key: one[key] for key in ("silos", "silo_dropout", "samples")} == {
        key: other[key] for key in ("silos", "silo_dropout", "samples")
    }
    for key in ("mean_phi", "stand_in"):
        for silo, numbers in one[key].items():
            assert numbers == pytest.approx(other[key][silo], abs=1e-9)
    found = {frozenset(each["silos"]): each for each in other["subsets"]}
    for each in one["subsets"]:
        wanted = found[frozenset(each["silos"])]
        assert (each["loss"], *each["metrics"].values()) == pytest.approx(
            (wanted["loss"], *wanted["metrics"].values()), rel=1e-8
        )
    for each, wanted in zip(one["shuffled"], other["shuffled"], strict=True):
        assert each["silos"] == wanted["silos"]
        assert each["loss"] == pytest.approx(wanted["loss"], rel=1e-7)


def parties(tmp_path, **keys):
    config = with_keys(RIDGE, **keys)
    run(config, tmp_path / "run")
    office = InProcess(config, shards(plan(config)), seed=1).run()
    return office, RunFolder(tmp_path / "run").subsets()


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_every_hub_knows_what_the_simulation_says_of_subsets(rate, tmp_path):
    office, simulated_subsets = parties(tmp_path, train={"silo_dropout": rate})
    assert len(simulated_subsets["subsets"]) == 4
    for found in office.subsets.values():
        assert len(found["subsets"]) == 4
        close(found, simulated_subsets)
    scores = [part for part in office.sent if between_hubs(part, "scores")]
    assert rate or not any("intercept" in part.arrays for part in scores)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_pairs_have_stand_ins_of_their_own_and_hubs_know_them(rate, tmp_path):
    office, simulated_subsets = parties(tmp_path, train={"silo_dropout": rate}, model={"head": "pairs", "head_rank": 2})
    for found in office.subsets.values():
        close(found, simulated_subsets)
    if not rate:
        for silo, mean in simulated_subsets["mean_phi"].items():
            stand_in = simulated_subsets["stand_in"][silo]
            assert stand_in[:3] == pytest.approx(mean[:3])
            assert stand_in[3] == pytest.approx(mean[1] ** 2 + mean[2] ** 2)
            assert stand_in[3] < mean[3]


def test_with_labels_elsewhere_only_the_hub_with_labels_knows_them(tmp_path):
    office, expected = parties(tmp_path, federation={"labels": "lab"}, train={"silo_dropout": 0.4})
    assert office.subsets["hub.clinic"] is None
    assert len(office.subsets["hub.lab"]["subsets"]) == 4
    close(office.subsets["hub.lab"], expected)


def test_with_masks_a_hub_knows_itself_and_the_sum_of_the_others(tmp_path):
    silos = [{"name": name, "clients": 2} for name in ("shop", "bank", "bureau")]
    config = with_keys(RIDGE, silos=silos, exchange={"protect": "mask"})
    run(config, tmp_path / "run")
    expected = RunFolder(tmp_path / "run").subsets()
    office = InProcess(config, shards(plan(config)), seed=1).run()
    found = office.subsets["hub.bank"]
    assert [one["silos"] for one in found["subsets"]] == [[], ["bank"], ["shop", "bureau"], ["bank", "shop", "bureau"]]
    assert [*found["mean_phi"]] == ["bank"]
    by = {frozenset(one["silos"]): one["loss"] for one in expected["subsets"]}
    for one in found["subsets"]:
        assert one["loss"] == pytest.approx(by[frozenset(one["silos"])], rel=1e-4)


def test_an_intercept_from_the_wrong_hub_is_refused():
    config = config_of("linear, with an intercept")
    office = InProcess(config, shards(plan(config)), seed=1).run()
    compute, job = office.machines["hub.lab"].rounds.compute, office.machines["hub.lab"].job
    parts = {part.sender: part for part in office.sent if between_hubs(part, "scores")}
    intercept = parts["hub.clinic"].arrays["intercept"]
    assert intercept.values.shape == (1,)
    for hub, array, text in (
        ("hub.clinic", None, "it has no array 'intercept'"),
        ("hub.lab", intercept.values, "it has an array 'intercept', which was not requested"),
        ("hub.clinic", np.zeros(2), r"'intercept' is float64 \[2\], not float64 \[1\]"),
    ):
        arrays = {name: one for name, one in parts[hub].arrays.items() if name != "intercept"}
        if array is not None:
            arrays["intercept"] = Array.of(array)
        with pytest.raises(RejectedMessage, match=text):
            check_part(parts[hub].replace(arrays=arrays), job, compute)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"train": {"silo_dropout": 1.0}}, "train.silo_dropout"),
        ({"train": {"silo_dropout": -0.1}}, "train.silo_dropout"),
        (
            {"federation": {"silos": 1}, "train": {"silo_dropout": 0.2}},
            "train.silo_dropout = 0.2: one silo alone cannot be missing; leave it out",
        ),
        (
            {"train": {"silo_dropout": 0.2, "algorithm": "sgd"}},
            "train.silo_dropout = 0.2: goes with train.algorithm = 'tdcd', not 'sgd'; leave it out",
        ),
        (
            {"federation": {"silos": 3}, "exchange": {"protect": "mask"}, "train": {"silo_dropout": 0.2}},
            "a sample without the silos that are dropped would be in a sum of fewer silos, which may be one",
        ),
    ],
)
def test_what_cannot_be_dropped_is_refused(keys, message):
    with pytest.raises(ConfigError) as caught:
        check_config(keys)
    assert message in str(caught.value)
