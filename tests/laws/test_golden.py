"""Short runs of fixed configurations, and digests of their whole histories: a change of any number is seen here.

Losses, metrics, certificates, steps, bytes and messages of every line are in a digest, the numbers in six digits, which
processors agree about. Hubs and clients write the same lines; how far their losses are from the simulation's is
a few last bits, since sums of few numbers are added up in another order.

A change that is meant, such as another rule for drawing minibatches, writes new digests here and says why:
``python tests/laws/test_golden.py`` prints them.
"""

import csv
import hashlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from support.in_process import InProcess
from support.party_files import data_of
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.runtime.process.trial import write_rows
from tdcd.training.train import measure, simulate, train_plan

ROUNDS = 4
SILOS = [{"name": "a", "clients": 3}, {"name": "b", "clients": 2}]
THREE = [*SILOS, {"name": "c", "clients": 3}]
OF_THREE = [silo for silo in THREE if silo["clients"] == 3]
DIABETES, CANCER, DIGITS = ({"source": name, "rows": 200} for name in ("diabetes", "breast_cancer", "digits"))
AT_B = {"data": CANCER, "federation": {"labels": "b"}}
CNN = {"block": "cnn", "channels": [3], "kernel": [3, 3], "embedding": 5}
ENSEMBLE = {"block": "ensemble", "hidden": [4], "members": 2}
TABLES = {"data": {"source": "files"}, "silos": [{"table": f"{silo['name']}.csv", **silo} for silo in SILOS]}
FEW_BITS = {"phi_bits": 8, "block_bits": 8}

GOLDEN = {
    "ridge": ({"train": {"engine": "clients"}}, "39226bf91df7"),
    "ridge, grouped": ({"train": {"engine": "grouped"}}, "39226bf91df7"),
    "ridge, flat": ({"train": {"engine": "flat"}}, "39226bf91df7"),
    "huber, momentum at the hubs": (
        {"model": {"loss": "huber"}, "train": {"hub_optimizer": "momentum", "momentum": 0.5}},
        "9eedc2bb9c1e",
    ),
    "logistic, uneven rows, mean gradients": (
        {"data": CANCER, "federation": {"rows": "dirichlet"}, "train": {"gradient": "mean"}},
        "813ade782df9",
    ),
    "softmax, full minibatches": ({"data": DIGITS, "train": {"minibatches": "full"}}, "e9d50664df21"),
    "class weights": ({"data": CANCER, "train": {"class_weights": "balanced"}}, "f6ffd8d105ac"),
    "mlp, reused minibatches": (
        {"data": DIGITS, "model": {"block": "mlp", "hidden": [4]}, "train": {"minibatches": "reused"}},
        "0d8bf934bedf",
    ),
    "linear and mlp": ({"data": CANCER, "model": {"block": ["linear", "mlp"], "hidden": [4]}}, "b4d9c9bb30ab"),
    "cnn": ({"data": DIGITS, "model": CNN, "train": {"local_steps": 2}}, "af4a29575d15"),
    "ensemble": ({"model": ENSEMBLE}, "2bd6e2761a9a"),
    "ensemble, overlap, few bits": (
        {"model": ENSEMBLE, "train": {"overlap": 1}, "exchange": {"phi_bits": 8}},
        "07ce66978f28",
    ),
    "hidden head": ({"data": CANCER, "model": {"head": "hidden", "head_units": 3}}, "484db8c0350c"),
    "pairs, labels at one silo": ({**AT_B, "model": {"head": "pairs", "head_rank": 2}}, "78baf282a6f6"),
    "momentum": ({"train": {"optimizer": "momentum", "momentum": 0.5}}, "0665558bd5ef"),
    "adam, cosine": ({"data": CANCER, "train": {"optimizer": "adam", "schedule": "cosine"}}, "3c5b89156807"),
    "momentum that lasts": ({"train": {"variant": "support.members:lasting"}}, "b457a40dfac7"),
    "adam at the hubs": ({"data": CANCER, "train": {"hub_optimizer": "adam", "hub_step_size": 0.1}}, "5436a77ee03a"),
    "automatic steps": ({"train": {"step_size": "auto", "tol": 0.0, "rounds": 8}}, "6dfb5e892a53"),
    "automatic steps, overlap, period": (
        {"data": CANCER, "silos": [SILOS[0], {**SILOS[1], "period": 2}], "train": {"step_size": "auto", "overlap": 1}},
        "8c1c378c3948",
    ),
    "overlap": ({"train": {"overlap": 2}}, "448ee84de36c"),
    "period": ({"silos": [SILOS[0], {**SILOS[1], "period": 2}]}, "4d2681a5ae4d"),
    "8 bits": ({"exchange": FEW_BITS}, "477fbcfd52f1"),
    "masks": ({"silos": THREE, "exchange": {"protect": "mask"}}, "a339b990b4b0"),
    "protected blocks": ({"silos": OF_THREE, "exchange": {"protect_blocks": True}}, "ef46f74948bc"),
    "masks, protected blocks, labels at one silo": (
        {
            **AT_B,
            "silos": [{**silo, "clients": 3} for silo in THREE],
            "exchange": {"protect": "mask", "protect_blocks": True},
        },
        "16570f93c182",
    ),
    "labels at one silo": (AT_B, "4b1d6a3461bd"),
    "labels at one silo, weights": ({**AT_B, "train": {"class_weights": "balanced"}}, "1a2b7b1bf317"),
    "encrypted slopes": (
        {"data": CANCER, "federation": {"labels": "b", "protect_labels": "encrypt"}, "train": {"local_steps": 1}},
        "664510fff55a",
    ),
    "label privacy": ({"data": CANCER, "federation": {"label_epsilon": 2.0}}, "0f8467e64c40"),
    "noise": ({"train": {"variant": "support.members:noisy"}}, "356236892a7a"),
    "half of the clients": ({"train": {"participation": 0.5}}, "ff71489bf92a"),
    "silo dropout": ({"train": {"silo_dropout": 0.4}}, "0611f6b1726e"),
    "silo dropout, few bits": ({"train": {"silo_dropout": 0.4}, "exchange": FEW_BITS}, "f90a3d091f60"),
    "tables, piecewise": (
        {**TABLES, "data": {**TABLES["data"], "align": True}, "model": {"encoding": "piecewise", "bins": 4}},
        "d6575663c3bb",
    ),
    "tables, rows that some silos lack": ({**TABLES, "data": {**TABLES["data"], "samples": "all"}}, "bccb245b4a56"),
    "tables, lacking rows, labels at one silo": (
        {**TABLES, "data": {**TABLES["data"], "samples": "all"}, "federation": {"labels": "a"}},
        "fbd7e7bb2578",
    ),
}
"""By name: what differs from ridge regression with the settings of :func:`planned`, and the digest."""
FEDBCD = "f4046277f523"
BATCH = [0.2894166344115823, 0.28690647926221585]


def write_tables(folder, labelled):
    """The tables of two silos, each of which lacks some samples of the other."""
    rng = np.random.default_rng(7)
    numbers = rng.normal(size=(120, 4)).round(3)
    labels = (numbers @ [1.0, -1.0, 0.5, 1.0] + rng.normal(size=120)).round(3)
    for place, name in enumerate("ab"):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", f"{name}1", f"{name}2", *(["label"] if name in labelled else [])])
            own = np.column_stack([numbers[:, 2 * place : 2 * place + 2], *([labels] if name in labelled else [])])
            writer.writerows([f"k{row}", *cells] for row, cells in enumerate(own) if row % 5 != place)


def planned(sections, folder, **keys):
    chosen = {
        "dtype": "float64",
        "data": DIABETES,
        "silos": SILOS,
        **sections,
        "model": {"block": "linear", "l2": 0.01, **sections.get("model", {})},
        "evaluate": {"every": 2, "holdout": 0.2},
        "train": {
            "rounds": ROUNDS,
            "local_steps": 3,
            "batch_size": 24,
            "step_size": 0.05,
            **sections.get("train", {}),
        },
        **keys,
    }
    if chosen["data"]["source"] == "files":
        labelled = sections.get("federation", {}).get("labels", "ab")
        write_tables(folder, labelled)
        chosen["data"] = {**chosen["data"], "folder": str(folder)}
        chosen["silos"] = [
            {**own, **({"label": "label"} if own["name"] in labelled else {})} for own in chosen["silos"]
        ]
    return plan(check_config(chosen))


def digest(history):
    """Of all lines, but for their times."""
    lines = [_rounded(json.loads(record.without_seconds())) for record in history]
    return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()[:12]


def _rounded(value):
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def runs(sections, folder):
    """The histories of the simulation and of all hubs."""
    chosen = planned(sections, folder)
    data = data_of(chosen.config, write_rows(chosen, folder / "rows"))
    office = InProcess(chosen.config, data, seed=1).run()
    assert {end.status for end in office.ends.values()} == {"finished"}, office.ends
    return train_plan(chosen).history, office.history


@pytest.mark.parametrize("name", GOLDEN)
def test_a_run_has_the_history_that_it_had_and_so_has_one_between_parties(name, tmp_path):
    sections, expected = GOLDEN[name]
    if "encrypted" in name and find_spec("tenseal") is None:
        pytest.skip("tenseal is not installed")
    history, by_hub = runs(sections, tmp_path)
    assert digest(history) == expected
    for hub, lines in by_hub.items():
        assert digest(lines) == expected, hub
        for ours, theirs in zip(lines, history, strict=True):
            assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-13)


def test_a_baseline_has_the_history_that_it_had(tmp_path):
    assert digest(train_plan(planned({"train": {"algorithm": "fedbcd"}}, tmp_path)).history) == FEDBCD


def test_a_batch_of_runs_ends_with_the_losses_that_it_ended_with(tmp_path):
    plans = [planned({}, tmp_path, seed=seed, evaluate={"every": ROUNDS}) for seed in (1, 2)]
    simulation = simulate(*plans)
    state = simulation.advance(simulation.init(), 0, ROUNDS)
    ended = [figures.train_loss for figures in measure(simulation, state.blocks, ROUNDS)]
    assert ended == pytest.approx(BATCH, rel=1e-9)


if __name__ == "__main__":
    for golden, (changed, before) in GOLDEN.items():
        home = Path(sys.argv[1]) / golden.replace(" ", "_")
        home.mkdir(parents=True)
        found = digest(runs(changed, home)[0])
        print(found, "as before" if found == before else "differs", golden)
