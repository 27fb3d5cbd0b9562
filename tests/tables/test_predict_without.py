"""Predictions without a silo: in the command, in Python and between hubs, the same numbers."""

import csv

import numpy as np
import pytest
from two_tables import ROWS, called, write_csv

from tdcd import Model
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.prediction.scores import SiloScores, StandIns, combine
from tdcd.records.run_folder import RunFolder
from tdcd.tables.reader import read_rows
from tdcd.training.train import train_plan


def chances_in(path):
    with path.open(newline="", encoding="utf-8") as file:
        return {row["id" if "id" in row else "key"]: (float(row["probability_yes"]), row["missing"])
                for row in csv.DictReader(file)}  # fmt: skip


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_the_command_the_model_and_a_saved_model_say_the_same(keys, tmp_path, rate):
    keys["train"]["silo_dropout"] = rate
    result = train_plan(plan(check_config(keys)), tmp_path / "run")
    stand_in = RunFolder(tmp_path / "run").subsets()["stand_in"]
    bureau, out = tmp_path / "bureau.csv", tmp_path / "p.csv"
    status, said = called("predict", tmp_path / "run", "--data", f"bureau={bureau}", "--without", "bank", "--out", out)
    assert status == 0
    assert f"{ROWS} of them are scored without the part of silo 'bank'." in said
    assert ("its phi is replaced by its mean over the training rows" in said) == (not rate)
    model = Model.load(tmp_path / "run")
    alone = model.silo_scores("bureau", bureau)
    intercept = float(np.asarray(result.blocks["bank"]["weight"])[-1, 0])
    if rate:
        assert stand_in == {"bank": [pytest.approx(intercept)], "bureau": [0.0]}
    expected = 1 / (1 + np.exp(-(alone.phi[:, 0].astype(float) + stand_in["bank"][0])))
    assert chances_in(out) == {
        one: (pytest.approx(chance), "bank") for one, chance in zip(alone.ids, expected, strict=True)
    }
    model.save(tmp_path / "model.tdcd")
    for one in (model, Model.load(tmp_path / "model.tdcd"), result.model):
        with pytest.warns(UserWarning, match="may be far off") if not rate else np.errstate():
            found = one.predict_proba({"bureau": bureau}, without=["bank"])
        np.testing.assert_allclose(found[:, 1], expected, rtol=1e-5)
    with pytest.raises(ValueError, match="the table of silo 'bank' is missing"):
        model.predict({"bureau": bureau})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--without", "shop"], "without 'shop': there is no such silo; there are bank, bureau"),
        (["--without", "bank"], "without 'bank': there is a table of it; leave one of the two out"),
    ],
)
def test_what_cannot_be_missing_is_refused(keys, tmp_path, options, message):
    train_plan(plan(check_config(keys)), tmp_path / "run")
    data = ["--data", f"bank={tmp_path / 'bank.csv'}"]
    status, said = called("predict", tmp_path / "run", *data, *options, "--out", tmp_path / "p.csv")
    assert (status, message in said) == (2, True)
    with pytest.raises(ValueError, match="that is every silo, and nothing is left to predict from"):
        Model.load(tmp_path / "run").predict({}, without=["bank", "bureau"])


def scores_of(**phi):
    return SiloScores([name[1:] for name in phi], np.array([[value] for value in phi.values()]))


def test_a_silo_that_lacks_some_ids_and_one_that_lacks_all_are_replaced_alike():
    parts = {"bank": scores_of(_1=1.0, _2=2.0), "lab": scores_of(), "shop": scores_of(_2=10.0, _3=20.0)}
    parts["lab"] = SiloScores((), np.zeros((0, 1)))
    stand_ins = StandIns({"bank": [0.5], "lab": [0.25], "shop": [5.0]}, 0.3)
    with pytest.raises(ValueError, match="silo 'bank' lacks 1 of 3 ids"):
        combine(parts, without=["lab"], stand_ins=stand_ins)
    found = combine(parts, True, without=["lab"], stand_ins=stand_ins)
    assert found.scores[:, 0].tolist() == [6.25, 12.25, 20.75]
    assert [*map(tuple, found.missing)] == [("lab", "shop"), ("lab",), ("bank", "lab")]
    common = combine(parts, common_only=True, without=["lab"], stand_ins=stand_ins)
    assert (list(common.ids), common.scores[:, 0].tolist()) == (["2"], [12.25])


def few_positives(folder, samples=900):
    """Three tables: the bank has all samples and their labels, of which few are positive; whom others have depends on
    the labels. Returns the samples that each silo has, and the labels.
    """
    rng = np.random.default_rng(8)
    amounts = rng.normal(0, 1, (samples, 3))
    label = amounts.sum(axis=1) + rng.normal(0, 1, samples) > 2.9
    has = {"bank": np.ones(samples, bool)}
    has |= {"shop": rng.random(samples) < np.where(label, 0.8, 0.5), "bureau": rng.random(samples) < 0.6}
    for silo, own in zip(has, amounts.T, strict=True):
        rows = np.flatnonzero(has[silo])
        labels = {"y": np.where(label, "yes", "no")[rows].tolist()} if silo == "bank" else {}
        write_csv(folder / f"{silo}.csv", {"id": rows.tolist(), "x": own[rows].round(4).tolist(), **labels})
    return has, label


def test_without_the_silo_with_the_labels_probabilities_are_those_of_samples_like_these(tmp_path):
    has, label = few_positives(tmp_path)
    silos = [{"name": name, "table": f"{name}.csv", **({"label": "y"} if name == "bank" else {})} for name in has]
    keys = {
        "data": {"source": "files", "folder": str(tmp_path), "samples": "all"},
        "federation": {"labels": "bank"},
        "evaluate": {"holdout": 0},
        "silos": silos,
    }
    result = train_plan(plan(check_config(keys)), tmp_path / "run")
    tables, out = {silo: tmp_path / f"{silo}.csv" for silo in ("shop", "bureau")}, tmp_path / "p.csv"
    given = [text for silo, path in tables.items() for text in ("--data", f"{silo}={path}")]
    status, said = called("predict", tmp_path / "run", *given, "--without", "bank", "--out", out)
    assert status == 0
    silenced = [(has["shop"] | has["bureau"]).sum(), (has["bureau"] & ~has["shop"]).sum()]
    for silo, count in zip(("bank", "shop"), silenced, strict=True):
        effect = f"without silo '{silo}', its phi is replaced by its mean over the training rows for {count} ids"
        assert f"{effect}, which no silo has that was trained to stand in for it: these predictions may be far" in said
    chances = {int(sample): chance for sample, (chance, _) in chances_in(out).items()}
    for shop, bureau in ((True, True), (True, False), (False, True)):
        alike = np.flatnonzero((has["shop"] == shop) & (has["bureau"] == bureau))
        like_these = (has["shop"] | (not shop)) & (has["bureau"] | (not bureau))
        predicted, rate = np.mean([chances[sample] for sample in alike]), label[like_these].mean()
        # The mean of log-odds is that of a probability below the mean one.
        assert 0.25 * rate < predicted < 1.2 * rate < 0.2
    model = Model.load(tmp_path / "run")
    model.save(tmp_path / "model.tdcd")
    for known in (model, Model.load(tmp_path / "model.tdcd"), result.model):
        with pytest.warns(UserWarning, match="these predictions may be far off"):
            found = known.predict_proba(tables, without=["bank"])
        np.testing.assert_allclose(found[:, 1], [*chances.values()], rtol=1e-6)
    # What the definition says, of those that both have.
    rows = {
        silo: read_rows(path, model.part(silo).columns)
        for silo, path in {**tables, "bank": tmp_path / "bank.csv"}.items()
    }
    parts = model.all_scores(rows)
    phi = {silo: dict(zip(part.ids, part.phi[:, 0].astype(float), strict=True)) for silo, part in parts.items()}
    both = [str(sample) for sample in np.flatnonzero(has["shop"] & has["bureau"])]
    bank = np.mean([phi["bank"][sample] for sample in both])
    for sample in both:
        score = phi["shop"][sample] + phi["bureau"][sample] + bank
        assert chances[int(sample)] == pytest.approx(1 / (1 + np.exp(-score)), rel=1e-4)


def test_without_a_silo_that_others_were_trained_to_make_up_for_there_is_no_warning(tmp_path, recwarn):
    few_positives(tmp_path, 200)
    silos = [
        {"name": name, "table": f"{name}.csv", **({"label": "y"} if name == "bank" else {})}
        for name in ("bank", "shop")
    ]
    keys = {"data": {"source": "files", "folder": str(tmp_path), "samples": "all"}, "silos": silos}
    model = train_plan(plan(check_config({**keys, "train": {"rounds": 2}})), tmp_path / "run").model
    rows = read_rows(tmp_path / "bank.csv", model.part("bank").columns)
    found = model.scores({"bank": tmp_path / "bank.csv"}, without=["shop"])
    np.testing.assert_allclose(found, model.part("bank").phi(rows, np.ones((len(rows), 1), bool)), rtol=1e-6)
    assert not [warning for warning in recwarn if "without silo" in str(warning.message)]


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("without", [["shop"], ["bank"], ["bank", "bureau"]])
def test_a_silo_that_is_left_out_and_one_that_lacks_the_rows_are_the_same(tmp_path, rate, without):
    """Whether --without names a silo, or its table has other ids alone: the same predictions, bit for bit."""
    few_positives(tmp_path, 200)
    silos = [{"name": name, "table": f"{name}.csv"} for name in ("bank", "shop", "bureau")]
    silos[0]["label"] = "y"
    data = {"source": "files", "folder": str(tmp_path), "samples": "all"}
    keys = {"data": data, "silos": silos, "train": {"rounds": 2, "silo_dropout": rate}}
    if rate:
        keys["federation"] = {"labels": "bank"}
    train_plan(plan(check_config(keys)), tmp_path / "run")
    found = []
    for named in (True, False):
        out, options = tmp_path / f"{named}.csv", []
        for silo in ("bank", "shop", "bureau"):
            table = tmp_path / f"{silo}.csv"
            if silo in without and named:
                options += ["--without", silo]
                continue
            if silo in without:
                write_csv(table := tmp_path / f"{silo}-elsewhere.csv", {"id": [900], "x": [0.5]})
            options += ["--data", f"{silo}={table}"]
        status, said = called("predict", tmp_path / "run", *options, "--out", out)
        assert status == 0, said
        assert not named or ("may be far off" in said) == (not rate and "bank" in without)
        found.append(chances_in(out))
    foreign = found[1].pop("900")
    assert foreign[1]
    assert found[0] == found[1]
