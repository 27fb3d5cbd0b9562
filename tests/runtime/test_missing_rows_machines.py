"""Samples that some silos lack, between real parties: the simulation's history, and what is refused."""

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from test_align import talk_all

from support.in_process import SECRET, InProcess, largest_difference
from support.parts import EVALUATION
from support.party_files import data_of
from support.party_processes import assert_same_run, simulated, up, written
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.prediction.model import Model
from tdcd.prediction.scores import SiloScores, combine
from tdcd.runtime.job import Job
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.messages.messages import Part
from tdcd.runtime.process.align import AlignHub, ids_in
from tdcd.runtime.process.predict import ModelOf, PredictHub, ScoringClient, ScoringHub, StandInScores
from tdcd.runtime.process.trial import write_rows
from tdcd.tables.reader import read_rows
from tdcd.training.run import run

EXAMPLES = str(Path(__file__).parents[2] / "examples")
COLUMNS = {"bank": ["age", "income"], "shop": ["debt", "town"], "bureau": ["score", "loans"]}


def write_tables(folder, seed=3, samples=90, share=0.6, labelled=("bank",), classes=("no", "yes"), everywhere=()):
    """One table per silo; each has its share of the rows, the silos in ``everywhere`` all of them."""
    rng = np.random.default_rng(seed)
    amounts = rng.normal(5, 3, (samples, 5))
    towns = rng.choice(["Rome", "Oslo", "Ulm", ""], samples, p=[0.5, 0.3, 0.1, 0.1])
    total = amounts[:, 0] - amounts[:, 1] + 2 * (towns == "Rome") + rng.normal(0, 1, samples)
    cells = dict(zip(("age", "income", "debt", "score", "loans"), amounts.round(3).T.astype(str), strict=True))
    cells |= {"town": towns}
    if classes is None:
        cells["label"] = total.round(2).astype(str)
    else:
        bounds = np.quantile(total, np.arange(1, len(classes)) / len(classes))
        cells["label"] = np.array(classes)[np.searchsorted(bounds, total)]
    has = {silo: (rng.random(samples) < share) | (silo in everywhere) for silo in COLUMNS}
    has[next(iter(COLUMNS))] |= ~np.any([*has.values()], axis=0)
    folder.mkdir(parents=True, exist_ok=True)
    for silo, columns in COLUMNS.items():
        chosen = ["label"] * (silo in labelled) + columns
        with (folder / f"{silo}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *chosen])
            # In another order, so that nobody can go by places.
            for row in rng.permutation(np.flatnonzero(has[silo])):
                writer.writerow([f"k{row}", *(cells[name][row] for name in chosen)])
    return folder


def keys_of(folder, labelled=("bank",), clients=2, periods=None, **sections):
    silos = []
    for silo in COLUMNS:
        section = {"name": silo, "table": f"{silo}.csv", "clients": clients, "categorical": ["town"] * (silo == "shop")}
        section["period"] = (periods or {}).get(silo, 1)
        silos.append({**section, **({"label": "label"} if silo in labelled else {})})
    keys = {
        "dtype": "float64",
        "data": {"source": "files", "folder": str(folder), "samples": "all", **sections.pop("data", {})},
        "silos": silos,
        "model": {"block": "linear", "l2": 0.01},
        "train": {"rounds": 4, "local_steps": 3, "batch_size": 20, "step_size": 0.2},
        "evaluate": {"every": 2, "holdout": 0.2},
    }
    for name, own in sections.items():
        keys[name] = {**keys.get(name, {}), **own}
    return keys


def with_households(folder, seed=7, homes=9):
    """The shop's table by households, whose rows belong to many samples; joined to its samples in shop.csv."""
    rng = np.random.default_rng(seed)
    (head, *lines) = csv.reader((folder / "shop.csv").read_text().splitlines())
    place = {f"h{home}": rng.integers(len(lines)) for home in range(homes)}
    with (folder / "households.csv").open("w", newline="") as file:
        cells = [[lines[row][head.index(column)] for column in COLUMNS["shop"]] for row in place.values()]
        csv.writer(file).writerows(
            [["home", *COLUMNS["shop"]], *([home, *own] for home, own in zip(place, cells, strict=True))]
        )
    live = rng.integers(homes, size=len(lines))
    labels = [line[head.index("label")] for line in lines] if "label" in head else None
    with (folder / "members.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "home"] + ["label"] * (labels is not None))
        for number, (line, home) in enumerate(zip(lines, live, strict=True)):
            writer.writerow([line[0], f"h{home}"] + ([] if labels is None else [labels[number]]))
    with (folder / "shop.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        for line, home in zip(lines, live, strict=True):
            own = dict(zip(COLUMNS["shop"], cells[home], strict=True))
            writer.writerow([own.get(name, cell) for name, cell in zip(head, line, strict=True)])
    return folder


def keyed(keys):
    """The same federation, whose shop has households."""
    shop = {**keys["silos"][1], "table": "households.csv", "key": "home", "link": "members.csv"}
    return {**keys, "silos": [keys["silos"][0], shop, keys["silos"][2]]}


def office_of(config, folder, seed=0):
    planned = plan(config)
    return planned, InProcess(config, data_of(config, write_rows(planned, folder / "data")), seed)


def check(config, folder):
    """The parties' history, blocks and preparations are the simulation's, and the ledger counts what is sent."""
    planned, office = office_of(config, folder)
    office.run()
    result = run(config, folder / "run")
    assert {end.status for end in office.ends.values()} == {"finished"}, office.ends
    assert not office.refused
    for history in office.history.values():
        for ours, theirs in zip(history, result.history, strict=True):
            assert (ours.round, ours.bytes, ours.messages) == (theirs.round, theirs.bytes, theirs.messages)
            assert ours.evaluation_bytes == theirs.evaluation_bytes
            assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-10)
            assert ours.test_loss == pytest.approx(theirs.test_loss, rel=1e-10)
            assert ours.metrics["test"] == pytest.approx(theirs.metrics["test"], rel=1e-9)
    for hub, block in office.blocks().items():
        assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 1e-10
    for hub, machine in office.hubs.items():
        silo = hub.removeprefix("hub.")
        known = planned.federation.silos[planned.config.silo_names.index(silo)]
        assert machine.handshake.preparation == known.preparation
    patterns = json.loads((folder / "run" / "subsets.json").read_text())
    for subsets in filter(None, office.subsets.values()):
        assert subsets["trained_without"] == patterns["trained_without"]
        for ours_of, theirs_of in zip(subsets["means"], patterns["means"], strict=True):
            assert {**ours_of, "mean_phi": {}} == {**theirs_of, "mean_phi": {}}
            for silo, mean in ours_of["mean_phi"].items():
                # Masks are of numbers in fixed point, and show no single phi of another silo.
                is_masked = config.exchange.protect == "mask"
                assert mean == pytest.approx(theirs_of["mean_phi"][silo], rel=1e-8, abs=1e-7 if is_masked else 1e-10)
                assert len(ours_of["mean_phi"]) == (1 if is_masked else len(COLUMNS))
        assert subsets.get("calibration", {}) == pytest.approx(patterns.get("calibration", {}))
        for ours_of, theirs_of in zip(subsets["patterns"], patterns["patterns"], strict=True):
            assert {key: ours_of[key] for key in ("silos", "trained", "samples")} == {
                key: theirs_of[key] for key in ("silos", "trained", "samples")
            }
            assert ours_of["loss"] == pytest.approx(theirs_of["loss"])
    scored = [message for message in office.sent if isinstance(message, Part) and message.flow in EVALUATION]
    assert ours.evaluation_bytes.total == sum(message.payload_bytes for message in scored)
    return office, result


EVERYWHERE = ("bank", "shop", "bureau")
AT_BANK = {"federation": {"labels": "bank"}}
MLP = {"block": "mlp", "hidden": [4]}
CASES = {
    "labels at one silo": (("bank",), AT_BANK),
    "labels everywhere": (EVERYWHERE, {}),
    "labels in one table": (("shop",), {}),
    "labels in two tables, stratified": (("shop", "bureau"), {"evaluate": {"stratify": True}}),
    "networks, constants, reused": (
        EVERYWHERE,
        {"model": MLP, "data": {"standin": "constant"}, "train": {"minibatches": "reused"}},
    ),
    "masks, momentum": (("bank",), {**AT_BANK, "exchange": {"protect": "mask"}, "train": {"optimizer": "momentum"}}),
    "no stand-ins": (EVERYWHERE, {"data": {"standin": "none"}}),
    "an ensemble": (("bank",), {**AT_BANK, "model": {"block": "ensemble", "hidden": [4], "members": 2}}),
    "a hidden layer, bins": (EVERYWHERE, {"model": {"head": "hidden", "head_units": 2, "encoding": "bins", "bins": 4}}),
    "pairs": (("bank",), {**AT_BANK, "model": {"head": "pairs", "head_rank": 2}}),
    "overlap, few bits": (EVERYWHERE, {"train": {"overlap": 1}, "exchange": {"phi_bits": 8, "block_bits": 8}}),
    "a slow silo": (EVERYWHERE, {"periods": {"shop": 3}, "train": {"rounds": 7}}),
    "a block of one's own": (("bank",), {**AT_BANK, "model": {"block": ["linear", "own_block:Quadratic", "linear"]}}),
    "protected blocks": (EVERYWHERE, {"exchange": {"protect": "mask", "protect_blocks": True}}),
    "scaled steps, converged": (("bank",), {**AT_BANK, "train": {"step_size": "auto", "minibatches": "full"}}),
    "class weights": (EVERYWHERE, {"train": {"class_weights": "balanced"}}),
    "participation": (EVERYWHERE, {"train": {"participation": 0.5}}),
    "silo dropout, overlap, few bits, a slow silo": (
        EVERYWHERE,
        {
            "train": {"silo_dropout": 0.3, "overlap": 1},
            "exchange": {"phi_bits": 8, "block_bits": 8},
            "periods": {"shop": 2},
        },
    ),
    "patience": (("bank",), {**AT_BANK, "evaluate": {"patience": 1, "keep": "best", "every": 1}}),
}


@pytest.mark.parametrize("name", CASES)
def test_same_as_the_simulation(tmp_path, name):
    labelled, sections = CASES[name]
    folder = with_households(write_tables(tmp_path / "tables", labelled=labelled))
    if "block of one's own" in name:
        sections = {**sections, "model": {**sections["model"], "folder": EXAMPLES}}
    keys = keys_of(folder, labelled, 3 if "protected blocks" in name else 2, **sections)
    # The other two silos have a row for each sample.
    check(check_config(keyed(keys)), tmp_path)


def test_scaled_steps_with_silo_dropout_and_masked_products(tmp_path):
    """What clients add up is a mean over the silo's rows, not over all samples. In steps of 1e-7, one may differ."""
    train = {"silo_dropout": 0.3, "step_size": "auto"}
    keys = keys_of(write_tables(tmp_path / "tables"), clients=3, train=train, **AT_BANK)
    config = check_config({**keys, "exchange": {"protect_blocks": True}})
    _, office = office_of(config, tmp_path)
    office.run()
    result = run(config, tmp_path / "run")
    for history in office.history.values():
        losses = [record.train_loss for record in history]
        assert losses == pytest.approx([record.train_loss for record in result.history], rel=1e-6)


@pytest.mark.parametrize("labels", [{}, AT_BANK])
def test_weights_next_to_the_only_labels(tmp_path, labels):
    folder = write_tables(tmp_path / "tables")
    head, *lines = (folder / "bank.csv").read_text().splitlines()
    weighed = [f"{head},w", *(f"{line},{1 + place % 3}" for place, line in enumerate(lines))]
    (folder / "bank.csv").write_text("\n".join(weighed) + "\n")
    keys = keys_of(folder, **labels)
    keys["silos"][0]["weight"] = "w"
    check(check_config(keys), tmp_path)
    keys["silos"][1] |= {"label": "debt", "weight": "w"}
    with pytest.raises(ConfigError, match="where several silos have labels, a sample may lack the one that weighs it"):
        check_config({**keys, "federation": {}})


@pytest.mark.parametrize(
    ("labelled", "at_clients", "rate"),
    [(("bank",), (), 0.0), (EVERYWHERE, (), 0.3), (("bank",), (0, 2), 0.3), (EVERYWHERE, (0, 1), 0.0)],
)
def test_hubs_predict_what_the_model_in_one_place_predicts(tmp_path, labelled, at_clients, rate):
    folder = with_households(write_tables(tmp_path / "tables", labelled=labelled))
    sections = {"train": {"silo_dropout": rate}, **(AT_BANK if labelled == ("bank",) else {})}
    keys = keys_of(folder, labelled, **sections)
    if 2 in at_clients:
        keys["silos"][2]["aggregate"] = ["sum", "count"]
    config = check_config(keyed(keys) if 1 in at_clients else keys)
    run(config, tmp_path / "run")
    model = Model.load(tmp_path / "run")
    new = with_households(write_tables(tmp_path / "new", seed=5, samples=40, labelled=()))
    rows = {silo: read_rows(new / f"{silo}.csv", model.part(silo).columns) for silo in COLUMNS}
    assert any(model.part(silo).preparation.absent.silos for silo in COLUMNS)
    whole = combine(model.all_scores(rows), allow_missing=True)
    expected = dict(zip(whole.ids, whole.scores, strict=True))
    job, talks, clients = Job(config), {}, []

    def hub_of(index, scores, stand_ins):
        return PredictHub(job, index, scores, ModelOf("abc", "finished"), stand_ins=stand_ins)

    for index, silo in enumerate(COLUMNS):
        part = model.part(silo)
        if index in at_clients:
            talks[silo] = ScoringHub(job, index, model, partial(hub_of, index))
            # Here rows of households have the ids of samples, a row for each; at clients, both have keys.
            head, *lines = (new / f"{'members' if index == 1 else silo}.csv").read_text().splitlines()
            for place, name in enumerate(job.clients(index)):
                (table := tmp_path / f"{name}.csv").write_text("\n".join([head, *lines[place::2]]) + "\n")
                tables = (new / "households.csv", table) if index == 1 else (table,)
                clients.append(ScoringClient(job, index, name, *tables))
            continue
        stand_ins = StandInScores(part.preparation.absent.silos, partial(part.phi, rows[silo]))
        talks[silo] = hub_of(index, SiloScores(rows[silo].ids, part.phi(rows[silo])), stand_ins)
    outcomes = talk_all([*talks.values(), *clients])
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}, outcomes
    for silo in labelled:
        hub = talks[silo].hub if isinstance(talks[silo], ScoringHub) else talks[silo]
        theirs = {peer.removeprefix("hub."): part for peer, part in hub.scores().items()}
        found = combine({name: hub.own if name == silo else theirs[name] for name in COLUMNS}, allow_missing=True)
        assert {*found.ids} == {*rows[silo].ids}
        for sample, scores in zip(found.ids, found.scores, strict=True):
            np.testing.assert_allclose(scores, expected[sample], rtol=1e-12, atol=1e-12)


PERCEPTRON = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1, bias=False))
"""


def test_a_block_of_pytorch(tmp_path):
    pytest.importorskip("torch", reason="PyTorch blocks need the extra tdcd[torch]")
    (tmp_path / "a_perceptron.py").write_text(PERCEPTRON)
    model = {"block": ["linear", "linear", "torch"], "module": "a_perceptron:make", "folder": str(tmp_path)}
    keys = keys_of(write_tables(tmp_path / "tables"), **AT_BANK, model=model, train={"rounds": 2})
    check(check_config(keys), tmp_path)


@pytest.mark.parametrize(
    ("labelled", "classes", "loss"),
    [
        (("bank",), ("a", "b", "c"), {}),
        (EVERYWHERE, ("0", "1", "2"), {}),
        (EVERYWHERE, None, {}),
        (EVERYWHERE, None, {"loss": "huber"}),
        (("bank",), ("0", "1", "2", "4"), {"loss": "poisson"}),
    ],
)
def test_classes_and_amounts(tmp_path, labelled, classes, loss):
    folder = write_tables(tmp_path / "tables", labelled=labelled, classes=classes)
    at_one = AT_BANK if labelled == ("bank",) else {}
    check(check_config(keys_of(folder, labelled, model={"block": "linear", **loss}, **at_one)), tmp_path)


@pytest.mark.parametrize("labelled", [("bank",), EVERYWHERE])
def test_with_nothing_missing_it_is_the_same_as_common_bit_for_bit(tmp_path, labelled):
    folder = write_tables(tmp_path / "tables", samples=40, share=1.0, labelled=labelled)
    histories = []
    for samples in ("common", "all"):
        sections = {"data": {"samples": samples}, **(AT_BANK if labelled == ("bank",) else {})}
        _, office = office_of(check_config(keys_of(folder, labelled, **sections)), tmp_path / samples)
        office.run()
        subsets = {hub: json.dumps(own, sort_keys=True) for hub, own in office.subsets.items()}
        lines = {hub: [record.to_json() for record in lines] for hub, lines in office.history.items()}
        blocks = {hub: block["weight"].tobytes() for hub, block in office.blocks().items()}
        histories.append((lines, blocks, subsets))
    assert histories[0] == histories[1]


def refusal(office):
    office.run()
    return {end.reason for end in office.ends.values() if end.status == "refused"}


def test_lists_that_do_not_fit_are_refused(tmp_path):
    folder = write_tables(tmp_path / "tables", labelled=EVERYWHERE)
    config = check_config(keys_of(folder, EVERYWHERE))
    _, office = office_of(config, tmp_path)
    lists = {hub: office.data[hub] for hub in office.hubs}
    bank = lists["hub.bank"]

    def reasons(changed):
        return " ".join(refusal(InProcess(config, {**office.data, "hub.bank": changed})))

    older = replace(bank, held_by={**bank.held_by, "shop": ~bank.held_by["shop"]})
    assert "have different samples in common: align their ids again (tdcd align)" in reasons(older)
    names = [*bank.ids[1:], "stranger"]
    assert "'k" in (said := reasons(replace(bank, ids=names)))
    assert "the list of samples does not fit the clients' rows" in said
    more = replace(bank, total=bank.total + 1)
    assert "align their ids" in reasons(more)
    with pytest.raises(ConfigError, match="a hub needs the list of its samples, which tdcd align writes for it"):
        InProcess(config, {**office.data, "hub.bank": None})
    common = check_config(keys_of(folder, EVERYWHERE, data={"samples": "common", "align": True}))
    with pytest.raises(ConfigError, match="a hub takes no --samples; leave it out"):
        InProcess(common, office.data)


def test_a_run_is_continued_with_the_list_that_it_began_with(tmp_path):
    config = check_config(keys_of(write_tables(tmp_path / "tables"), **AT_BANK))
    _, office = office_of(config, tmp_path)
    office.run()
    job, state, own = Job(config), office.states["hub.bank"], office.data["hub.bank"]
    Hub(job, 0, secret=SECRET, nonce="nonce 0", restored=state, listed=own)
    with pytest.raises(ConfigError, match="the list of samples is not the one that the run began with"):
        Hub(job, 0, secret=SECRET, nonce="nonce 0", restored=state, listed=replace(own, total=own.total + 1))


@pytest.mark.parametrize("labelled", [("bank",), EVERYWHERE])
def test_rows_of_many_samples(tmp_path, labelled):
    folder = with_households(write_tables(tmp_path / "tables", labelled=labelled))
    keys = keys_of(folder, labelled, **(AT_BANK if labelled == ("bank",) else {}))
    config = check_config(keyed(keys))
    _, result = check(config, tmp_path)
    joined = run(check_config(keys), tmp_path / "joined")
    assert [record.train_loss for record in result.history] == [record.train_loss for record in joined.history]
    # Hubs that align get the lists that training in one place makes.
    job, lists = Job(config), plan(config).assembled.lists
    tables = [ids_in(folder / silo.table, config, silo) for silo in config.silos]
    hubs = [AlignHub(job, place, SECRET, {part.source: part.ids}) for place, part in enumerate(tables)]
    talk_all(hubs)
    assert [hub.listed.digest for hub in hubs] == [lists[silo].digest for silo in COLUMNS]


def test_labels_that_differ_between_silos_are_refused(tmp_path):
    folder = write_tables(tmp_path / "tables", labelled=EVERYWHERE)
    _, office = office_of(config := check_config(keys_of(folder, EVERYWHERE)), tmp_path)
    name = "client.shop.c1"
    assert name in office.data, [*office.data]
    rows = office.data[name]
    turned = ["no" if label == "yes" else "yes" for label in rows.labels]
    data = {**office.data, name: replace(rows, labels=turned, table=replace(rows.table, labels=turned))}
    assert any("has other labels than the hubs before it" in reason for reason in refusal(InProcess(config, data)))


def test_a_trial_of_processes_and_its_report(tmp_path):
    folder = with_households(write_tables(tmp_path / "tables"))
    path, out = written(tmp_path / "up", keyed(keys_of(folder, **AT_BANK))), tmp_path / "up" / "trial"
    code, text = up(path, out)
    assert code == 0, text
    simulated(path, tmp_path / "run")
    assert_same_run(out, tmp_path / "run", 1e-9)
    assert Model.load(out).stand_ins.knows_absence
    assert "Samples by the silos that have them" in (out / "report.html").read_text()
