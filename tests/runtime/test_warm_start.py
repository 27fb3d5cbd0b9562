"""Runs that start from a former one: in simulation, between machines, with tdcd up, and what is refused."""

import csv

import numpy as np
import pytest
from safetensors.numpy import load_file

from support.in_process import InProcess, largest_difference
from support.party_processes import assert_same_run, up, written
from support.simulated import RIDGE, simulated, with_keys
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.records.history import read_history
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.machine.hub import Hub
from tdcd.tables.preparation import load_former_block
from tdcd.training.run import run

ROWS = 90


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(5)
    columns = {name: rng.normal(size=ROWS) for name in ("age", "income", "debt", "score")}
    labels = columns["age"] + columns["debt"] > 0
    for silo, names in (("bank", ["age", "income"]), ("shop", ["debt"]), ("bureau", ["score"])):
        with (folder / f"{silo}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *names, "bought"])
            for row in range(ROWS):
                cells = [f"{columns[name][row]:.4f}" for name in names]
                writer.writerow([f"k{row}", *cells, "yes" if labels[row] else "no"])
    return folder


def keys_of(tables, **train):
    return {
        "data": {"source": "files", "folder": str(tables)},
        "model": {"block": "linear"},
        "train": {"rounds": 4, "local_steps": 2, "batch_size": 16, "step_size": 0.1} | train,
        "evaluate": {"every": 2},
        "silos": [
            {"name": "bank", "table": "bank.csv", "label": "bought", "features": ["age", "income"], "clients": 2},
            {"name": "shop", "table": "shop.csv", "features": ["debt"]},
        ],
    }


@pytest.fixture(scope="module")
def former(tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("former") / "m1"
    run(check_config(keys_of(tables)), folder)
    return folder


def test_a_run_begins_where_the_former_one_ended_and_no_further_round_leaves_its_model(tables, former, tmp_path):
    config = check_config(keys_of(tables, start=str(former), rounds=2))
    run(config, tmp_path / "m2")
    # Clients may come and go: blocks are of silos.
    keys = keys_of(tables, start=str(tmp_path / "m2"), rounds=0)
    keys["silos"][1]["clients"] = 3
    run(check_config(keys), tmp_path / "m3")
    ended, history = (read_history(at / "history.jsonl") for at in (former, tmp_path / "m2"))
    assert history[0].round == 0
    assert history[0].train_loss == ended[-1].train_loss
    assert history[-1].train_loss < history[0].train_loss
    for silo in ("bank", "shop"):
        blocks = [load_file(tmp_path / at / "model" / f"{silo}.safetensors") for at in ("m2", "m3")]
        assert {name: array.tobytes() for name, array in blocks[0].items()} == {
            name: array.tobytes() for name, array in blocks[1].items()
        }


def test_a_silo_that_is_new_begins_as_it_is_drawn(tables, former, tmp_path):
    keys = keys_of(tables, start=str(former), rounds=1)
    keys["silos"].append({"name": "bureau", "table": "bureau.csv", "features": ["score"]})
    run(check_config(keys), tmp_path / "m2")
    ended, history = (read_history(at / "history.jsonl") for at in (former, tmp_path / "m2"))
    # A linear block begins with zeros: the sum is what it was.
    assert history[0].train_loss == pytest.approx(ended[-1].train_loss, rel=1e-6)
    assert load_former_block(former, "bureau") is None
    (former / "federation.json").rename(tmp_path / "away.json")
    with pytest.raises((ConfigError, FileNotFoundError)):
        load_former_block(former, "bureau")
    (tmp_path / "away.json").rename(former / "federation.json")
    keys["silos"] = [own | {"name": f"{own['name']}-2"} for own in keys["silos"]]
    with pytest.raises(ConfigError, match="none of the silos 'bank-2', 'shop-2', 'bureau-2' was in that run"):
        plan(check_config(keys))


def test_parties_have_the_history_of_the_simulation_and_a_run_of_theirs_starts_the_next(tables, former, tmp_path):
    keys = keys_of(tables, start=str(former))
    shared = written(tmp_path / "m2", keys)
    assert up(shared, tmp_path / "up")[0] == 0
    run(check_config(keys), tmp_path / "alone")
    assert_same_run(tmp_path / "up", tmp_path / "alone", 1e-5)
    again = [plan(check_config(keys_of(tables, start=str(tmp_path / at)))) for at in ("up", "alone")]
    for ours, theirs in zip(again[0].federation.silos, again[1].federation.silos, strict=True):
        assert ours.former.arrays.keys() == theirs.former.arrays.keys()


class Continued(InProcess):
    """Hubs that start from blocks of a former run."""

    def __init__(self, config, data, former):
        self.former = former
        super().__init__(config, data)

    def hub(self, job, index, restored=None):
        former = self.former[job.config.silo_names[index]]
        return Hub(job, index, secret=bytes(range(32)), nonce=f"nonce {index}", restored=restored, former=former)


def test_machines_take_the_steps_of_the_simulation_and_refuse_blocks_that_do_not_fit(tmp_path):
    run(with_keys(RIDGE), tmp_path / "m1")
    config = with_keys(RIDGE, train={"start": str(tmp_path / "m1")})
    planned, result = simulated(config)
    former = {name: load_former_block(tmp_path / "m1", name) for name in result.blocks}
    office = Continued(config, shards(planned), former).run()
    for hub, block in office.blocks().items():
        assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 1e-10
    names = [*former]
    other = former | {names[0]: former[names[0]]._replace(arrays={"weight": np.zeros((1, 1))})}
    office = Continued(config, shards(planned), other).run()
    assert {end.status for end in office.ends.values()} == {"refused"}
    assert "does not fit: weight is [1, 1] there, and" in " ".join(end.reason for end in office.ends.values())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"features": ["age"]}, "are not those of this run: it alone has income"),
        ({"features": ["income", "age"]}, "are not those of this run: their order differs"),
    ],
)
def test_blocks_that_do_not_fit_are_refused_before_anything_is_trained(tables, former, change, text):
    keys = keys_of(tables, start=str(former))
    keys["silos"][0] |= change
    with pytest.raises(ConfigError, match=text):
        plan(check_config(keys))


def test_what_is_no_run_or_has_other_blocks_is_refused_with_the_file(tables, former, tmp_path):
    with pytest.raises(ConfigError, match=r"train\.start = '.*nowhere': .*bank\.safetensors is not there; name the"):
        plan(check_config(keys_of(tables, start=str(tmp_path / "nowhere"))))
    with pytest.raises(ConfigError, match=r"bank\.safetensors does not fit: .* there, and .* here"):
        plan(check_config(keys_of(tables, start=str(former)) | {"model": {"block": "mlp"}}))
    with pytest.raises(ConfigError, match=r"does not go with data\.samples = 'all'"):
        check_config(keys_of(tables, start="m1") | {"data": {"source": "files", "samples": "all"}})
    with pytest.raises(ConfigError, match="a baseline has other blocks"):
        check_config(keys_of(tables, start="m1", algorithm="fedbcd"))
