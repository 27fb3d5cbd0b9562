import copy
import json
import subprocess
import sys

import numpy as np
import pytest
from two_tables import ROWS, write_csv

from tdcd.config import ConfigError, check_config, read_config
from tdcd.config.resolve import plan
from tdcd.data.table import holdout_mask
from tdcd.records.run_folder import toml_text
from tdcd.tables.assembly import assemble
from tdcd.tables.errors import TableError
from tdcd.tables.preparation import load_label_encoding, load_preparation
from tdcd.training.run import resume, run


def assembled(keys):
    config = check_config(keys)
    return assemble(config, bias=config.bias_silo)


def with_client_tables(keys, tmp_path, bank, bureau, seed=0):
    """The same federation with a table for each client, holding the same rows in another order."""
    federation = assembled(keys).federation
    rng = np.random.default_rng(seed)
    keys = copy.deepcopy(keys)
    held_out = np.setdiff1d(np.arange(ROWS), _train_numbers(keys))
    for silo, section, table in zip(federation.silos, keys["silos"], (bank, bureau), strict=True):
        del section["table"], section["clients"]
        ids = sorted(table[section.get("id", "id")])
        section["client"] = []
        for index, rows in enumerate(silo.rows):
            mine = np.append(_train_numbers(keys)[rows], held_out[index :: len(silo.rows)])
            place = {one: number for number, one in enumerate(table[section.get("id", "id")])}
            order = [place[ids[number]] for number in rng.permutation(mine)]
            name = f"{silo.name}/part{index}.csv"
            write_csv(tmp_path / name, {column: [values[row] for row in order] for column, values in table.items()})
            section["client"].append({"name": f"c{index + 1}", "table": name})
    return keys


def test_every_table_is_opened_once(keys, opened):
    """Also where its header is looked at for labels that it must not have."""
    opened.clear()
    assembled(keys | {"federation": {"labels": "bank"}})
    assert (opened["bank.csv"], opened["bureau.csv"]) == (1, 1)


def _train_numbers(keys):
    return np.flatnonzero(~holdout_mask(ROWS, keys["evaluate"]["holdout"], keys["data"]["seed"]))


def test_features_and_labels_are_those_of_the_joined_table(keys, expected):
    result = assembled(keys)
    features, labels, held_out = expected
    for silo, wanted in zip(result.federation.silos, features, strict=True):
        np.testing.assert_allclose(silo.features, wanted[~held_out], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(silo.test_features, wanted[held_out], rtol=1e-6, atol=1e-7)
        assert silo.features.dtype == np.float32
    np.testing.assert_array_equal(result.federation.labels, labels[~held_out])
    np.testing.assert_array_equal(result.federation.test_labels, labels[held_out])
    ids = np.arange(ROWS) * 7
    assert result.ids == [str(one) for one in ids[~held_out]]
    assert result.test_ids == [str(one) for one in ids[held_out]]
    assert (result.label_encoding.task, result.label_encoding.classes) == ("binary", ("no", "yes"))
    assert [silo.columns for silo in result.federation.silos] == [
        ("age", "age missing", "debt", "bias"),
        ("debt", "city=Oslo", "city=Rome", "city=other", "city missing"),
    ]
    assert [len(silo.rows) for silo in result.federation.silos] == [3, 2]


def test_clients_with_tables_of_their_own_give_the_same_bits(keys, tmp_path, bank, bureau):
    one = assembled(keys)
    many = assembled(with_client_tables(keys, tmp_path, bank, bureau))
    assert many.preparations == one.preparations
    for ours, theirs in zip(many.federation.silos, one.federation.silos, strict=True):
        np.testing.assert_array_equal(ours.features, theirs.features)
        np.testing.assert_array_equal(ours.test_features, theirs.test_features)
        for mine, yours in zip(ours.rows, theirs.rows, strict=True):
            np.testing.assert_array_equal(mine, yours)
        assert ours.clients == theirs.clients


def test_one_table_is_dealt_out_as_the_configuration_says(keys):
    keys["silos"][0]["clients"] = 2

    def owners(**rules):
        federation = assembled(keys | {"federation": rules}).federation
        return [silo.owner().tolist() for silo in federation.silos]

    assert owners()[0] != owners()[1]
    assert owners(aligned=True)[0] == owners(aligned=True)[1]
    assert owners(rows="contiguous", sizes=[2, 1]) == [[0] * 40 + [1] * 20] * 2
    assert [owner.count(0) for owner in owners(sizes=[[5, 1], [1, 2]])] == [50, 20]
    with pytest.raises(TableError, match="silo 'bank': 2 clients, but 3 sizes"):
        owners(sizes=[1, 1, 1])


def test_ids_that_a_silo_lacks_stop_the_run_unless_only_common_ones_are_wanted(keys, tmp_path, bank, bureau):
    write_csv(tmp_path / "bureau.csv", {name: values[5:] for name, values in bureau.items()})
    with pytest.raises(TableError) as caught:
        assembled(keys)
    assert caught.value.problems == [
        "75 ids are in every silo: silo 'bank' has 80, 5 of which others lack; silo 'bureau' has 75, 0 of which others "
        "lack: set data.align = true (between organisations: tdcd align) to train on the common ones, or data.samples "
        "= 'all' on every one with a label"
    ]
    keys["data"]["align"] = True
    result = assembled(keys)
    assert sorted(map(int, [*result.ids, *result.test_ids])) == sorted(bureau["key"][5:])
    common = [one in bureau["key"][5:] for one in bank["id"]]
    trimmed = {name: [v for v, kept in zip(values, common, strict=True) if kept] for name, values in bank.items()}
    write_csv(tmp_path / "bank.csv", trimmed)
    for ours, theirs in zip(result.federation.silos, assembled(keys).federation.silos, strict=True):
        np.testing.assert_array_equal(ours.features, theirs.features)
        np.testing.assert_array_equal(ours.test_features, theirs.test_features)
    write_csv(tmp_path / "bureau.csv", {**bureau, "key": [f"b{one}" for one in bureau["key"]]})
    with pytest.raises(TableError, match=r"0 ids are in every silo: .*: check that the id columns mean the same"):
        assembled(keys)


def test_an_id_that_two_clients_hold_names_both(keys, tmp_path, bank, bureau):
    keys = with_client_tables(keys, tmp_path, bank, bureau)
    path = tmp_path / "bank" / "part1.csv"
    stolen = (tmp_path / "bank" / "part0.csv").read_text().splitlines()[1]
    path.write_text(path.read_text() + stolen + "\n")
    with pytest.raises(
        TableError, match=rf"silo 'bank': id '{stolen.split(',')[0]}' is held by .*part0.csv and by .*part1"
    ):
        assembled(keys)


def test_labels_that_two_silos_give_must_agree(keys, tmp_path, bank, bureau):
    keys["silos"][1]["label"] = "late"
    label_of = dict(zip(bank["id"], bank["y"], strict=True))
    late = [label_of[one] for one in bureau["key"]]
    write_csv(tmp_path / "bureau.csv", {**bureau, "late": late})
    assert "late" not in assembled(keys).federation.silos[1].columns
    place = bureau["key"].index(min(bureau["key"]))
    late[place] = "maybe"
    write_csv(tmp_path / "bureau.csv", {**bureau, "late": late})
    message = f"labels differ for 1 sample: id '0' is '{label_of[0]}' in silo 'bank' and 'maybe' in silo 'bureau'"
    with pytest.raises(TableError, match=message):
        assembled(keys)


def test_labels_may_be_with_any_silo_and_are_standardised_amounts(keys, tmp_path, bank, bureau):
    amounts = np.random.default_rng(0).normal(7, 3, ROWS)
    del keys["silos"][0]["label"], bank["y"]
    keys["silos"][1]["label"] = "late"
    write_csv(tmp_path / "bank.csv", bank)
    write_csv(tmp_path / "bureau.csv", {**bureau, "late": amounts.tolist()})
    result = assembled(keys)
    known = dict(zip(map(str, bureau["key"]), amounts, strict=True))
    labels = np.array([known[one] for one in result.ids])
    np.testing.assert_allclose(result.federation.labels, (labels - labels.mean()) / labels.std())
    assert result.federation.label_scale == result.label_encoding.scale
    np.testing.assert_allclose([result.label_encoding.mean, result.label_encoding.scale], [labels.mean(), labels.std()])


def test_problems_of_all_files_come_together(keys, tmp_path, bank):
    write_csv(tmp_path / "bank.csv", {**bank, "age": ["old", *bank["age"][1:]]})
    keys["silos"][1]["table"] = "absent.csv"
    with pytest.raises(TableError) as caught:
        assembled(keys)
    assert [problem.rpartition("/")[2] for problem in caught.value.problems] == [
        "bank.csv, line 2, column 'age': 'old' is not a number: correct it, or list the column under categorical",
        "absent.csv: there is no such file",
    ]


def test_clients_with_different_columns_are_named(keys, tmp_path, bank, bureau):
    keys = with_client_tables(keys, tmp_path, bank, bureau)
    path = tmp_path / "bank" / "part1.csv"
    path.write_text(path.read_text().replace("debt", "debts", 1))
    with pytest.raises(TableError, match=r"silo 'bank': clients 'c1' and 'c2': .* column 'debt' is only in one"):
        assembled(keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda keys: keys["silos"][0].pop("label"), "no silo has a label: name the column to predict"),
        (lambda keys: keys["silos"][0].pop("table"), "silo 'bank': give it a table"),
        (lambda keys: keys["data"].update(rows=5), "data.rows = 5: leave it out, since files are read whole"),
        (lambda keys: keys.pop("silos"), r"data.source = 'files' needs \[\[silos\]\] with tables"),
        (lambda keys: keys["silos"][0].update(client=[{"name": "a", "table": "b"}]), "give one table, or one for each"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(keys, change, message):
    change(keys)
    with pytest.raises(ConfigError, match=message):
        assembled(keys)


def test_labels_that_do_not_fit_the_loss_are_refused(keys):
    keys["model"]["loss"] = "squared"
    with pytest.raises(
        TableError, match=r"the labels of silo 'bank': model.loss = 'squared': the labels must be numbers"
    ):
        assembled(keys)


def test_blanks_can_be_refused(keys):
    keys["data"]["missing"] = "refuse"
    with pytest.raises(TableError, match=r"column 'age': is blank: .* set data.missing = 'mean'"):
        assembled(keys)


def test_tables_are_next_to_the_configuration_file(keys, tmp_path, monkeypatch):
    del keys["data"]["folder"]
    path = tmp_path / "federation.toml"
    path.write_text(toml_text(keys))
    monkeypatch.chdir("/")
    assert read_config(path)["data"]["folder"] == str(tmp_path)
    assert assembled(read_config(path)).federation.num_samples == 60


def test_a_run_keeps_what_prediction_needs_and_can_be_resumed(keys, tmp_path):
    out = tmp_path / "run"
    config = check_config(keys)
    run(config, out)
    result = plan(config).assembled
    for silo, preparation in result.preparations.items():
        assert load_preparation(out, silo) == preparation
    assert load_label_encoding(out) == result.label_encoding
    assert json.loads((out / "labels.json").read_text())["classes"] == ["no", "yes"]
    assert resume(out, ["train.rounds=3"]).round == 3
    (out / "labels.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"labels.json is missing: it is there after a run from files"):
        load_label_encoding(out)
    (out / "labels.json").write_text("{")
    with pytest.raises(ValueError, match=r"labels.json is damaged"):
        load_label_encoding(out)


BIG = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.csv
folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
rows = int(sys.argv[2])
for name, label in (("bank", True), ("bureau", False)):
    columns = {"id": rng.permutation(rows)} | ({"y": rng.integers(0, 2, rows)} if label else {})
    columns |= {f"x{i}": np.round(rng.normal(size=rows), 6) for i in range(10)}
    pyarrow.csv.write_csv(pa.table(columns), folder / f"{name}.csv")
"""
TRAINING = """
import sys
from pathlib import Path
from tdcd.config import check_config
from tdcd.training.run import run
# Not getrusage, which counts what the process that started this one had.
def most_kilobytes():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = most_kilobytes()
silos = [{"name": "bank", "table": "bank.csv", "clients": 5, "label": "y"},
         {"name": "bureau", "table": "bureau.csv", "clients": 3}]
keys = {"data": {"source": "files", "folder": sys.argv[1]}, "silos": silos, "model": {"block": "linear"}}
result = run(check_config(keys | {"train": {"step_size": 0.05, "rounds": 10}}), Path(sys.argv[1]) / "run")
assert result.round == 10
print(most_kilobytes() - before)
"""


@pytest.mark.slow
def test_a_row_takes_little_memory(tmp_path):
    """A million rows of 20 columns train within 1.5 GB, 0.2 GB of it for the process itself."""
    rows = 250_000
    subprocess.run([sys.executable, "-c", BIG, str(tmp_path), str(rows)], check=True)
    done = subprocess.run([sys.executable, "-c", TRAINING, str(tmp_path)], check=True, capture_output=True, text=True)
    assert int(done.stdout) * 1024 / rows < 1300


def test_a_stratified_holdout_keeps_the_classes_shares(keys, tmp_path, bank):
    labels = ["rare" if row < 8 else "common" for row in range(ROWS)]
    write_csv(tmp_path / "bank.csv", bank | {"y": labels})
    keys["evaluate"] |= {"stratify": True}
    federation = assemble(check_config(keys), bias=0).federation
    assert np.bincount(federation.test_labels.astype(int)).tolist() == [18, 2]
    write_csv(tmp_path / "bank.csv", bank | {"y": np.arange(ROWS) / 3})
    with pytest.raises(ValueError, match=r"evaluate\.stratify = true: the labels are amounts"):
        assemble(check_config(keys), bias=0)
