import csv
import shutil

import numpy as np
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from two_tables import ROWS, called, write_csv

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.prediction import model
from tdcd.prediction.model import Model
from tdcd.prediction.predictions import write_predictions
from tdcd.prediction.scores import Predictions, SiloScores, combine
from tdcd.records.history import read_history
from tdcd.records.run_folder import RunFolder, toml_text
from tdcd.tables.errors import TableError
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import load_label_encoding
from tdcd.training.train import train_plan


def trained(keys, out, **sections):
    """Run a configuration; the scores of all its samples by id, from the engine that trained it."""
    for name, changes in sections.items():
        keys = keys | {name: keys.get(name, {}) | changes}
    planned = plan(check_config(keys))
    result = train_plan(planned, out)
    scores = result.simulation.scores(list(result.blocks.values()))
    held_out = result.scores([silo.test_features for silo in planned.federation.silos])
    ids = [*planned.assembled.ids, *planned.assembled.test_ids]
    return dict(zip(ids, np.concatenate([scores, held_out]), strict=True))


@pytest.fixture
def run(keys, tmp_path):
    trained(keys, tmp_path / "run")
    return tmp_path / "run"


RARE = (
    "Warning: silo 'bureau', column 'city': 5 of 80 rows have a level ('Bern') that was rare in training, or not "
    "there: they count as 'other' "
)


ENSEMBLE = {"model": {"block": "ensemble", "hidden": [4, 3], "members": 3}}


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "sections",
    [{}, {"dtype": "float64"}, {"model": {"block": "mlp", "hidden": [3]}}, ENSEMBLE, {"model": {"loss": "softmax"}}],
    ids=["linear", "float64", "mlp", "ensemble", "softmax"],
)
def test_scores_are_those_of_the_engine_that_trained(keys, tmp_path, monkeypatch, sections):
    keys = keys | {"dtype": sections.pop("dtype", "float32")}
    expected = trained(keys, tmp_path / "run", **sections)
    monkeypatch.setattr(model, "ROWS_AT_ONCE", 32)
    loaded = Model.load(tmp_path / "run")
    parts = {name: loaded.silo_scores(name, tmp_path / f"{name}.csv") for name in ("bank", "bureau")}
    predictions = combine(parts)
    assert predictions.scores.dtype == keys["dtype"]
    assert list(predictions.ids) == [row["id"] for row in rows_of(tmp_path / "bank.csv")]
    np.testing.assert_allclose(predictions.scores, [expected[one] for one in predictions.ids], rtol=1e-5, atol=1e-6)
    assert np.abs(predictions.scores).max() > 0.01
    assert not any(predictions.missing)


def test_a_silo_that_trained_alone_predicts_alone(keys, tmp_path):
    expected = trained(keys, tmp_path / "run", train={"algorithm": "local-sgd", "silo": "bureau"})
    found = Model.load(tmp_path / "run").silo_scores("bureau", tmp_path / "bureau.csv")
    np.testing.assert_allclose(found.phi, [expected[one] for one in found.ids], rtol=1e-5, atol=1e-6)


def test_a_table_needs_only_the_id_and_the_features_in_any_order_and_format(run, tmp_path, bureau):
    expected = Model.load(run).silo_scores("bureau", tmp_path / "bureau.csv")
    write_csv(tmp_path / "new.csv", {"note": ["?"] * ROWS, **dict(reversed(bureau.items()))})
    pq.write_table(pcsv.read_csv(tmp_path / "new.csv"), tmp_path / "new.parquet")
    for name in ("new.csv", "new.parquet"):
        found = Model.load(run).silo_scores("bureau", tmp_path / name)
        assert list(found.ids) == list(expected.ids)
        np.testing.assert_array_equal(found.phi, expected.phi)


def test_what_a_table_lacks_is_named(run, tmp_path, bank):
    renamed = {"agee" if name == "age" else name: values for name, values in bank.items()}
    write_csv(tmp_path / "new.csv", renamed)
    with pytest.raises(TableError, match=r"new.csv: has no column 'age'; did you mean 'agee'\?"):
        Model.load(run).silo_scores("bank", tmp_path / "new.csv")
    with pytest.raises(TableError, match=r"none.csv: there is no such file"):
        Model.load(run).silo_scores("bank", tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"there is no silo 'banq' in .*; there are bank, bureau"):
        Model.load(run).silo_scores("banq", tmp_path / "bank.csv")


def test_a_hub_s_folder_scores_its_own_silo_and_no_other(run, tmp_path):
    expected = Model.load(run).silo_scores("bank", tmp_path / "bank.csv")
    (run / "model" / "bureau.safetensors").unlink()
    (run / "preparation" / "bureau.json").unlink()
    np.testing.assert_array_equal(Model.load(run).silo_scores("bank", tmp_path / "bank.csv").phi, expected.phi)
    message = "bureau.safetensors is missing: .* has the part of 'bank', not of silo 'bureau'"
    with pytest.raises(FileNotFoundError, match=message):
        Model.load(run).silo_scores("bureau", tmp_path / "bureau.csv")


def scores_of(**numbers):
    return SiloScores([name.strip("_") for name in numbers], np.array([[value] for value in numbers.values()]))


def test_scores_are_summed_by_id_in_the_order_of_the_rows():
    parts = {"bank": scores_of(_10=1.0, _7=2.0, _9=3.0), "bureau": scores_of(_9=30.0, _10=10.0, _7=20.0)}
    found = combine(parts)
    assert list(found.ids) == ["10", "7", "9"]
    assert found.scores.tolist() == [[11.0], [22.0], [33.0]]
    found = combine(parts, in_order_of="bureau")
    assert list(found.ids) == ["9", "10", "7"]
    assert found.scores.tolist() == [[33.0], [11.0], [22.0]]
    found = combine({"bank": scores_of(_2=1.0), "bureau": scores_of(_3=3.0, _2=2.0, _1=1.0)}, allow_missing=True)
    assert list(found.ids) == ["2", "3", "1"]


def test_ids_that_a_silo_lacks_are_listed_or_scored_without_it():
    parts = {
        "bank": scores_of(_1=1.0, _2=2.0, _4=4.0),
        "bureau": scores_of(_2=20.0, _3=30.0),
        "shop": scores_of(_1=100.0, _2=200.0, _3=300.0),
    }
    with pytest.raises(TableError) as caught:
        combine(parts)
    advice = "add them to its table, score them without its part with --allow-missing, or leave them out with --common"
    assert caught.value.problems == [
        f"silo 'bank' lacks 1 of 4 ids: '3': {advice}",
        f"silo 'bureau' lacks 2 of 4 ids: '1', '4': {advice}",
        f"silo 'shop' lacks 1 of 4 ids: '4': {advice}",
    ]
    found = combine(parts, allow_missing=True)
    assert found.scores[:, 0].tolist() == [101.0, 222.0, 4.0, 330.0]
    assert list(map(tuple, found.missing)) == [("bureau",), (), ("bureau", "shop"), ("bank",)]


def test_only_the_first_of_many_ids_are_listed():
    many = SiloScores([str(number) for number in range(100)], np.zeros((100, 1)))
    with pytest.raises(TableError, match=r"lacks 99 of 100 ids: '1', .*'20', \.\.\.: add them"):
        combine({"bank": many, "bureau": scores_of(_0=0.0)})


def written(path, scores, label_encoding, loss, missing=None):
    ids = [f"n{number}" for number in range(len(scores))]
    predictions = Predictions(ids, np.array(scores, np.float64), missing or [()] * len(scores))
    write_predictions(path, predictions, label_encoding, loss, mark_missing=missing is not None)
    return path.read_text(encoding="utf-8").splitlines()


def test_amounts_are_written_in_their_own_unit(tmp_path):
    lines = written(tmp_path / "deep" / "p.csv", [[2.0], [-0.5]], LabelEncoding("regression", (), 10.0, 4.0), "squared")
    assert lines == ["id,prediction", "n0,18.0", "n1,8.0"]


def test_two_classes_have_the_second_one_s_probability(tmp_path):
    scores = [[0.0], [np.log(1.5)], [1000.0], [-1000.0]]
    label_encoding = LabelEncoding("binary", ("no", "yes, sir"))
    lines = written(tmp_path / "p.csv", scores, label_encoding, "logistic", [(), ("bank",), (), ("bank", "bureau")])
    assert lines[0] == 'id,prediction,"probability_yes, sir",missing'
    assert lines[1] == "n0,no,0.5,"
    assert lines[3:] == ['n2,"yes, sir",1.0,', "n3,no,0.0,bank bureau"]
    found = rows_of(tmp_path / "p.csv")[1]
    assert (found["prediction"], found["missing"]) == ("yes, sir", "bank")
    assert float(found["probability_yes, sir"]) == pytest.approx(0.6)


def test_several_classes_have_a_probability_each(tmp_path):
    scores = np.log([[1.0, 2.0, 5.0], [0.5, 0.25, 0.25]]) + np.array([[700.0], [-700.0]])
    lines = written(tmp_path / "p.csv", scores, LabelEncoding("multiclass", ("a", "b", "ü")), "softmax")
    assert lines[0] == "id,prediction,probability_a,probability_b,probability_ü"
    assert [line.split(",")[1] for line in lines[1:]] == ["ü", "a"]
    chances = [[float(cell) for cell in line.split(",")[2:]] for line in lines[1:]]
    np.testing.assert_allclose(chances, [[0.125, 0.25, 0.625], [0.5, 0.25, 0.25]])


def test_the_command_writes_predictions(run, tmp_path, bank):
    out = tmp_path / "new" / "predictions.csv"
    data = ["--data", f"bank={tmp_path / 'bank.csv'}", "--data", f"bureau={tmp_path / 'bureau.csv'}"]
    assert called("predict", run, *data, "--out", out) == (0, f"{RARE}Predictions: {out}, {ROWS} rows")
    found = rows_of(out)
    assert list(found[0]) == ["id", "prediction", "probability_yes"]
    assert all((row["prediction"] == "yes") == (float(row["probability_yes"]) > 0.5) for row in found)
    assert [row["id"] for row in found] == [str(one) for one in bank["id"]]
    status, said = called("predict", run, *data, "--out", out)
    assert (status, said) == (2, f"Error: {out} is there already: choose another --out, or replace it with --force")
    before = out.read_bytes()
    out.write_text("old")
    assert called("predict", run, *data, "--out", out, "--force")[0] == 0
    assert out.read_bytes() == before


@pytest.mark.filterwarnings("ignore:silo 'bureau', column 'city'")
def test_a_table_is_opened_once(run, tmp_path, bank, bureau, opened):
    """Header, first rows and all rows are read from one open file; and so is what there is of the model."""
    ids = bank["id"][:5]
    write_csv(tmp_path / "five_bank.csv", {name: values[:5] for name, values in bank.items()})
    places = [bureau["key"].index(one) for one in ids]
    write_csv(tmp_path / "five_bureau.csv", {name: [of[place] for place in places] for name, of in bureau.items()})
    opened.clear()
    data = [f"--data={silo}={tmp_path / f'five_{silo}.csv'}" for silo in ("bank", "bureau")]
    assert called("predict", run, *data, "--out", tmp_path / "p.csv")[0] == 0
    assert [row["id"] for row in rows_of(tmp_path / "p.csv")] == [str(one) for one in ids]
    assert (opened["five_bank.csv"], opened["five_bureau.csv"]) == (1, 1)
    assert [opened[name] for name in ("config.toml", "bank.safetensors", "bureau.safetensors", "labels.json")] == [
        1
    ] * 4


def test_a_hub_that_predicts_reads_the_federation_once(tmp_path, keys, opened):
    federation = tmp_path / "federation.toml"
    hubs = [{**silo, "hub": f"127.0.0.1:{port}"} for port, silo in enumerate(keys["silos"], 1)]
    federation.write_text(toml_text({**keys, "silos": hubs}))
    opened.clear()
    files = ["--data", tmp_path / "bank.csv", "--out", tmp_path / "predictions.csv", "--run", tmp_path / "none"]
    status, said = called("predict", federation, "--silo", "bank", "--insecure", *files)
    assert (status, str(tmp_path / "none") in said) == (2, True), said
    assert opened[federation.name] == 1


def test_the_command_scores_without_a_silo_if_it_may(run, tmp_path, bank):
    out, whole = tmp_path / "p.csv", {name: values[:-3] for name, values in bank.items()}
    write_csv(tmp_path / "fewer.csv", whole)
    data = ["--data", f"bureau={tmp_path / 'bureau.csv'}", "--data", f"bank={tmp_path / 'fewer.csv'}"]
    status, said = called("predict", run, *data, "--out", out)
    assert (status, f"silo 'bank' lacks 3 of {ROWS} ids:" in said, out.exists()) == (2, True, False)
    status, said = called("predict", run, *data, "--out", out, "--allow-missing")
    assert (status, "3 of them are scored without the part of silo 'bank'. without silo 'bank'," in said) == (0, True)
    lacking = {row["id"] for row in rows_of(out) if row["missing"] == "bank"}
    assert lacking == {str(one) for one in bank["id"][-3:]}
    alone = Model.load(run).silo_scores("bureau", tmp_path / "bureau.csv")
    chances = {row["id"]: float(row["probability_yes"]) for row in rows_of(out)}
    (mean,) = RunFolder(run).subsets()["mean_phi"]["bank"]
    for one, score in zip(alone.ids, alone.phi[:, 0].astype(float), strict=True):
        if one in lacking:
            assert chances[one] == pytest.approx(1 / (1 + np.exp(-score - mean)))
    status, said = called("predict", run, *data[:2], "--out", tmp_path / "q.csv")
    assert (status, said) == (2, "Error: --data bank=FILE is missing: give it, or predict without it: --without bank")
    assert called("predict", run, *data[:2], "--out", tmp_path / "q.csv", "--allow-missing")[0] == 0
    assert {row["missing"] for row in rows_of(tmp_path / "q.csv")} == {"bank"}


@pytest.mark.parametrize("data", [["bank.csv"], ["bank="], ["bank=a.csv", "bank=b.csv"]])
def test_data_that_names_no_silo_is_refused(run, tmp_path, data):
    options = [option for text in data for option in ("--data", text)]
    status, said = called("predict", run, *options, "--out", tmp_path / "p.csv")
    assert status == 2
    assert f"Error: --data {data[-1]}: write SILO=FILE, once for each of bank, bureau" in said


def test_predicting_with_other_hubs_needs_a_silo_and_one_file(tmp_path):
    arguments = ("predict", tmp_path / "federation.toml", "--out", tmp_path / "p.csv", "--data")
    message = "takes --silo NAME, and one --data FILE: this silo's new rows, or none where its clients have them"
    for more in (["a.csv"], ["a.csv", "--data", "b.csv", "--silo", "bank"]):
        status, said = called(*arguments, *more)
        assert (status, message in said) == (2, True)


def test_what_the_folder_lost_is_named(run, tmp_path):
    data = ("--data", f"bank={tmp_path / 'bank.csv'}", "--allow-missing", "--out", tmp_path / "p.csv")
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "labels.json").unlink()
    status, said = called("predict", tmp_path / "copy", *data)
    assert (status, "labels.json is missing" in said) == (2, True)
    assert called("predict", tmp_path, *data)[1].endswith("is not a run folder: it has no config.toml")
    assert load_label_encoding(run).classes == ("no", "yes")


def both(tmp_path):
    return ["--data", f"bank={tmp_path / 'bank.csv'}", "--data", f"bureau={tmp_path / 'bureau.csv'}"]


def test_predictions_keep_the_name_of_the_id_column(keys, tmp_path, bank):
    write_csv(tmp_path / "bank.csv", {"customer": bank.pop("id")} | bank)
    keys["silos"][0]["id"] = "customer"
    trained(keys, tmp_path / "run")
    assert called("predict", tmp_path / "run", *both(tmp_path), "--out", tmp_path / "p.csv")[0] == 0
    assert list(rows_of(tmp_path / "p.csv")[0]) == ["customer", "prediction", "probability_yes"]


def test_an_id_column_that_is_called_like_a_result_becomes_id(tmp_path):
    predictions = Predictions(["a"], np.array([[1.0]]), [()])
    write_predictions(tmp_path / "p.csv", predictions, LabelEncoding("regression"), "squared", id_column="prediction")
    assert (tmp_path / "p.csv").read_text().splitlines() == ["id,prediction", "a,1.0"]


def test_predictions_are_written_as_parquet_where_the_name_says_so(run, tmp_path):
    for name in ("p.csv", "p.parquet"):
        assert called("predict", run, *both(tmp_path), "--out", tmp_path / name, "--allow-missing")[0] == 0
    table = pq.read_table(tmp_path / "p.parquet")
    assert [str(field.type) for field in table.schema] == ["string", "string", "double", "string"]
    as_text = [{name: str(value) for name, value in row.items()} for row in table.to_pylist()]
    assert as_text == rows_of(tmp_path / "p.csv")
    status, said = called("predict", run, *both(tmp_path), "--out", tmp_path / "p.xlsx")
    assert (status, said.endswith("p.xlsx: the name of a table must end in .csv or .parquet")) == (2, True)


def test_the_command_scores_the_common_ids_only_if_asked_to(run, tmp_path, bank):
    out, whole = tmp_path / "p.csv", tmp_path / "whole.csv"
    assert called("predict", run, *both(tmp_path), "--out", whole)[0] == 0
    write_csv(tmp_path / "bank.csv", {name: values[:-3] for name, values in bank.items()})
    status, said = called("predict", run, *both(tmp_path), "--out", out, "--common")
    assert status == 0
    assert said == f"{RARE}Predictions: {out}, {ROWS - 3} rows 3 ids are left out, since not every silo has them."
    lost = {str(one) for one in bank["id"][-3:]}
    assert rows_of(out) == [row for row in rows_of(whole) if row["id"] not in lost]
    status, said = called("predict", run, *both(tmp_path), "--out", out, "--common", "--allow-missing", "--force")
    assert (status, "give one of the two" in said) == (2, True)
    write_csv(tmp_path / "bank.csv", bank | {"id": [f"x{one}" for one in bank["id"]]})
    status, said = called("predict", run, *both(tmp_path), "--out", out, "--common", "--force")
    assert (status, "no id is in the tables of all silos" in said) == (2, True)


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
def test_held_out_samples_and_their_predictions_are_in_the_run_folder(keys, tmp_path, bank, loss):
    if loss == "squared":
        bank["y"] = [f"{number / 7:.4f}" for number in range(ROWS)]
        write_csv(tmp_path / "bank.csv", bank)
    trained(keys, tmp_path / "run", model={"loss": loss})
    found = rows_of(tmp_path / "run" / "held-out.csv")
    assert len(found) == ROWS // 4
    labels = dict(zip(map(str, bank["id"]), bank["y"], strict=True))
    assert called("predict", tmp_path / "run", *both(tmp_path), "--out", tmp_path / "p.csv")[0] == 0
    predicted = {row["id"]: row for row in rows_of(tmp_path / "p.csv")}
    for row in found:
        label, wanted = row.pop("label"), predicted[row["id"]]
        assert label == labels[row["id"]] or float(label) == float(labels[row["id"]])
        assert row.keys() == wanted.keys()
        for name, cell in row.items():
            assert cell == wanted[name] or float(cell) == pytest.approx(float(wanted[name]), rel=1e-5, abs=1e-6)
    if loss != "squared":
        right = np.mean([row["prediction"] == labels[row["id"]] for row in found])
        assert right == read_history(tmp_path / "run" / "history.jsonl")[-1].metrics["test"]["accuracy"]


def test_nothing_held_out_leaves_no_file(keys, tmp_path):
    train_plan(plan(check_config(keys | {"evaluate": {"holdout": 0.0}})), tmp_path / "run")
    assert not (tmp_path / "run" / "held-out.csv").exists()
